"""Formulas in float64 for operators of MoE layers, latent and linear attention: see `test_sim_references`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from drawn_inputs import Drawn, Pairs
from torch.nn import functional

npu: Any = torch.ops.npu
EXPERTS, TOKENS, CHOSEN, WIDTH = 4, 5, 2, 3


def _map(drawn: Drawn) -> torch.Tensor:
    """(tokens, experts): each token has `CHOSEN` experts."""
    return torch.stack([drawn.order(EXPERTS) < CHOSEN for _ in range(TOKENS)])


def _places(chosen: torch.Tensor, capacity: int) -> list[tuple[int, int]]:
    """(token, expert) of each row: sorted by expert; with a capacity, each expert has so many, its own first."""
    rows = []
    for expert in range(EXPERTS):
        own = [token for token in range(TOKENS) if chosen[token, expert]]
        others = [token for token in range(TOKENS) if not chosen[token, expert]]
        rows += [(token, expert) for token in ((own + others)[:capacity] if capacity else own)]
    return rows


def _routing_map(drawn: Drawn, *, capacity: int, weighted: bool) -> Pairs:
    """Permute, scale each row by itself, unpermute: values and the gradients of tokens and probabilities."""
    x, probs, scale = drawn.normal(TOKENS, WIDTH), drawn.rand(TOKENS, EXPERTS), drawn.normal(1)
    chosen = _map(drawn)
    places = _places(chosen, capacity)
    tokens, experts = (torch.tensor(one) for one in zip(*places, strict=True))

    def formula(x: torch.Tensor, probs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x[tokens]
        weights = probs[tokens, experts]
        copies = (rows * rows * scale) * (weights[:, None] if weighted else 1)
        return rows, weights, torch.zeros_like(x).index_add(0, tokens, copies)

    def device(x: torch.Tensor, probs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        options = {"num_out_tokens": len(places), "drop_and_pad": bool(capacity)}
        placed = chosen.to(torch.int8).npu()
        rows, weights, index = npu.npu_moe_token_permute_with_routing_map(x, placed, probs=probs, **options)
        back = npu.npu_moe_token_unpermute_with_routing_map(
            rows * rows * drawn.placed(scale),
            index,
            [TOKENS, WIDTH],
            probs=probs if weighted else None,
            routing_map=placed,
            drop_and_pad=bool(capacity),
        )
        return rows, weights, back

    yield from _with_gradients(drawn, device, formula, x, probs)


def _with_gradients(
    drawn: Drawn,
    device: Callable[..., tuple[torch.Tensor, ...]],
    formula: Callable[..., tuple[torch.Tensor, ...]],
    *inputs: torch.Tensor,
) -> Pairs:
    leaves = [x.clone().requires_grad_() for x in inputs]
    placed = [drawn.placed(x).requires_grad_() for x in inputs]
    expected, found = formula(*leaves), device(*placed)
    weights = [drawn.normal(*one.shape) for one in expected]
    for one, other in zip(found, expected, strict=True):
        yield one.detach(), other.detach()
    of_device = torch.autograd.grad(found, placed, [drawn.placed(one) for one in weights])
    yield from zip(of_device, torch.autograd.grad(expected, leaves, weights), strict=True)


def _accumulated(drawn: Drawn) -> Pairs:
    counts = [drawn.size(0, 4), drawn.size(1, 4)]
    total = drawn.normal(2, 3, 4)
    x, y = drawn.normal(sum(counts), 3), drawn.normal(sum(counts), 4)
    lefts, rights = x.split(counts), y.split(counts)
    expected = total + torch.stack([left.T @ right for left, right in zip(lefts, rights, strict=True)])
    ends = torch.tensor(counts).cumsum(0).npu()
    # The sum is in fp32, whatever the inputs are.
    sums = [total.float().npu(), total.float().npu().reshape(6, 4)]
    npu.npu_grouped_matmul_add_(sums[0], drawn.placed(x), drawn.placed(y), ends)
    yield sums[0], expected
    yield npu.npu_grouped_matmul_add(sums[1], drawn.placed(x), drawn.placed(y), ends), expected.reshape(6, 4)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def _delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor, *gates: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """S_t = S_{t-1} a_t (I - b_t k_t k_t^T) + b_t v_t k_t^T and o_t = S_t q_t of one sequence and head."""
    outputs, states = [], []
    identity = torch.eye(k.shape[-1], dtype=torch.float64)
    for key, query, value, beta, log_decay in zip(k, q, v, *gates, strict=True):
        kept = identity - beta * torch.outer(key, key)
        state = log_decay.exp() * state @ kept + beta * torch.outer(value, key)
        outputs.append(state @ query)
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def _linear_attention(drawn: Drawn, *, chunked: bool) -> Pairs:
    lengths, kept = [drawn.size(1, 3), drawn.size(1, 3)], 2
    total, heads, key_heads, width, inner = sum(lengths), 4, 2, 3, 5
    q, k = (_unit(drawn.normal(total, key_heads, inner)).to(drawn.dtype).double() for _ in range(2))
    v, beta, g = drawn.normal(total, heads, width), drawn.rand(total, heads), -drawn.rand(total, heads)
    state = drawn.normal(2 if chunked else total + 1, heads, width, inner)
    blocks = drawn.order(total + 1)[:total]
    starts = [0, lengths[0]]
    accepted = [min(kept, length) for length in lengths]
    outputs, after = torch.zeros_like(v), state.clone()
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        first = number if chunked else blocks[start + accepted[number] - 1]
        rows = slice(start, start + length)
        for head in range(heads):
            shared = head // (heads // key_heads)
            out, states = _delta_rule(
                *(one[rows, shared] for one in (q, k)),
                v[rows, head],
                state[first, head],
                *(one[rows, head] for one in (beta, g)),
            )
            outputs[rows, head] = out * 0.5
            after[number if chunked else blocks[rows], head] = states[-1] if chunked else states
    placed = [drawn.placed(one) for one in (q, k, v)]
    options = {
        "beta": drawn.placed(beta),
        "g": drawn.placed(g),
        "scale": 0.5,
        "actual_seq_lengths": torch.tensor(lengths, dtype=torch.int32).npu(),
    }
    if chunked:
        found = npu.npu_chunk_gated_delta_rule(*placed, initial_state=drawn.placed(state), **options)
        yield from zip(found, (outputs, after), strict=True)
        return
    options["ssm_state_indices"] = blocks.to(torch.int32).npu()
    options["num_accepted_tokens"] = torch.tensor(accepted, dtype=torch.int32).npu()
    written = drawn.placed(state)
    found = npu.npu_recurrent_gated_delta_rule_functional(*placed, written, **options)
    yield from zip(found, (outputs, after), strict=True)
    yield npu.npu_recurrent_gated_delta_rule(*placed, written, **options), outputs
    yield written, after


def _attention_with_dropout(drawn: Drawn) -> Pairs:
    if "dropout_mask" not in str(torch.ops.npu.npu_fusion_attention_v2.default._schema):
        pytest.skip("this torch_npu takes no mask of dropout")
    shape, heads, kept_share, seed = (2, 16, 6), 2, 0.75, drawn.size(1, 99)
    inputs = [drawn.normal(*shape) for _ in range(3)]
    mask = npu._npu_dropout_gen_mask(
        drawn.placed(inputs[0]), [2, heads, 16, 16], p=1 - kept_share, seed=seed, offset=3
    )
    places = 2 ** torch.arange(8)
    kept = (mask.cpu().long()[:, None] & places).bool().reshape(-1)[: 2 * heads * 16 * 16]
    kept = kept.reshape(2, heads, 16, 16)

    def formula(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in inputs)
        probabilities = torch.softmax(0.5 * q @ k.transpose(-1, -2), -1) * kept / kept_share
        return ((probabilities @ v).transpose(1, 2).flatten(2),)

    def device(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        options = {"scale": 0.5, "keep_prob": kept_share, "dropout_mask": mask, "seed": seed, "offset": 3}
        return npu.npu_fusion_attention_v2(*inputs, heads, "BSH", **options)[:1]

    yield from _with_gradients(drawn, device, formula, *inputs)


def _attention_that_draws_dropout(drawn: Drawn) -> Pairs:
    heads, kept_share, seed, lengths = 2, 0.75, drawn.size(1, 99), [drawn.size(1, 9), drawn.size(4, 9)]
    ends = [lengths[0], sum(lengths)]
    inputs = [drawn.normal(ends[-1], heads, 6) for _ in range(3)]
    count = heads * sum(length * length for length in lengths)
    mask = npu._npu_dropout_gen_mask(drawn.placed(inputs[0]), [count], p=1 - kept_share, seed=seed, offset=0)
    places = 2 ** torch.arange(8)
    kept = (mask.cpu().long()[:, None] & places).bool().reshape(-1)[:count]

    def formula(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = []
        for *parts, share in zip(
            *(x.split(lengths) for x in inputs), kept.split([heads * x * x for x in lengths]), strict=True
        ):
            q, k, v = (x.transpose(0, 1) for x in parts)
            probabilities = torch.softmax(0.5 * q @ k.transpose(-1, -2), -1)
            probabilities = probabilities * share.view(probabilities.shape) / kept_share
            outputs.append((probabilities @ v).transpose(0, 1))
        return (torch.cat(outputs),)

    def device(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.npu.manual_seed(seed)
        options = {"scale": 0.5, "keep_prob": kept_share, "actual_seq_qlen": ends, "actual_seq_kvlen": ends}
        return npu.npu_fusion_attention(*inputs, heads, "TND", **options)[:1]

    yield from _with_gradients(drawn, device, formula, *inputs)


def _attention_with_positions(drawn: Drawn, *, pse_type: int) -> Pairs:
    """Positions are added to the scores before these are scaled (type 1) or afterwards (0)."""
    heads, rows, keys = 2, 4, 5
    q, k, v = (
        drawn.normal(2, heads, rows, 6),
        drawn.normal(2, heads, keys, 6),
        drawn.normal(2, heads, keys, 6),
    )
    positions = drawn.normal(2, heads, rows, keys)

    def formula(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, pse = inputs
        scores = q @ k.transpose(-1, -2)
        scores = 0.5 * (scores + pse) if pse_type else 0.5 * scores + pse
        return (torch.softmax(scores, -1) @ v,)

    def device(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, pse = inputs
        return npu.npu_fusion_attention_v2(q, k, v, heads, "BNSD", pse=pse, pse_type=pse_type, scale=0.5)[:1]

    yield from _with_gradients(drawn, device, formula, q, k, v, positions)


def _attention_with_sinks(drawn: Drawn) -> Pairs:
    """Each head has one more score in its softmax, which has no value."""
    heads, rows, keys = 2, 4, 5
    q, k, v = (
        drawn.normal(2, heads, rows, 6),
        drawn.normal(2, heads, keys, 6),
        drawn.normal(2, heads, keys, 6),
    )

    def formula(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, sink = inputs
        scores = 0.5 * q @ k.transpose(-1, -2)
        scores = torch.cat([scores, sink.view(1, heads, 1, 1).expand(2, heads, rows, 1)], -1)
        return (torch.softmax(scores, -1)[..., :-1] @ v,)

    def device(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, sink = inputs
        return torch.ops.npu.npu_fusion_attention_v3(q, k, v, heads, "BNSD", scale=0.5, sink=sink)[:1]

    yield from _with_gradients(drawn, device, formula, q, k, v, drawn.normal(heads))


def _attention_to_selected_blocks(drawn: Drawn) -> Pairs:
    """Two sequences, each token with blocks of its own; the last block of the second sequence is not whole."""
    heads, groups, size, count = 4, 2, 3, 2
    query_ends, key_ends = [2, 5], [9, 17]
    q, k, v = drawn.normal(5, heads, 6), drawn.normal(17, groups, 6), drawn.normal(17, groups, 4)
    blocks = torch.stack([torch.stack([drawn.order(3)[:count] for _ in range(groups)]) for _ in range(5)])

    def formula(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = []
        for token in range(5):
            first, last = (0, 9) if token < 2 else (9, 17)
            for head in range(heads):
                group = head // (heads // groups)
                taken = [
                    place
                    for block in blocks[token, group].tolist()
                    for place in range(first + size * block, min(first + size * block + size, last))
                ]
                keys, values = inputs[1][taken, group], inputs[2][taken, group]
                rows.append(torch.softmax(0.5 * keys @ inputs[0][token, head], -1) @ values)
        return (torch.stack(rows).view(5, heads, 4),)

    def device(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        selected = blocks.to(torch.int32).npu()
        ends = {"actual_seq_qlen": query_ends, "actual_seq_kvlen": key_ends}
        results = npu.npu_nsa_select_attention(*inputs, selected, 0.5, heads, size, count, **ends)
        return results[:1]

    yield from _with_gradients(drawn, device, formula, q, k, v)


def _ring_update(drawn: Drawn) -> Pairs:
    """Attention over all keys equals the update of that over each half of them."""
    heads, lengths = 2, [drawn.size(1, 5), drawn.size(1, 5)]
    ends = [lengths[0], sum(lengths)]
    q, k, v = (drawn.normal(ends[-1], heads, 6) for _ in range(3))
    halves = [(drawn.normal(*k.shape), drawn.normal(*v.shape)), (k, v)]
    found = []
    for keys, values in halves:
        placed = [drawn.placed(x) for x in (q, keys, values)]
        packed = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends}
        out, largest, total, *_rest = npu.npu_fusion_attention(*placed, heads, "TND", scale=0.5, **packed)
        found += [out, largest, total]
    bounds = torch.tensor([0, *ends]).npu()
    updated = npu.npu_ring_attention_update(*found, actual_seq_qlen=bounds, input_layout="TND")[0]
    expected = []
    for parts in zip(q.split(lengths), *(x.split(lengths) for half in halves for x in half), strict=True):
        query, k1, v1, k2, v2 = (x.transpose(0, 1) for x in parts)
        scores = 0.5 * query @ torch.cat([k1, k2], 1).transpose(-1, -2)
        expected.append((torch.softmax(scores, -1) @ torch.cat([v1, v2], 1)).transpose(0, 1))
    yield updated, torch.cat(expected)


def _latent_attention(drawn: Drawn) -> Pairs:
    heads, key_width, width, block = 4, 6, 4, 2
    lengths = [drawn.size(1, 6), drawn.size(1, 6)]
    q, cache = drawn.normal(2, heads, key_width), drawn.normal(7, block, 1, key_width)
    table = drawn.order(7)[:6].reshape(2, 3)
    found = drawn.placed(torch.zeros(2, heads, width))
    torch.ops.atb._npu_paged_attention_mla(
        *(drawn.placed(q), drawn.placed(cache), 1, heads, 0.5),
        *(table.to(torch.int32).npu(), torch.tensor(lengths, dtype=torch.int32), width, found),
    )
    expected = []
    for query, blocks, length in zip(q, table, lengths, strict=True):
        keys = cache[blocks].reshape(-1, key_width)[:length]
        expected.append(torch.softmax(0.5 * query @ keys.T, -1) @ keys[:, :width])
    yield found, torch.stack(expected)


def _split_vocabulary(drawn: Drawn, *, keeps_logits: bool) -> Pairs:
    """The loss of a vocabulary that two ranks share, and its gradients, from what each rank computes."""
    tokens, hidden, own = 11, 6, 5
    x, weight, dy = drawn.normal(tokens, hidden), drawn.normal(2 * own, hidden), drawn.rand(tokens)
    target = drawn.order(2 * own)[torch.arange(tokens) % (2 * own)]
    leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    loss = functional.cross_entropy(leaves[0] @ leaves[1].T, target, reduction="none")
    grads = torch.autograd.grad(loss, leaves, dy)
    placed, labels = drawn.placed(x), target.npu()
    parts = [drawn.placed(part) for part in weight.chunk(2)]
    found = [
        npu.npu_fused_linear_online_max_sum(
            placed, part, labels, own * rank, own * (rank + 1) - 1, keeps_logits
        )
        for rank, part in enumerate(parts)
    ]
    largest = torch.maximum(found[0][0], found[1][0])
    shares = [(part[0] - largest).exp() for part in found]
    total = sum(part[1] * share for part, share in zip(found, shares, strict=True))
    predicted = sum(
        torch.where((labels // own) == rank, part[2] + part[0] - largest, 0)
        for rank, part in enumerate(found)
    )
    for rank, (part, own_weight) in enumerate(zip(found, parts, strict=True)):
        logits = {"vocab_parallel_logits": part[5]} if keeps_logits else {}
        lost, softmax = npu.npu_fused_cross_entropy_loss_with_max_sum(largest, total, predicted, **logits)
        yield lost, loss.detach()
        given = {"softmax": softmax} if keeps_logits else {"logits_max": largest, "sum_exp_logits": total}
        dx, dweight = npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            drawn.placed(dy), placed, own_weight, part[3], part[4], **given
        )
        yield dweight, grads[1].chunk(2)[rank]
        by_logit = torch.softmax(x @ weight.T, -1) - functional.one_hot(target, 2 * own)
        yield dx, (by_logit * dy[:, None])[:, own * rank : own * (rank + 1)] @ weight.chunk(2)[rank]


_PERMUTE = (
    *("npu::npu_moe_token_permute_with_routing_map", "npu::npu_moe_token_permute_with_routing_map_grad"),
    *("npu::_npu_moe_token_unpermute_with_routing_map", "npu::npu_moe_token_unpermute_with_routing_map_grad"),
)
FP32, BOTH = (torch.float32,), (torch.float32, torch.bfloat16)


# Name -> operators, formula, and the dtypes. A routing round trip has intermediate results, which bf16 would round.
def _batch_statistics(drawn: Drawn) -> Pairs:
    """Sums of one device, and what three devices with other numbers of values make together."""
    parts = [drawn.normal(rows, 5, 2) for rows in (2, 3, 4)]
    found = npu.batch_norm_reduce(drawn.placed(parts[0]), 1e-5)
    yield found[0], parts[0].sum((0, 2))
    yield found[1], parts[0].square().sum((0, 2))
    whole, momentum, eps = torch.cat(parts), 0.3, 1e-3
    sums = torch.stack([one.sum((0, 2)) for one in parts])
    squares = torch.stack([one.square().sum((0, 2)) for one in parts])
    counts = torch.tensor([one.numel() / 5 for one in parts]).double()
    running = [drawn.normal(5), drawn.rand(5)]
    placed = [drawn.placed(one) for one in running]
    given = (drawn.placed(whole), drawn.placed(sums), drawn.placed(squares), *placed, momentum, eps)
    found = npu.batch_norm_gather_stats_update(*given, drawn.placed(counts))
    yield found[0], whole.mean((0, 2))
    yield found[1], (whole.var((0, 2), unbiased=False) + eps).rsqrt()
    news = (whole.mean((0, 2)), whole.var((0, 2), unbiased=False))
    for kept, before, new in zip(placed, running, news, strict=True):
        yield kept, (1 - momentum) * before + momentum * new


def _cell(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's own cell. weight: those of the input above those of the state, both transposed."""
    features = x.shape[-1]
    inputs, recurrent = weight[:features].T, weight[features:].T
    return torch.lstm_cell(x, (h, c), inputs, recurrent, bias, torch.zeros_like(bias))


