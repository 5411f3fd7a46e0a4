"""Two matmuls with an activation between them, also of quantised weights and of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from harness.devices.sim.references.activation import npu_fast_gelu
from harness.devices.sim.references.precision import dtype_of, refuse, wide
from harness.devices.sim.references.quantization import as_integers, factors

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "fastgelu": npu_fast_gelu,
}
# Factors that belong to the first and to the second matmul.
_OF_MATMUL = ("weight", "bias", "deq_scale", "antiquant_scale", "antiquant_offset")


def npu_ffn(
    x: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    activation: str,
    *,
    expert_tokens: Sequence[int] | None = None,
    expert_tokens_index: Sequence[int] | None = None,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    inner_precise: int | None = None,  # noqa: ARG001 - a hint
    output_dtype: int | torch.dtype | None = None,
    **of_matmuls: torch.Tensor | None,
) -> torch.Tensor:
    """activation(x @ weight1 + bias1) @ weight2 + bias2, for the rows of each expert with its own weights.

    expert_tokens: the number of each expert's rows; expert_tokens_index: their ends. int8 x: both products
    are exact, plus the bias, times deq_scale; in between, the activation times scale plus offset in int8.
    antiquant_scale, antiquant_offset: of int8 weights (op-plugin's npu_ffn.md).
    """
    refuse(
        "npu_ffn",
        **{f"activation {activation}": activation.lower() not in _ACTIVATIONS},
        **{"scales of experts": scale is not None and scale.numel() > 1},
    )
    function = _ACTIVATIONS[activation.lower()]
    given = {"weight1": weight1, "weight2": weight2, **of_matmuls}
    counts = _counts(expert_tokens, expert_tokens_index)
    results = []
    for expert, rows in enumerate([x] if counts is None else x.split(counts)):
        own = {
            name: values if values is None or counts is None else values[expert]
            for name, values in given.items()
        }
        middle = _matmul(rows, own, "1")
        if scale is None:
            middle = function(middle)
        else:
            # In float16 as in the golden of op-plugin's test_npu_ffn.py.
            scaled = function(middle.half()) * scale.half()
            shifted = scaled if offset is None else scaled + offset.half()
            middle = as_integers(shifted.round(), torch.int8)
        results.append(_matmul(middle, own, "2"))
    kept = torch.float16 if x.dtype is torch.int8 else x.dtype
    return torch.cat(results).to(kept if output_dtype is None else dtype_of(output_dtype))


def _matmul(x: torch.Tensor, given: dict[str, torch.Tensor | None], which: str) -> torch.Tensor:
    weight, bias, deq_scale, scale, offset = (given.get(name + which) for name in _OF_MATMUL)
    assert weight is not None
    if scale is not None:
        refuse("npu_ffn", **{f"weights in {weight.dtype}": weight.dtype is not torch.int8})
        # In the dtype of the scale as in the golden of op-plugin's test_npu_ffn.py.
        shifted = weight.to(scale.dtype) if offset is None else weight.to(scale.dtype) + offset
        product = wide(x) @ wide(shifted * scale)
    elif x.dtype is torch.int8:
        # Sums of products of int8 are exact in float64.
        product = x.double() @ weight.double()
    else:
        refuse("npu_ffn", **{f"weights in {weight.dtype}": not weight.is_floating_point()})
        product = wide(x) @ wide(weight)
    product = product if bias is None else product + bias
    return product.float() if deq_scale is None else product.float() * factors(deq_scale)


def _counts(tokens: Sequence[int] | None, ends: Sequence[int] | None) -> list[int] | None:
    """The number of rows of each expert, or None without experts."""
    if ends:
        return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return list(tokens) if tokens else None
