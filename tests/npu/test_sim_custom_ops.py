"""torch_npu's own operators on the simulated device, compared with autograd in float64, forward and backward."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

torch_npu = pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from roundings import CONTRACTS, permitted  # noqa: E402 - needs the guards above

from harness.devices.sim.faults.fault_spec import FaultSpec  # noqa: E402

pytestmark = pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device")

# Agreement in float64 shows that the formula is correct, agreement in float32 that the precision is.


def check(
    operator: Callable[..., torch.Tensor],
    reference: Callable[..., torch.Tensor],
    *shapes: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    """Compare value and gradients of the operator on the device with those of the reference in float64."""
    generator = torch.Generator().manual_seed(11)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    on_device = [x.to(dtype).to("npu:0").requires_grad_() for x in drawn]
    on_host = [x.detach().cpu().double() for x in on_device]
    result = operator(*on_device)
    assert result.device.type == "npu"
    assert result.dtype == dtype
    weights = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(dtype)
    (result * weights.to("npu:0")).sum().backward()

    def formula() -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in on_host]
        expected = reference(*leaves)
        return [expected, *torch.autograd.grad(expected, leaves, weights.double())]

    gradients = [x.grad for x in on_device]
    assert all(gradient is not None and gradient.dtype == dtype for gradient in gradients)
    permitted(formula, dtype).require([result, *gradients])


def close(actual: torch.Tensor, formula: Callable[[], torch.Tensor], dtype: torch.dtype) -> None:
    """Compare one tensor with its formula."""
    permitted(lambda: [formula()], dtype).require([actual])


DTYPES = pytest.mark.parametrize("dtype", list(CONTRACTS), ids=lambda d: str(d).removeprefix("torch."))


@DTYPES
def test_rms_norm(dtype: torch.dtype) -> None:
    check(
        lambda x, w: torch_npu.npu_rms_norm(x, w, epsilon=1e-6)[0],
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        (2, 5, 16),
        (16,),
        dtype=dtype,
    )


@DTYPES
@pytest.mark.parametrize("dim", [-1, 1])
def test_swiglu(dtype: torch.dtype, dim: int) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim)
        return functional.silu(gate) * up

    check(lambda x: torch_npu.npu_swiglu(x, dim=dim), reference, (2, 6, 16), dtype=dtype)


def turned(x: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "half":
        low, high = x.chunk(2, -1)
        return torch.cat([-high, low], -1)
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


@DTYPES
@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary(dtype: torch.dtype, mode: str) -> None:
    check(
        lambda x, c, s: torch_npu.npu_rotary_mul(x, c, s, mode),
        lambda x, c, s: x * c + turned(x, mode) * s,
        (2, 3, 5, 16),
        (1, 1, 5, 16),
        (1, 1, 5, 16),
        dtype=dtype,
    )


@DTYPES
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(dtype: torch.dtype, reduction: str) -> None:
    target = torch.tensor([0, 3, -100, 10, 2, 2])
    check(
        lambda x: torch_npu.npu_cross_entropy_loss(x, target.npu(), reduction=reduction)[0],
        lambda x: functional.cross_entropy(x, target, reduction=reduction),
        (6, 11),
        dtype=dtype,
    )


def test_cross_entropy_with_class_weights() -> None:
    target = torch.tensor([0, 3, 1, 10, 2, 2])
    weight = torch.linspace(0.5, 2.0, 11, dtype=torch.float64)
    check(
        lambda x: torch_npu.npu_cross_entropy_loss(x, target.npu(), weight.npu())[0],
        lambda x: functional.cross_entropy(x, target, weight),
        (6, 11),
        dtype=torch.float64,
    )


@DTYPES
@pytest.mark.parametrize("name", ["npu_silu", "npu_gelu", "npu_fast_gelu"])
def test_activation(dtype: torch.dtype, name: str) -> None:
    reference = {
        "npu_silu": functional.silu,
        "npu_gelu": functional.gelu,
        "npu_fast_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    }[name]
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "AutogradPrivateUse1"):
        x = torch.randn(3, 7, generator=torch.Generator().manual_seed(11)).to(dtype)
        close(getattr(torch_npu, name)(x.npu()), lambda: reference(x.double()), dtype)
        pytest.skip(f"its values are correct; torch_npu {torch_npu.__version__} has no backward for {name}")
    check(getattr(torch_npu, name), reference, (3, 7), dtype=dtype)


@DTYPES
def test_scaled_masked_softmax(dtype: torch.dtype) -> None:
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1).expand(2, 3, 6, 6).contiguous()
    check(
        lambda x: torch_npu.npu_scaled_masked_softmax(x, mask.npu(), 0.5, False),
        lambda x: torch.softmax((x * 0.5).masked_fill(mask, float("-inf")), -1),
        (2, 3, 6, 6),
        dtype=dtype,
    )


BATCH, QUERY_HEADS, KEY_HEADS, LENGTH, SIZE = 2, 4, 2, 6, 8
SCALE = 1 / math.sqrt(SIZE)
KEYS = LENGTH + 2
TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
# The mask that the compressed modes with a prefix take.
PREFIX = torch.cat([TRIANGLE, (torch.arange(2048) >= 1024).expand(1024, 2048)])
# The last key that a query sees, and the keys.
LAST, COLUMNS = torch.arange(LENGTH)[:, None] + KEYS - LENGTH, torch.arange(KEYS)[None, :]

# layout -> a function from (B, N, S, D) to the shape in this layout, and one that converts a tensor to (B, N, S, D)
LAYOUTS: dict[str, tuple[Callable[..., tuple[int, ...]], Callable[..., torch.Tensor]]] = {
    "BNSD": (lambda b, n, s, d: (b, n, s, d), lambda x, _n: x),
    "BSND": (lambda b, n, s, d: (b, s, n, d), lambda x, _n: x.transpose(1, 2)),
    "BSH": (lambda b, n, s, d: (b, s, n * d), lambda x, n: x.unflatten(-1, (n, -1)).transpose(1, 2)),
    "SBH": (lambda b, n, s, d: (s, b, n * d), lambda x, n: x.unflatten(-1, (n, -1)).permute(1, 2, 0, 3)),
}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    repeat = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(repeat, 1).transpose(-1, -2) * SCALE
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1) @ v.repeat_interleave(repeat, 1)


@DTYPES
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key_heads", [QUERY_HEADS, KEY_HEADS], ids=["mha", "gqa"])
@pytest.mark.parametrize("masking", ["none", "mask", "window", "left_up", "right_down", "band", "prefix"])
def test_fusion_attention(dtype: torch.dtype, layout: str, key_heads: int, masking: str) -> None:
    shape, back = LAYOUTS[layout]
    keys = KEYS
    hidden, options = {
        "none": (None, {}),
        "mask": (
            torch.ones(LENGTH, keys, dtype=torch.bool).triu(2),
            {"atten_mask": torch.ones(LENGTH, keys, dtype=torch.bool).triu(2), "sparse_mode": 1},
        ),
        "window": (
            torch.ones(LENGTH, keys, dtype=torch.bool).triu(1),
            {"atten_mask": torch.zeros(LENGTH, keys, dtype=torch.bool), "next_tockens": 0},
        ),
        "left_up": (
            torch.ones(LENGTH, keys, dtype=torch.bool).triu(1),
            {"atten_mask": TRIANGLE, "sparse_mode": 2},
        ),
        "right_down": (LAST < COLUMNS, {"atten_mask": TRIANGLE, "sparse_mode": 3}),
        "band": (
            (LAST + 1 < COLUMNS) | (LAST - 2 > COLUMNS),
            {"atten_mask": TRIANGLE, "sparse_mode": 4, "pre_tockens": 2, "next_tockens": 1},
        ),
        "prefix": (
            (LAST < COLUMNS) & (torch.tensor([3, 7]).view(2, 1, 1, 1) <= COLUMNS),
            {"atten_mask": PREFIX, "sparse_mode": 6, "prefix": [3, 7]},
        ),
    }[masking]
    on_device = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in options.items()}

    def operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_fusion_attention(q, k, v, QUERY_HEADS, layout, scale=SCALE, **on_device)[0]

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = attention(back(q, QUERY_HEADS), back(k, key_heads), back(v, key_heads), hidden)
        if layout == "BSND":
            return out.transpose(1, 2)
        if layout == "BSH":
            return out.transpose(1, 2).flatten(2)
        return out.permute(2, 0, 1, 3).flatten(2) if layout == "SBH" else out

    check(
        operator,
        reference,
        shape(BATCH, QUERY_HEADS, LENGTH, SIZE),
        shape(BATCH, key_heads, keys, SIZE),
        shape(BATCH, key_heads, keys, SIZE),
        dtype=dtype,
    )


@DTYPES
@pytest.mark.parametrize("sparse_mode", [0, 2, 3])
def test_fusion_attention_of_packed_sequences(dtype: torch.dtype, sparse_mode: int) -> None:
    query_ends, key_ends = [4, 10], [6, 12]

    def operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_fusion_attention(
            q,
            k,
            v,
            QUERY_HEADS,
            "TND",
            atten_mask=TRIANGLE.npu() if sparse_mode else None,
            sparse_mode=sparse_mode,
            scale=SCALE,
            actual_seq_qlen=query_ends,
            actual_seq_kvlen=key_ends,
        )[0]

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = []
        starts = zip([0, *query_ends], [0, *key_ends], query_ends, key_ends, strict=False)
        for start, key_start, end, key_end in starts:
            queries, keys = end - start, key_end - key_start
            shift = {0: None, 2: 1, 3: 1 + keys - queries}[sparse_mode]
            hidden = None if shift is None else torch.ones(queries, keys, dtype=torch.bool).triu(shift)
            heads_q, heads_k, heads_v = (
                x[a:b].transpose(0, 1)[None]
                for x, a, b in ((q, start, end), (k, key_start, key_end), (v, key_start, key_end))
            )
            parts.append(attention(heads_q, heads_k, heads_v, hidden)[0].transpose(0, 1))
        return torch.cat(parts)

    check(
        operator,
        reference,
        (10, QUERY_HEADS, SIZE),
        (12, KEY_HEADS, SIZE),
        (12, KEY_HEADS, SIZE),
        dtype=dtype,
    )


def test_a_row_that_sees_nothing_is_zero() -> None:
    q = torch.randn(1, 1, 2, 4, device="npu:0", requires_grad=True)
    hidden = torch.tensor([[True, True], [False, False]]).npu()
    out = torch_npu.npu_fusion_attention(q, q, q, 1, "BNSD", atten_mask=hidden, sparse_mode=1, scale=1.0)[0]
    out.sum().backward()
    assert not out[0, 0, 0].any()
    assert q.grad is not None
    assert bool(torch.isfinite(q.grad).all())


@pytest.mark.parametrize(
    ("option", "value", "refused"),
    [
        ("pse", torch.ones(1, 1, 5, 2), "compressed pse"),
        ("padding_mask", torch.ones(1), "padding_mask"),
    ],
    ids=["pse", "padding_mask"],
)
def test_attention_that_is_not_computed_is_refused_by_name(
    option: str, value: torch.Tensor, refused: str
) -> None:
    q = torch.randn(1, 1, 2, 4, device="npu:0")
    with pytest.raises(NotImplementedError, match=f"npu_fusion_attention with {refused}"):
        torch_npu.npu_fusion_attention(q, q, q, 1, "BNSD", scale=1.0, **{option: value.to(q.device)})


def test_a_mode_without_its_mask_hides_nothing() -> None:
    """As the documentation of npu_fusion_attention says; a program that forgets the mask is not causal."""
    q = torch.randn(1, 1, 3, 4)
    found = torch_npu.npu_fusion_attention(*[q.npu()] * 3, 1, "BNSD", scale=SCALE, sparse_mode=3)[0]
    torch.testing.assert_close(found.cpu(), attention(q, q, q, None))


@pytest.mark.parametrize("softmax_layout", ["", "TND"])
def test_statistics_of_packed_sequences(softmax_layout: str) -> None:
    """By default those of a sequence are ordered by heads, as MindSpeed's flatten_softmax reads them."""
    if "softmax_layout" not in str(torch.ops.npu.npu_fusion_attention.default._schema):
        pytest.skip("this torch_npu has no softmax_layout")
    ends, lengths, heads = [2, 2, 5], [2, 0, 3], 2
    q = torch.randn(5, heads, 4)
    _out, largest, total, *_rest = torch_npu.npu_fusion_attention(
        *[q.npu()] * 3,
        heads,
        "TND",
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        softmax_layout=softmax_layout,
    )
    for statistic, reduce in (
        (largest, torch.amax),
        (total, lambda x, dim: (x - x.amax(dim, True)).exp().sum(dim)),
    ):
        expected = []
        for part in q.split(lengths):
            scores = torch.einsum("snd,tnd->nst", part, part)
            rows = reduce(scores, -1) if part.shape[0] else torch.zeros(heads, 0)
            expected.append(rows.T if softmax_layout else rows.reshape(part.shape[0], heads))
        assert statistic.shape == (5, heads, 8)
        torch.testing.assert_close(statistic.cpu(), torch.cat(expected)[..., None].expand(5, heads, 8))


