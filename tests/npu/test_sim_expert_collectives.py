"""Operators that send tokens to the ranks of their experts, by two ranks: compared with loops over tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

torch_npu = pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from several_ranks import RANKS, results_of_ranks  # noqa: E402

pytestmark = pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device")

DISPATCHED = ("npu_moe_distribute_dispatch", "npu_moe_distribute_dispatch_v2")
COMBINED = ("npu_moe_distribute_combine", "npu_moe_distribute_combine_v2")
GROUPED = ("npu_alltoallv_gmm", "npu_gmm_alltoallv")
OPERATORS = (*DISPATCHED, *COMBINED, *GROUPED, "_npu_distribute_barrier")
TOKENS, WIDTH, EXPERTS, CHOICES, COLUMNS = 5, 32, 4, 3, 6
COPIES = EXPERTS + 1
"""The number of the expert that returns its token; the one before returns nothing."""
PROGRAM = f"""
import json, sys, torch, torch_npu, torch.distributed as dist
rank = int(sys.argv[1])
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=f"file://{{sys.argv[2]}}", rank=rank, world_size={RANKS})
name = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
generator = torch.Generator().manual_seed(5)
x = torch.randn({RANKS}, {TOKENS}, {WIDTH}, generator=generator).half()
ids = torch.stack([torch.stack([torch.randperm({EXPERTS}, generator=generator)[:{CHOICES}]
                   for _ in range({TOKENS})]) for _ in range({RANKS})]).int()
