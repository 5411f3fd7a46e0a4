"""Random numbers of the simulated device, from the state of torch_npu's own generators.

A device generator has a seed and an offset. Each call of a random operator draws from a CPU generator that is
seeded with both, and then advances the offset. Therefore manual_seed, get/set_rng_state, fork_rng,
checkpointing and a user's own `torch.Generator("npu")` behave as on a device, independently of the CPU
generator. The numbers differ from those of the hardware.

With `NPU_SIM_RNG=host` they come from torch's CPU generator, to compare a program with its run on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from harness.devices.sim.operators.dispatch import DEVICE_TYPE, Compute
from harness.devices.sim.operators.graph_capture import OFFSET_STEP
from harness.devices.sim.operators.schema_plan import OperatorPlan

VARIABLE = "NPU_SIM_RNG"
_MASK = (1 << 64) - 1


def random_source(
    default: Callable[[int], torch.Generator], captured: Callable[[torch.Generator], tuple[int, int] | None]
) -> Callable[[OperatorPlan, Compute, torch.Generator | None, int], Compute]:
    """The function `Machine.randomly`.

    default: returns the default generator of a device. captured: seed and offset for a call of a captured
    graph, None for any other call.
    """
    if os.environ.get(VARIABLE, "device") == "host":
        return _from_host

    def randomly(
        plan: OperatorPlan, compute: Compute, generator: torch.Generator | None, index: int
    ) -> Compute:
        if generator is not None and generator.device.type != DEVICE_TYPE:
            raise RuntimeError(
                f"Expected a '{DEVICE_TYPE}' device type for generator but found '{generator.device.type}'"
            )
        source = generator if generator is not None else default(index)
        place = captured(source) or _next_place(source)
        if plan.draws is not None:
            return partial(compute, drawn=place)
        seed = _seed_at(*place)
        if plan.generator is not None:
            return _with_generator(plan.generator, compute, torch.Generator().manual_seed(seed))
        return _with_default_seed(compute, seed)

    return randomly


def use_host_generator(npu: Any) -> None:
    """With `NPU_SIM_RNG=host`, let the generator functions of `torch.npu` use the CPU generator."""
    if os.environ.get(VARIABLE, "device") != "host":
        return
    npu.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    npu.set_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)
    npu.manual_seed = npu.manual_seed_all = lambda seed: torch.default_generator.manual_seed(int(seed))


def _from_host(
    plan: OperatorPlan, compute: Compute, _generator: torch.Generator | None, _index: int
) -> Compute:
    if plan.draws is not None:
        return partial(compute, drawn=(int(torch.randint(1 << 62, ())), 0))
    if plan.generator is None:
        return compute
    return _with_generator(plan.generator, compute, torch.default_generator)


def _next_place(generator: torch.Generator) -> tuple[int, int]:
    """Seed and offset for the next call."""
    # The generator asks its device's stream whether it is captured, which would set the current device.
    with torch.npu.device(generator.device):
        offset = int(generator.get_offset())
        generator.set_offset(offset + OFFSET_STEP)
    return int(generator.initial_seed()), offset


def _seed_at(start: int, offset: int) -> int:
    if offset == 0:
        return start & _MASK
    # splitmix64: neighbouring offsets give unrelated seeds.
    value = (start + offset * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def _with_generator(argument: tuple[int, str], compute: Compute, generator: torch.Generator) -> Compute:
    position, name = argument

    def drawing(*args: Any, **kwargs: Any) -> Any:
        if position < len(args):
            return compute(*args[:position], generator, *args[position + 1 :], **kwargs)
        return compute(*args, **{**kwargs, name: generator})

    return drawing


def _with_default_seed(compute: Compute, seed: int) -> Compute:
    def drawing(*args: Any, **kwargs: Any) -> Any:
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        try:
            return compute(*args, **kwargs)
        finally:
            torch.set_rng_state(state)

    return drawing
