"""Installs the simulated device's arithmetic into this process's torch_npu."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.devices.sim.faults import fault_spec
from harness.devices.sim.start.sim_probe import is_simulated
from harness.errors import InfrastructureError
from harness.evidence import RUNTIME_LIBRARY

COUNT_VARIABLE = "NPU_SIM_COUNT_CALLS"
LATE_FAULTS = ("NPU_SIM_SYNC_FAIL", "NPU_SIM_HANG")
"""Settings of the runtime by which waiting for the device fails or hangs."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The installed overlay: `faults` changes what it computes, the others say what it covers."""

    machine: Any
    faults: Any
    coverage: Any
    custom: tuple[str, ...]
    libraries: tuple[Any, ...]


# torch's dispatcher is one per process and keeps what is registered: so is this.
_installed: list[Simulation] = []


def installed() -> Simulation | None:
    """The overlay of this process."""
    return _installed[0] if _installed else None


def install() -> Simulation:
    """Put CPU kernels under the device, once per process; faults come from `NPU_SIM_FAULTS`.

    InfrastructureError when the CANN runtime is a real one or no device is visible; InputError for bad
    faults.
    """
    if _installed:
        return _installed[0]
    if not is_simulated():
        raise InfrastructureError(
            "this is a real CANN runtime: simulated evidence refused",
            why=f"{RUNTIME_LIBRARY} carries no sentinel",
            fix="put the simulated runtime's folder on LD_LIBRARY_PATH, or run without the simulation",
        )
    specs = fault_spec.parse_faults(os.environ.get(fault_spec.VARIABLE, ""))
    _installed.append(_build(specs))
    return _installed[0]


def _build(specs: tuple[fault_spec.FaultSpec, ...]) -> Simulation:
    import torch
    import torch_npu  # noqa: F401 - registers the device

    from harness.devices.sim.faults.fault_injection import FaultBook
    from harness.devices.sim.operators.aten_kernels import install_aten
    from harness.devices.sim.operators.custom_kernels import install_custom
    from harness.devices.sim.operators.dispatch import DEVICE_TYPE, Machine
    from harness.devices.sim.operators.host_memory import alias_maker, placer
    from harness.devices.sim.operators.random_numbers import random_source, use_host_generator
    from harness.devices.sim.operators.serving_kernels import install_serving

    npu = torch.npu
    if not npu.is_available():
        raise InfrastructureError(
            "no simulated device is visible in this process",
            fix="unset ASCEND_RT_VISIBLE_DEVICES or set NPU_SIM_COUNT to 1 or more",
        )
    npu.init()
    alias = alias_maker()
    machine = Machine(
        alias=alias,
        place=placer(alias),
        randomly=random_source(npu.default_generators),
        devices=tuple(torch.device(DEVICE_TYPE, index) for index in range(npu.device_count())),
        current=npu.current_device,
        synchronise=npu.synchronize if any(os.environ.get(name) for name in LATE_FAULTS) else None,
    )
    use_host_generator(npu)
    with _quiet():
        aten = torch.library.Library("aten", "IMPL")
        coverage = install_aten(aten, machine)
        custom_library = torch.library.Library("npu", "IMPL")
        custom = install_custom(custom_library, machine)
        serving, serving_libraries = install_serving(machine)
    book = FaultBook(machine.interceptors)
    book.add(specs)
    if os.environ.get(COUNT_VARIABLE) == "1":
        book.count_calls()
    return Simulation(
        machine=machine,
        faults=book,
        coverage=coverage,
        custom=(*custom, *serving),
        libraries=(aten, custom_library, *serving_libraries),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Overriding kernels is the purpose here; torch warns of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