weights = torch.rand({RANKS}, {TOKENS}, {CHOICES}, generator=generator)
scales = torch.rand({EXPERTS} + 1, {WIDTH}, generator=generator) + 0.5
expert_weights = torch.randn({RANKS}, {EXPERTS} // {RANKS}, {WIDTH}, {COLUMNS}, generator=generator).half()
drawn = dict(x=x, ids=ids, weights=weights, scales=scales, expert_weights=expert_weights)
own = {{key: value[rank].npu() for key, value in drawn.items() if key != "scales"}}
where = (name, {RANKS}, rank, {EXPERTS})
found = {{}}
def there_and_back(key, version, x, ids, there={{}}, back={{}}, both={{}}):
    dispatch = getattr(torch_npu, "npu_moe_distribute_dispatch" + version)
    combine = getattr(torch_npu, "npu_moe_distribute_combine" + version)
    rows, row_scales, aid, numbers, counts, _, sent = dispatch(x, ids, *where, **there, **both)
    found[key + " rows"], found[key + " numbers"], found[key + " counts"] = rows, numbers, counts
    found[key + " row scales"], found[key + " sent weights"] = row_scales, sent
    if rows.dtype != torch.int8:
        found[key] = combine(rows * 2, ids, aid, counts, own["weights"], *where, **back, **both)
if hasattr(torch_npu, "npu_moe_distribute_combine"):
    there_and_back("first", "", own["x"], own["ids"])
    there_and_back("shared", "", own["x"], own["ids"], both=dict(shared_expert_rank_num=1))
    there_and_back("int8", "", own["x"], own["ids"], there=dict(quant_mode=2, scales=scales[1:].npu()))
if hasattr(torch_npu, "npu_moe_distribute_combine_v2"):
    there_and_back("second", "_v2", own["x"], own["ids"],
                   there=dict(expert_scales=own["weights"], expert_token_nums_type=0))
    few = own["x"][: {TOKENS} - 2 * rank], own["ids"][: {TOKENS} - 2 * rank]
    own["weights"] = own["weights"][: {TOKENS} - 2 * rank]
    there_and_back("uneven", "_v2", *few, both=dict(global_bs={TOKENS} * {RANKS}))
    mask = torch.arange({TOKENS} - 2 * rank).npu() < {TOKENS} - 3
    there_and_back("masked", "_v2", *few, both=dict(x_active_mask=mask, global_bs={TOKENS} * {RANKS}))
    named = few[1].clone()
    named[:, 0], named[:, 1] = {EXPERTS}, {COPIES}
    there_and_back("special", "_v2", few[0], named, back=dict(ori_x=few[0]),
                   both=dict(zero_expert_num=1, copy_expert_num=1, global_bs={TOKENS} * {RANKS}))
    if hasattr(torch_npu, "_npu_distribute_barrier"):
        found["barrier"] = torch_npu._npu_distribute_barrier(own["x"], name, {RANKS})
if hasattr(torch_npu, "npu_alltoallv_gmm"):
    order = [1, 2, 0, 2] if rank else [2, 0, 1, 2]
    arriving = [2, 0, 1, 2] if rank == 0 else [1, 2, 0, 2]
    counts = [[2, 0, 1, 2], [1, 2, 0, 2]]
    arriving = [n for one in counts for n in one[2 * rank : 2 * rank + 2]]
    found["gmm"], shared, found["gmm tokens"] = torch_npu.npu_alltoallv_gmm(
        own["x"], own["expert_weights"], name, {RANKS}, counts[rank], arriving, permute_out_flag=True)
    assert shared is None
    found["back"], found["back shared"] = torch_npu.npu_gmm_alltoallv(
        found["gmm"], own["expert_weights"].transpose(1, 2).contiguous(), name, {RANKS}, arriving, counts[rank],
        mm_x=own["x"], mm_weight=own["expert_weights"][0])
refused = []
for call in (
    lambda: torch_npu.npu_moe_distribute_dispatch(own["x"], own["ids"], name, 16, rank, 16),
    lambda: torch_npu.npu_moe_distribute_dispatch(own["x"], own["ids"], name, {RANKS}, rank, {EXPERTS} + 1),
):
    try:
        call()
    except Exception as error:
        refused.append(f"{{type(error).__name__}}: {{error}}")
print(json.dumps({{
    "found": {{key: value.double().cpu().tolist() for key, value in found.items()}},
    "drawn": {{key: value.double().tolist() for key, value in drawn.items()}}, "refused": refused}}))
"""


def _dispatched(
    drawn: dict[str, torch.Tensor], rank: int, shared: int, tokens: list[int]
) -> list[tuple[int, int, int, int]]:
    """(expert, rank, token, choice) of the rows that arrive at a rank; the shared expert is -1."""
    if rank < shared:
        return [(-1, source, token, -1) for source in range(RANKS) for token in range(tokens[source])]
    each = EXPERTS // (RANKS - shared)
    first = (rank - shared) * each
    return [
        (expert, source, token, drawn["ids"][source, token].tolist().index(expert))
        for expert in range(first, first + each)
        for source in range(RANKS)
        for token in range(tokens[source])
        if expert in drawn["ids"][source, token].tolist()
    ]


def _expected(drawn: dict[str, torch.Tensor], rank: int, has: set[str]) -> dict[str, torch.Tensor]:
    x, weights, expected = drawn["x"], drawn["weights"], {}
    uneven, masked = [TOKENS, TOKENS - 2], [TOKENS - 3] * RANKS
    for key, shared, tokens in (
        *(("first", 0, [TOKENS] * RANKS), ("shared", 1, [TOKENS] * RANKS), ("int8", 0, [TOKENS] * RANKS)),
        *(
            ("second", 0, [TOKENS] * RANKS),
            ("uneven", 0, uneven),
            ("masked", 0, masked),
            ("special", 0, uneven),
        ),
    ):
        if f"{key} rows" not in has:
            continue
        drawn_here = drawn
        if key == "special":
            ids = drawn["ids"].clone()
            ids[..., 0], ids[..., 1] = EXPERTS, COPIES
            drawn_here = {**drawn, "ids": ids}
        arrived = _dispatched(drawn_here, rank, shared, tokens)
        rows = torch.stack([x[source, token] for _, source, token, _ in arrived])
        if key == "int8":
            rows = rows * torch.stack([drawn["scales"][1 + expert] for expert, *_ in arrived])
            expected["int8 row scales"] = rows.abs().amax(1) / 127
            rows = (rows / expected["int8 row scales"][:, None]).round()
        expected[f"{key} rows"] = rows
        own = sorted({expert for expert, *_ in arrived}) if key in {"first", "shared", "int8"} else None
        numbers = torch.tensor([sum(one[0] == expert for one in arrived) for expert in own or ()])
        if own is not None:
            expected[f"{key} numbers"] = numbers
        if key == "second":
            expected["second sent weights"] = torch.stack([weights[s, t, c] for _, s, t, c in arrived])
        if key == "int8":
            continue
        total = torch.zeros(tokens[rank] if key != "masked" else uneven[rank], WIDTH, dtype=torch.float64)
        for token in range(tokens[rank]):
            here = x[rank, token]
            for choice, expert in enumerate(drawn_here["ids"][rank, token].tolist()):
                times = {EXPERTS: 0, COPIES: 1}.get(int(expert), 2)
                total[token] += times * weights[rank, token, choice] * here
            total[token] += 2 * here * (shared > 0)
        expected[key] = total
    if "barrier" in has:
        expected["barrier"] = x[rank]
    if "gmm" in has:
        expected |= _grouped(drawn, rank)
    return expected


def _grouped(drawn: dict[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    counts = ([2, 0, 1, 2], [1, 2, 0, 2])
    products, tokens, backs = {}, {}, {}
    for source, one in enumerate(counts):
        rows = drawn["x"][source].split(one)
        for expert, part in enumerate(rows):
            weight = drawn["expert_weights"][expert // 2, expert % 2]
            products[expert, source], tokens[expert, source] = part @ weight, part
            backs[expert, source] = (part @ weight).half().double() @ weight.T
    mine = [(expert, source) for expert in (2 * rank, 2 * rank + 1) for source in range(RANKS)]
    return {
        "gmm": torch.cat([products[one] for one in mine]),
        "gmm tokens": torch.cat([tokens[one] for one in mine]),
        "back": torch.cat([backs[expert, rank] for expert in range(EXPERTS)]),
        "back shared": drawn["x"][rank] @ drawn["expert_weights"][rank, 0],
    }


def _wrong(results: list[Any]) -> set[str]:
    """The results that differ by more than the rounding of float16, or of one step of int8."""
    drawn = {key: torch.tensor(value, dtype=torch.float64) for key, value in results[0]["drawn"].items()}
    wrong = set()
    for rank, result in enumerate(results):
        found = {key: torch.tensor(value, dtype=torch.float64) for key, value in result["found"].items()}
        for name, value in _expected(drawn, rank, set(found)).items():
            given = found[name][: len(value)]
            largest = float(value.abs().max())
            bound = 1.0 if name == "int8 rows" else 4 * 2.0**-11 * largest
            if (
                given.shape != value.shape
                or (given - value).abs().max() > bound
                or found[name][len(value) :].any()
            ):
                wrong.add(name)
    return wrong


@pytest.mark.timeout(300)
def test_two_ranks_agree_with_loops_over_tokens(tmp_path: Path) -> None:
    if not hasattr(torch_npu, OPERATORS[0]):
        pytest.skip("this release has no operators that send tokens to experts")
    results = results_of_ranks(PROGRAM, tmp_path)
    assert _wrong(results) == set()
    assert "ep_world_size is 16" in results[0]["refused"][0]
    assert "divides experts evenly" in results[0]["refused"][1]


@pytest.mark.timeout(300)
def test_every_wrong_operator_is_found(tmp_path: Path) -> None:
    if not hasattr(torch_npu, OPERATORS[0]):
        pytest.skip("this release has no operators that send tokens to experts")
    present = [name for name in OPERATORS if hasattr(torch_npu, name)]
    faults = "|".join(f"{name};scale;any;factor=1.05;output=-1" for name in present)
    wrong = _wrong(results_of_ranks(PROGRAM, tmp_path, faults))
    expected = {"first", "first rows", "shared", "shared rows", "int8 row scales"}
    if COMBINED[1] in present:
        expected |= {
            f"{key}{rows}" for key in ("second", "uneven", "masked", "special") for rows in ("", " rows")
        }
        expected.add("second sent weights")
    if GROUPED[0] in present:
        expected |= {"gmm", "gmm tokens", "back", "back shared"}
    if OPERATORS[-1] in present:
        expected.add("barrier")
    assert wrong == expected