def test_tensors_of_lengths_and_seeds() -> None:
    """`_v3` takes lengths as tensors of the host; seed and offset of its dropout are there too."""
    if not hasattr(torch.ops.npu, "npu_fusion_attention_v3"):
        pytest.skip("this torch_npu has no npu_fusion_attention_v3")
    q = torch.randn(5, 2, 4)
    torch.npu.manual_seed(7)
    earlier = torch_npu.npu_fusion_attention(
        *[q.npu()] * 3, 2, "TND", keep_prob=0.5, actual_seq_qlen=[2, 5], actual_seq_kvlen=[2, 5]
    )
    torch.npu.manual_seed(7)
    ends = torch.tensor([2, 5])
    found = torch.ops.npu.npu_fusion_attention_v3(
        *[q.npu()] * 3, 2, "TND", keep_prob=0.5, actual_seq_qlen=ends, actual_seq_kvlen=ends
    )
    torch.testing.assert_close(found[0].cpu(), earlier[0].cpu())
    assert [x.item() for x in found[4:]] == [7, 0] == list(earlier[4:6])
    assert not any(x.device.type == "npu" for x in found[4:])


@pytest.mark.parametrize("kind", ["ends", "counts"])
def test_grouped_matmul_and_its_gradients(kind: str) -> None:
    """As verl's MoE layers use it: groups of rows forward, groups of the summed dimension backward."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    w = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    ends = [2, 2, 6]
    groups = torch.tensor(ends if kind == "ends" else [2, 0, 4]).npu()
    options = {"group_list": groups, "group_list_type": 0 if kind == "ends" else 1}
    out = torch_npu.npu_grouped_matmul([x.npu()], [w.npu()], split_item=2, group_type=0, **options)[0]
    close(out, lambda: torch.cat([x[:2] @ w[0], x[2:] @ w[2]]), torch.float64)
    grad = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    for_weights = torch_npu.npu_grouped_matmul(
        [x.npu().T], [grad.npu()], split_item=3, group_type=2, **options
    )[0]
    nothing = torch.zeros(4, 5, dtype=torch.float64)
    close(for_weights, lambda: torch.stack([x[:2].T @ grad[:2], nothing, x[2:].T @ grad[2:]]), torch.float64)


def test_grouped_matmul_of_lists() -> None:
    x = [torch.randn(n, 4) for n in (2, 3)]
    w = [torch.randn(4, 5) for _ in x]
    out = torch_npu.npu_grouped_matmul([a.npu() for a in x], [a.npu() for a in w], group_type=-1)
    for actual, left, right in zip(out, x, w, strict=True):
        close(actual, functools.partial(torch.matmul, left.double(), right.double()), torch.float32)


@DTYPES
@pytest.mark.parametrize("weighted", [False, True])
def test_experts_round_trip(dtype: torch.dtype, weighted: bool) -> None:
    experts = torch.tensor([[2, 0], [1, 2], [0, 1], [2, 1]])
    if not weighted:
        experts = experts[:, 0].contiguous()

    def operator(tokens: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        permuted, rows = torch_npu.npu_moe_token_permute(tokens, experts.npu())
        scaled = permuted * torch.arange(1, permuted.shape[0] + 1).npu()[:, None].to(permuted.dtype)
        out = torch_npu.npu_moe_token_unpermute(scaled, rows, probs if weighted else None)
        return out + 0 * probs.sum()

    def reference(tokens: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        flat = experts.reshape(-1)
        order = torch.argsort(flat, stable=True)
        per_token = flat.numel() // tokens.shape[0]
        scaled = tokens[order // per_token] * torch.arange(1, flat.numel() + 1)[:, None]
        restored = torch.empty_like(scaled).index_copy(0, order, scaled)
        restored = restored.view(tokens.shape[0], per_token, -1)
        weights = probs[..., None] if weighted else 1.0
        return (restored * weights).sum(1) + 0 * probs.sum()

    check(operator, reference, (4, 8), (4, 2), dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float64, 1 + 1e-13), (torch.float32, 1 + 1e-4), (torch.bfloat16, 1.1)]
)
@pytest.mark.parametrize("operator", ["npu_rms_norm", "npu_rms_norm_backward"])
def test_what_no_rounding_explains_is_red(dtype: torch.dtype, factor: float, operator: str) -> None:
    simulation = overlay.installed()
    with (
        simulation.faults.injected(FaultSpec(op=operator, kind="scale", factor=factor)) as (fault,),
        pytest.raises(AssertionError, match=f"off by more than {dtype} permits"),
    ):
        test_rms_norm(dtype)
    assert fault.hits


def test_casts() -> None:
    x = torch.randn(3, device="npu:0", requires_grad=True)
    y = torch_npu.npu_dtype_cast(x, torch.bfloat16)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    assert torch.equal(torch_npu.npu_format_cast(x, 29).cpu(), x.detach().cpu())


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3, 4), (4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 6))],
)
def test_matmul_in_every_shape(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check(torch.matmul, torch.matmul, left, right, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layer_norm_of_half_precision_keeps_its_statistics_in_fp32(dtype: torch.dtype) -> None:
    """Also the gradients of its factors, which a CPU computes with an error of a percent."""
    drawn = torch.Generator().manual_seed(5)
    x, dy = (1 + 99 * torch.rand(300, 12, generator=drawn)).to(dtype), torch.ones(300, 12, dtype=dtype)
    weight = torch.ones(12)
    out, mean, rstd = torch.ops.aten.native_layer_norm(x.npu(), [12], weight.npu(), weight.npu(), 1e-5)
    exact = x.double()
    normal = (exact - exact.mean(-1, True)) / (exact.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    assert out.dtype == dtype
    assert mean.dtype == rstd.dtype == torch.float32
    given = dy.npu(), x.npu(), [12], mean, rstd, weight.npu(), weight.npu(), [True, True, False]
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(*given)
    assert dx.dtype == dtype
    assert dbias is None
    torch.testing.assert_close(dweight.cpu().double(), normal.sum(0), rtol=1e-5, atol=1e-3)


def test_gradients_of_gamma_are_in_fp32() -> None:
    """As op-plugin allocates them."""
    x, gamma = torch.ones(2, 4, dtype=torch.bfloat16).npu(), torch.ones(4, dtype=torch.bfloat16).npu()
    _out, rstd = torch_npu.npu_rms_norm(x, gamma)
    assert torch.ops.npu.npu_rms_norm_backward(x, x, gamma, rstd)[1].dtype == torch.float32


def test_padding_of_the_first_dimensions_leaves_the_others() -> None:
    x = torch.ones(2, 3)
    torch.testing.assert_close(
        torch_npu.npu_pad(x.npu(), [1, 0]).cpu(), torch.tensor([[0.0] * 3] + [[1.0] * 3] * 2)
    )
