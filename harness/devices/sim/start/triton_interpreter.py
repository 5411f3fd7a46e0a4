"""Runs Triton kernels with Triton's own interpreter on the host memory of device tensors.

The interpreter executes a kernel's Python source with NumPy. Ascend's compiler, its memory limits and its
arithmetic are not simulated. It is used only with `NPU_SIM_TRITON=interpret`, because vllm-ascend before 0.19
has other code for machines without Triton.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from harness.devices.sim.operators.dispatch import DEVICE_TYPE, Machine
from harness.devices.sim.operators.schema_plan import Args, Kwargs, OperatorPlan
from harness.devices.sim.start.sim_environment import INTERPRET, TRITON
from harness.errors import InfrastructureError

# Cube and vector cores of an Ascend 910B3, among which kernels divide their work. Sources: `npu-smi info` and
# platform_config/Ascend910B3.ini of CANN.
_CORES = {"num_aicore": 20, "num_vectorcore": 40}
_PROPERTIES = {
    **_CORES,
    "multiprocessor_count": _CORES["num_aicore"],
    "max_shared_mem": 192 * 1024,
    "warpSize": 1,
}


def is_requested() -> bool:
    """Whether the environment of this process requests the interpreter."""
    return os.environ.get(TRITON) == INTERPRET


def install(machine: Machine) -> None:
    """Make Triton interpret kernels. Call this before any kernel is imported.

    InfrastructureError when Triton is not installed, or when its interpreter has another structure.
    """
    # Triton reads this variable when a kernel is declared.
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        backends = import_module("triton.backends").backends
        target = import_module("triton.backends.compiler").GPUTarget("npu", "Ascend910B3", 1)
        driver = import_module("triton.runtime").driver
        interpreter = import_module("triton.runtime.interpreter")
        executor = interpreter.GridExecutor
        language = import_module("triton.language")
    except (ImportError, AttributeError) as error:
        raise InfrastructureError(
            "Triton's interpreter cannot be used here",
            why=str(error),
            fix=f"install triton 3.2 or later into this environment, or unset {TRITON}",
        ) from error
    active = _Driver(target)
    backends.clear()
    backends[DEVICE_TYPE] = SimpleNamespace(driver=_Driver, compiler=None)
    driver.set_active(active)
    executor._init_args_hst = _host_arguments(machine)  # noqa: SLF001 - there is no public way to replace it
    executor._restore_args_dev = lambda *_args: None  # noqa: SLF001
    executor.__call__ = intercepted(executor.__call__, machine)
    for name, function in _extensions(interpreter.TensorHandle, language).items():
        if not hasattr(language, name):
            setattr(language, name, function)


class _Driver:
    """The interface of an active driver that Triton and vLLM use."""

    def __init__(self, target: Any = None) -> None:
        self._target = target
        self.utils = SimpleNamespace(
            get_device_properties=lambda _device=0: dict(_PROPERTIES),
            get_aicore_num=lambda: _CORES["num_aicore"],
            get_aivector_core_num=lambda: _CORES["num_vectorcore"],
            get_arch=lambda: "Ascend910B3",
        )

    @classmethod
    def is_active(cls) -> bool:
        """True: there is a device."""
        return True

    def get_current_target(self) -> Any:
        """The target for which Triton compiles."""
        return self._target

    def get_current_device(self) -> int:
        """Number of the current device."""
        return int(torch.npu.current_device())

    def set_current_device(self, device: int) -> None:
        """Make a device current."""
        torch.npu.set_device(device)

    def get_current_stream(self, _device: int = 0) -> int:
        """0, the default stream."""
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """The function that measures configurations for autotuning. Equal results select the first one."""
        return _benchmark

    def get_device_interface(self) -> Any:
        """`torch.npu`."""
        return torch.npu

    def get_active_torch_device(self) -> Any:
        """The current device."""
        return torch.device(DEVICE_TYPE, self.get_current_device())


def _benchmark(run: Callable[[], Any], quantiles: Sequence[float] = (0.5,), **_limits: Any) -> list[float]:
    """Run the kernel once, so that a kernel that cannot run fails here as on a device. Durations are 0."""
    run()
    return [0.0] * len(quantiles)


def _host_arguments(machine: Machine) -> Callable[..., Any]:
    """Replaces the interpreter's copies of device tensors with CPU tensors over the same memory."""

    def to_host(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(to_host(entry) for entry in value)
        device = getattr(value, "device", None)
        return machine.alias(value) if getattr(device, "type", "") == DEVICE_TYPE else value

    def arguments(_executor: Any, args: Args, kwargs: Kwargs) -> Any:
        return [to_host(value) for value in args], {name: to_host(value) for name, value in kwargs.items()}

    return arguments


def intercepted(run: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
    """Let faults and call counts also apply to kernels, as operators with the name triton::KERNEL."""

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        if machine.pending.value and (record := machine.enter(None)) is not None:
            plan = _kernel_plan(executor.fn.__name__, args, kwargs)
            record(plan, functools.partial(launch, executor), args, kwargs)
            return
        if not machine.interceptors:
            run(executor, *args, **kwargs)
            return
        values, named = executor._init_args_hst(args, kwargs)  # noqa: SLF001
        plan = _kernel_plan(executor.fn.__name__, values, named)
        tensors = [value for value in (*values, *named.values()) if _is_tensor(value)]
        unchanged: list[tuple[Any, Any]] = []

        def compute(*args: Any, **kwargs: Any) -> None:
            before = [value.clone() for value in tensors]
            run(executor, *args, **kwargs)
            pairs = zip(tensors, before, strict=True)
            unchanged.extend((value, old) for value, old in pairs if _is_equal(value, old))

        machine.interceptors[0](plan, compute, list(values), dict(named))
        for value, old in unchanged:
            value.copy_(old)

    return launch


def _kernel_plan(name: str, args: Args, kwargs: Kwargs) -> OperatorPlan:
    """The plan of a kernel, whose signature does not say what it writes: every tensor counts as written."""
    positions = [(position, "") for position, value in enumerate(args) if _is_tensor(value)]
    names = [(len(args), key) for key, value in kwargs.items() if _is_tensor(value)]
    return OperatorPlan(
        name=f"triton::{name}",
        overload="",
        tensors=(),
        by_name={},
        device=None,
        generator=None,
        mutable=(*positions, *names),
        returns=(),
        single=False,
        random=False,
        mixed=True,
    )


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def _is_equal(value: Any, old: Any) -> bool:
    """Whether both are equal, where NaN equals NaN: memory that was never written may contain NaN."""
    return bool(((value == old) | ((value != value) & (old != old))).all())


def _extensions(handle: Any, language: Any) -> dict[str, Callable[..., Any]]:
    """triton-ascend's operations on parts of a tensor, which Triton itself does not have."""
    # Imported here because torch can be installed without NumPy, Triton's interpreter cannot.
    import numpy as np

    def number(value: Any) -> int:
        """The value of an index, which is a number, a compile-time constant or a tensor of one element."""
        plain = getattr(getattr(value, "handle", None), "data", getattr(value, "value", value))
        return int(np.asarray(plain).reshape(-1)[0])

    def numbers(values: Sequence[Any]) -> list[int]:
        return [number(value) for value in values]

    def window(offsets: Sequence[Any], sizes: Sequence[Any], strides: Sequence[Any]) -> tuple[slice, ...]:
        spans = zip(numbers(offsets), numbers(sizes), numbers(strides), strict=True)
        return tuple(slice(start, start + size * stride, stride) for start, size, stride in spans)

    def extract_slice(ful: Any, offsets: Any, sizes: Any, strides: Any, **_context: Any) -> Any:
        part = ful.handle.data[window(offsets, sizes, strides)].copy()
        dtype = ful.dtype.scalar
        return language.tensor(handle(part, dtype), language.block_type(dtype, list(part.shape)))

    def insert_slice(ful: Any, sub: Any, offsets: Any, sizes: Any, strides: Any, **_context: Any) -> Any:
        whole = ful.handle.data.copy()
        whole[window(offsets, sizes, strides)] = sub.handle.data
        return language.tensor(handle(whole, ful.dtype.scalar), ful.type)

    def get_element(src: Any, indice: Any, **_context: Any) -> Any:
        value = np.array([src.handle.data[tuple(numbers(indice))]])
        return language.tensor(handle(value, src.dtype.scalar), src.dtype.scalar)

    return {"extract_slice": extract_slice, "insert_slice": insert_slice, "get_element": get_element}
