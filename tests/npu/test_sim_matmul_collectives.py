"""Matmuls with a collective in one kernel, by two ranks: compared with float64 and wrong with every fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

torch_npu = pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from several_ranks import RANKS, results_of_ranks  # noqa: E402

pytestmark = pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device")

OPERATORS = ("npu_all_gather_base_mm", "npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base")
ROWS, INNER, COLUMNS = 4, 3, 5
PROGRAM = f"""
import json, sys, torch, torch_npu, torch.distributed as dist
rank = int(sys.argv[1])
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=f"file://{{sys.argv[2]}}", rank=rank, world_size={RANKS})
name = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
generator = torch.Generator().manual_seed(3)
left, right, bias = (
    torch.randn({RANKS}, *shape, generator=generator).half()
    for shape in (({ROWS}, {INNER}), ({INNER}, {COLUMNS}), ({COLUMNS},))
)
numbers = torch.randint(-9, 9, ({RANKS}, {INNER}, {COLUMNS}), generator=generator, dtype=torch.int8)
scale = torch.rand({COLUMNS}, generator=generator).half()
x, y, b, n, s = (one.npu() for one in (left[rank], right[rank], bias[rank], numbers[rank], scale))
found = {{
    "all_reduce": torch_npu.npu_mm_all_reduce_base(x, y, name, bias=b, x3=x @ y),
    "quantised": torch_npu.npu_mm_all_reduce_base(x, n, name, antiquant_scale=s, antiquant_offset=s),
    "reduce_scatter": torch_npu.npu_mm_reduce_scatter_base(x, y, name, {RANKS}),
}}
found["all_gather"], found["gathered"] = torch_npu.npu_all_gather_base_mm(x, y, name, {RANKS})
dist.barrier()
try:
    torch_npu.npu_mm_all_reduce_base(x, y, "nobody")
    refused = ""
except RuntimeError as error:
    refused = str(error)
results = {{key: value.double().cpu().tolist() for key, value in found.items()}}
drawn = [one.double().tolist() for one in (left, right, bias, numbers, scale)]
print(json.dumps({{"found": results, "drawn": drawn, "refused": refused}}))
"""


def _wrong(results: list[Any]) -> set[str]:
    """The results that differ from float64 by more than the rounding of float16 and of its intermediate sum."""
    left, right, bias, numbers, scale = (
        torch.tensor(one, dtype=torch.float64) for one in results[0]["drawn"]
    )
    products = left @ right
    total = products.sum(0)
    expected = {
        "all_reduce": [2 * total + bias.sum(0)] * RANKS,
        "quantised": [(left @ ((numbers + scale) * scale)).sum(0)] * RANKS,
        "reduce_scatter": list(total.chunk(RANKS)),
        "gathered": [left.flatten(0, 1)] * RANKS,
        "all_gather": [left.flatten(0, 1) @ one for one in right],
    }
    wrong = set()
    for rank, result in enumerate(results):
        for name, values in result["found"].items():
            difference = (torch.tensor(values, dtype=torch.float64) - expected[name][rank]).abs().max()
            if difference > 4 * 2.0**-11 * float(expected[name][rank].abs().max()):
                wrong.add(name)
    return wrong


@pytest.mark.timeout(300)
def test_two_ranks_agree_with_float64_and_an_unknown_communicator_is_refused(tmp_path: Path) -> None:
    if not hasattr(torch_npu, OPERATORS[0]):
        pytest.skip("this release has no matmuls with collectives")
    results = results_of_ranks(PROGRAM, tmp_path)
    assert _wrong(results) == set()
    assert "no communicator 'nobody'" in results[0]["refused"]


@pytest.mark.timeout(300)
def test_every_wrong_operator_is_found(tmp_path: Path) -> None:
    if not hasattr(torch_npu, OPERATORS[0]):
        pytest.skip("this release has no matmuls with collectives")
    faults = "|".join(f"{name};scale;any;factor=1.02;output=-1" for name in OPERATORS)
    found = {"all_reduce", "quantised", "reduce_scatter", "all_gather", "gathered"}
    assert _wrong(results_of_ranks(PROGRAM, tmp_path, faults)) == found
