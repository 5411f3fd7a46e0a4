"""Installs torch_npu's operators that have a collective in them."""

from __future__ import annotations

from typing import Any

from harness.devices.sim.collectives.exchange import Exchange
from harness.devices.sim.collectives.expert_collectives import ExpertCollectives
from harness.devices.sim.collectives.grouped_matmul_collectives import GroupedMatmulCollectives
from harness.devices.sim.collectives.matmul_collectives import MatmulCollectives
from harness.devices.sim.operators.custom_kernels import install_reference
from harness.devices.sim.operators.dispatch import Machine
from harness.devices.sim.operators.torch_internals import overload

_KINDS = (MatmulCollectives, GroupedMatmulCollectives, ExpertCollectives)


def install_collective_operators(library: Any, machine: Machine, runtime: Any, npu: Any) -> tuple[str, ...]:
    """Register the kernels in `library` (namespace npu). Returns the names of the operators."""
    exchange, installed = Exchange(runtime, npu), []
    for kind in _KINDS:
        for name, kernel in kind(exchange).kernels.items():
            operator = overload("npu", name)
            if operator is not None:
                install_reference(library, name, operator, kernel, machine)
                installed.append(name)
    return tuple(installed)