def _recurrent(drawn: Drawn, *, packed: bool, reverse: bool) -> Pairs:
    """One layer of an LSTM. A packed sequence keeps its padding, in which y is 0 and the states stay."""
    steps, sequences, features, hidden = drawn.size(2, 4), 3, drawn.size(2, 4), drawn.size(3, 5)
    lengths = torch.tensor([steps, max(steps - 1, 1), 1]) if packed else torch.full((3,), steps)
    valid = torch.arange(steps).view(-1, 1, 1) < lengths.view(1, -1, 1)
    mask = valid.expand(steps, sequences, hidden).half()
    options: tuple[Any, ...] = (True, 1, 0.0, True, False, False, packed, reverse)

    def formula(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        outputs, state, memory = {}, h[0], c[0]
        for step in reversed(range(steps)) if reverse else range(steps):
            new, cell = _cell(x[step], weight, bias, state, memory)
            outputs[step] = torch.where(valid[step], new, 0)
            state, memory = torch.where(valid[step], new, state), torch.where(valid[step], cell, memory)
        y = torch.stack([outputs[step] for step in range(steps)])
        return (y,) if reverse else (y, state, memory)

    def device(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        given = (weight, bias, drawn.placed(mask), h, c, *options)
        if packed:
            y, states, cells, *_ = npu.npu_lstm_data(x, valid.sum(1).flatten(), *given)
        else:
            y, states, cells, *_ = npu.npu_lstm(x, *given)
        return (y,) if reverse else (y, states[-1], cells[-1])

    shapes = (
        (steps, sequences, features),
        (features + hidden, 4 * hidden),
        (4 * hidden,),
        *((1, sequences, hidden),) * 2,
    )
    yield from _with_gradients(drawn, device, formula, *(drawn.normal(*shape) for shape in shapes))


def _recurrent_cell(drawn: Drawn) -> Pairs:
    sequences, features, hidden = drawn.size(2, 4), drawn.size(2, 4), drawn.size(3, 5)

    def formula(
        x: torch.Tensor,
        inputs: torch.Tensor,
        recurrent: torch.Tensor,
        h: torch.Tensor,
        c: torch.Tensor,
        *b: Any,
    ) -> tuple[torch.Tensor, ...]:
        state, cell = torch.lstm_cell(x, (h, c), inputs.T, recurrent.T, *b)
        return state[None], state, cell

    def device(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(npu.npu_lstm_cell(*given)[:3])

    shapes = (
        (sequences, features),
        (features, 4 * hidden),
        (hidden, 4 * hidden),
        *((sequences, hidden),) * 2,
        *((4 * hidden,),) * 2,
    )
    yield from _with_gradients(drawn, device, formula, *(drawn.normal(*shape) for shape in shapes))


def _softmax_with_dropout(drawn: Drawn) -> Pairs:
    """Without dropout, whose mask is random. The gradient of the second tensor is what torch_npu was given."""
    x, added = (drawn.normal(2, 3, 5) for _ in range(2))
    leaf, placed = x.clone().requires_grad_(), drawn.placed(x).requires_grad_()
    expected = torch.softmax(added + 0.5 * leaf, -1)
    mask, found, dropped = npu.npu_dropout_with_add_softmax(placed, drawn.placed(added), 0.5, 0.0, -1)
    yield mask, (torch.arange(128) < x.numel()).long()
    yield from ((one.detach(), expected.detach()) for one in (found, dropped))
    weights = drawn.normal(*x.shape)
    (of_device,) = torch.autograd.grad(dropped, placed, drawn.placed(weights))
    yield of_device, torch.autograd.grad(expected, leaf, weights)[0]


LAYERS: Mapping[str, tuple[tuple[str, ...], Callable[[Drawn], Pairs], tuple[torch.dtype, ...]]] = {
    "batch statistics": (
        ("npu::batch_norm_reduce", "npu::batch_norm_gather_stats_update"),
        _batch_statistics,
        FP32,
    ),
    **{
        f"routing map, capacity {capacity}, {'weighted' if weighted else 'not weighted'}": (
            _PERMUTE,
            partial(_routing_map, capacity=capacity, weighted=weighted),
            FP32,
        )
        for capacity in (0, 2)
        for weighted in (False, True)
    },
    **{
        f"loss of a split vocabulary, {'softmax' if keeps_logits else 'logits made anew'}": (
            (
                "npu::npu_fused_linear_online_max_sum",
                "npu::npu_fused_cross_entropy_loss_with_max_sum",
                "npu::npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
            ),
            partial(_split_vocabulary, keeps_logits=keeps_logits),
            FP32,
        )
        for keeps_logits in (False, True)
    },
    "accumulated gradients of experts": (
        ("npu::npu_grouped_matmul_add_", "npu::npu_grouped_matmul_add"),
        _accumulated,
        BOTH,
    ),
    "attention with dropout": (
        ("npu::npu_fusion_attention_v2", "npu::npu_fusion_attention_grad_v2"),
        _attention_with_dropout,
        FP32,
    ),
    "attention that draws its dropout": (
        ("npu::npu_fusion_attention", "npu::npu_fusion_attention_grad"),
        _attention_that_draws_dropout,
        FP32,
    ),
    **{
        f"attention with positions of type {pse_type}": (
            ("npu::npu_fusion_attention_v2", "npu::npu_fusion_attention_grad_v2"),
            partial(_attention_with_positions, pse_type=pse_type),
            FP32,
        )
        for pse_type in (0, 1)
    },
    "attention with sinks": (
        ("npu::npu_fusion_attention_v3", "npu::npu_fusion_attention_grad_v3"),
        _attention_with_sinks,
        FP32,
    ),
    "attention to selected blocks": (
        ("npu::npu_nsa_select_attention", "npu::npu_nsa_select_attention_grad"),
        _attention_to_selected_blocks,
        FP32,
    ),
    "ring attention": (("npu::npu_ring_attention_update",), _ring_update, FP32),
    "latent attention": (("atb::_npu_paged_attention_mla",), _latent_attention, BOTH),
    "gated delta rule": (
        ("npu::npu_recurrent_gated_delta_rule", "npu::npu_recurrent_gated_delta_rule_functional"),
        partial(_linear_attention, chunked=False),
        BOTH,
    ),
    "gated delta rule in chunks": (
        ("npu::npu_chunk_gated_delta_rule",),
        partial(_linear_attention, chunked=True),
        BOTH,
    ),
    **{
        f"recurrent layer, {'packed' if packed else 'dense'}{', backwards' if reverse else ''}": (
            ("npu::npu_lstm_data", "npu::npu_lstm_data_backward")
            if packed
            else ("npu::npu_lstm", "npu::npu_lstm_backward"),
            partial(_recurrent, packed=packed, reverse=reverse),
            FP32,
        )
        for packed, reverse in ((False, False), (True, False), (True, True))
    },
    "recurrent cell": (("npu::npu_lstm_cell", "npu::npu_lstm_cell_backward"), _recurrent_cell, FP32),
    "softmax of a sum with dropout": (
        ("npu::npu_dropout_with_add_softmax", "npu::npu_dropout_with_add_softmax_backward"),
        _softmax_with_dropout,
        FP32,
    ),
}
