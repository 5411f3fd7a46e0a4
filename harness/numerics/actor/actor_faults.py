"""Faults that the check `actor` injects into one update, and the module of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ActorFault:
    """A defect in one module. matmul: whether it shows in a matmul that is recomputed from the operands of
    the device; otherwise it shows in the tensors of an update."""

    id: str
    what: str
    target: str
    install: Callable[[Any, str], Any]
    matmul: bool = False

    @contextmanager
    def injected(self, model: Any) -> Iterator[None]:
        """Inject the fault into `model` for the duration of the block."""
        handle = self.install(model, self.target)
        try:
            yield
        finally:
            handle.remove()


def _gradient_sign(model: Any, target: str) -> Any:
    return model.get_parameter(target).register_hook(lambda gradient: -gradient)


def _in_bfloat16(model: Any, target: str) -> Any:
    return model.get_submodule(target).register_forward_hook(
        lambda _module, _args, output: output.bfloat16().to(output.dtype)
    )


def _summed_in_bfloat16(model: Any, target: str) -> Any:
    def summed(module: Any, args: Any, output: Any) -> None:
        left, right = args[0].detach().bfloat16(), module.weight.detach().bfloat16()
        total = None
        for first in range(0, left.shape[-1], BLOCK):
            part = left[..., first : first + BLOCK] @ right[:, first : first + BLOCK].T
            total = part if total is None else total + part
        # Not visible to autograd, so the matmuls of the backward pass stay correct.
        output.data.copy_(total)

    return model.get_submodule(target).register_forward_hook(summed)


BLOCK = 16
"""Number of terms that are summed exactly before a partial sum is rounded, as in a tile of a matrix unit."""

GRADIENT_SIGN = ActorFault(
    id="gradient-sign",
    what="the gradient of one matrix has the wrong sign, its norm the right one",
    target="model.layers.0.self_attn.k_proj.weight",
    install=_gradient_sign,
)

ACTOR_FAULTS: Mapping[str, tuple[ActorFault, ...]] = {
    "float32": (
        GRADIENT_SIGN,
        ActorFault(
            id="activation-bf16",
            what="the output of one normalisation is rounded to bf16",
            target="model.layers.1.post_attention_layernorm",
            install=_in_bfloat16,
        ),
    ),
    "bfloat16": (
        GRADIENT_SIGN,
        ActorFault(
            id="accumulation-bf16",
            what="the partial sums of one matmul are kept in bf16",
            target="model.layers.1.mlp.down_proj",
            install=_summed_in_bfloat16,
            matmul=True,
        ),
    ),
}
"""Faults by the format in which the model computes."""
