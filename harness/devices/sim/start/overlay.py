"""Installs the simulated device's CPU kernels into the torch_npu of this process."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from harness.devices.sim.faults.fault_spec import FaultSpec
from harness.evidence import device_count, runtime_library

COUNT_VARIABLE = "NPU_SIM_COUNT_CALLS"
LATE_FAULTS = ("NPU_SIM_SYNC_FAIL", "NPU_SIM_HANG")
"""Environment variables that make the runtime fail or hang when a program waits for the device."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The installed simulation. faults: a `FaultInjector`. custom: operators that have a reference."""

    machine: Any
    faults: Any
    custom: tuple[str, ...]
    libraries: tuple[Any, ...]


# At most one, because kernels are registered for the whole process.
_installed: list[Simulation] = []


def installed() -> Simulation | None:
    """The simulation of this process, None if it was not installed."""
    return _installed[0] if _installed else None


def install(faults: Iterable[FaultSpec], note: Callable[[str | None], None]) -> Simulation:
    """Install the CPU kernels and these faults, once per process. The runtime must be the simulated one.

    note: called with operators for which it is unknown what torch_npu refuses, see `WheelChecks`.

    As with torch_npu alone, the device is initialised when it is used, so that forked processes can use it.
    """
    if not _installed:
        _installed.append(_build(faults, note))
    return _installed[0]


def _build(faults: Iterable[FaultSpec], note: Callable[[str | None], None]) -> Simulation:
    # Imported here because torch_npu must not be loaded before the runtime was checked.
    import torch
    import torch_npu  # noqa: F401

    from harness.devices.sim.collectives.collective_faults import intercept_collectives
    from harness.devices.sim.collectives.collective_operators import install_collective_operators
    from harness.devices.sim.faults.fault_injection import FaultInjector
    from harness.devices.sim.operators.aten_kernels import install_aten
    from harness.devices.sim.operators.custom_kernels import install_attention_in_graphs, install_custom
    from harness.devices.sim.operators.dispatch import DEVICE_TYPE, Machine, Recorder
    from harness.devices.sim.operators.graph_capture import GraphRecorder
    from harness.devices.sim.operators.host_memory import alias_maker, device_copier
    from harness.devices.sim.operators.random_numbers import random_source, use_host_generator
    from harness.devices.sim.operators.serving_kernels import install_serving
    from harness.devices.sim.operators.storage_formats import install_formats
    from harness.devices.sim.refusals.wheel_checks import start_checks

    npu = torch.npu
    runtime = runtime_library()
    assert runtime is not None

    def default_generator(index: int) -> Any:
        npu.init()
        return npu.default_generators[index]

    def enter(index: int | None) -> Recorder | None:
        stream = npu.current_stream(index).npu_stream
        if error := runtime.npu_sim_drain(ctypes.c_void_p(stream)):
            raise RuntimeError(f"a collective on this stream failed, error code is {error}")
        return graphs.of_stream(stream)

    # It forks, and the other process needs torch_npu's own kernels.
    checks = start_checks(note)
    alias = alias_maker()
    graphs = GraphRecorder(runtime, npu, alias)
    machine = Machine(
        alias=alias,
        to_device=device_copier(alias),
        randomly=random_source(default_generator, graphs.place),
        # Variables of the environment can still change which devices are visible.
        devices=tuple(
            torch.device(DEVICE_TYPE, index)
            for index in range(device_count(runtime) or runtime.npu_sim_count())
        ),
        current=npu.current_device,
        synchronise=npu.synchronize if any(os.environ.get(name) for name in LATE_FAULTS) else None,
        pending=ctypes.c_int.in_dll(runtime, "npu_sim_pending"),
        enter=enter,
        in_graph=graphs.runs_captured_call,
        checks=checks,
    )
    use_host_generator(npu)
    with warnings.catch_warnings():
        # torch warns about every kernel that is replaced.
        warnings.simplefilter("ignore")
        aten = torch.library.Library("aten", "IMPL")
        install_aten(aten, machine)
        custom_library = torch.library.Library("npu", "IMPL")
        custom = install_custom(custom_library, machine)
        collectives = install_collective_operators(custom_library, machine, runtime, npu)
        install_attention_in_graphs(custom_library)
        install_formats(custom_library, machine)
        serving, serving_libraries = install_serving(machine)
    injector = FaultInjector(machine.interceptors, lambda: intercept_collectives(machine))
    graphs.ignores_update = injector.ignores_update
    injector.add(faults)
    if os.environ.get(COUNT_VARIABLE) == "1":
        injector.count_calls()
    return Simulation(
        machine=machine,
        faults=injector,
        custom=(*custom, *collectives, *serving),
        libraries=(aten, custom_library, *serving_libraries),
    )
