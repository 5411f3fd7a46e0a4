"""Faults that the check `twin` injects, each with its step and module, and a deviation that it must not
report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class StepCounter:
    """The current step, counted from 0."""

    step: int = -1


InjectTwinFault = Callable[[Any, Any, str, Callable[[], bool]], Any]
"""Function of (model, optimizer, target, whether the fault is active) that installs a fault; returns a handle
that removes it."""


@dataclass(frozen=True, kw_only=True)
class TwinFault:
    """A defect that starts with step `first`. A run with this fault has `steps` steps.

    target: the module or parameter with the defect. legal: it is within the contract, so it must not be
        reported.
    """

    id: str
    what: str
    target: str
    first: int
    steps: int
    legal: bool = False
    install: InjectTwinFault

    @contextmanager
    def injected(self, model: Any, optimizer: Any, clock: StepCounter) -> Iterator[None]:
        """Inject the fault into `model` or `optimizer`, active from its first step on."""
        handle = self.install(model, optimizer, self.target, lambda: clock.step >= self.first)
        try:
            yield
        finally:
            handle.remove()


def _gradient_sign(model: Any, _optimizer: Any, target: str, is_active: Callable[[], bool]) -> Any:
    return model.get_parameter(target).register_hook(lambda gradient: -gradient if is_active() else gradient)


def _in_bfloat16(model: Any, _optimizer: Any, target: str, is_active: Callable[[], bool]) -> Any:
    def rounded(_module: Any, _args: Any, output: Any) -> Any:
        return output.bfloat16().to(output.dtype) if is_active() else output

    return model.get_submodule(target).register_forward_hook(rounded)


def _moments_lost(model: Any, optimizer: Any, target: str, is_active: Callable[[], bool]) -> Any:
    parameter = model.get_parameter(target)

    def forget(*_: Any) -> None:
        if is_active():
            optimizer.state[parameter]["exp_avg"].zero_()

    return optimizer.register_step_pre_hook(forget)


def _one_ulp(model: Any, _optimizer: Any, target: str, is_active: Callable[[], bool]) -> Any:
    def moved(_module: Any, _args: Any, output: Any) -> Any:
        return output * (1 + 2.0**-23) if is_active() else output

    return model.get_submodule(target).register_forward_hook(moved)


TWIN_FAULTS = (
    TwinFault(
        id="gradient-sign",
        what="from step 3 on the gradient of one matrix has the wrong sign, its norm the right one",
        target="model.layers.0.self_attn.k_proj.weight",
        first=2,
        steps=3,
        install=_gradient_sign,
    ),
    TwinFault(
        id="moments-lost",
        what="from step 4 on the optimizer forgets the first moment of one matrix",
        target="model.layers.1.mlp.up_proj.weight",
        first=3,
        steps=4,
        install=_moments_lost,
    ),
    TwinFault(
        id="activation-bf16",
        what="from step 5 on the output of one normalisation is rounded to bf16",
        target="model.layers.1.post_attention_layernorm",
        first=4,
        steps=5,
        install=_in_bfloat16,
    ),
    TwinFault(
        id="one-ulp",
        what="the output of one normalisation is off by one ulp, which is within the contract",
        target="model.layers.0.input_layernorm",
        first=0,
        steps=6,
        legal=True,
        install=_one_ulp,
    ),
)
"""Three faults above the rounding errors, in different steps and modules, and one deviation below them."""
