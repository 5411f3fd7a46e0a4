"""Operators of serving engines on the device, compared with formulas in float64, on random shapes and lengths."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from harness.devices.sim.faults.fault_injection import FaultInjector  # noqa: E402
from harness.devices.sim.faults.fault_spec import parse_faults  # noqa: E402
from harness.devices.sim.operators.serving_kernels import ATB  # noqa: E402
from harness.devices.sim.operators.torch_internals import (  # noqa: E402
    DEVICE_KEY,
    has_kernel,
    overload,
    schemas,
)
from harness.devices.sim.start import triton_interpreter  # noqa: E402
from harness.rollout.generation import engine_workers, generation_program  # noqa: E402
from harness.rollout.operators import operator_battery, plain_operators  # noqa: E402
from harness.rollout.operators.operator_cases import CASES, OperatorCase  # noqa: E402

pytestmark = [
    pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device"),
    pytest.mark.usefixtures("engine_operators"),
]

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def budget(case: OperatorCase, seed: int, dtype: torch.dtype) -> float:
    values = operator_battery.draw(case, seed, dtype)
    expected = operator_battery.expected_values(case, values, dtype)
    return operator_battery.worst_budget(operator_battery.compute(case, values, "npu:0", dtype), expected)


def present(case: OperatorCase) -> OperatorCase:
    if operator_battery.find_operator(case) is None:
        pytest.skip(f"this cell has no operator {case.operator}")
    return case


@DTYPES
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_agrees_with_the_plain_formula(case: OperatorCase, dtype: torch.dtype) -> None:
    present(case)
    assert max(budget(case, seed, dtype) for seed in range(5)) <= 1


# Fault -> exactly the operators that must be reported as wrong.
FAULTS = {
    "npu_swiglu;scale;forward;factor=1.002": {"npu::npu_swiglu"},
    "npu_rms_norm;round;any": {"npu::npu_rms_norm"},
    "npu_add_rms_norm_bias;round;any": {"_C_ascend::npu_add_rms_norm_bias"},
    "npu_fused_infer_attention_score;round;any": {"npu::npu_fused_infer_attention_score"},
    "_npu_paged_attention;scale;any;factor=1.002": {"atb::_npu_paged_attention"},
    "_npu_rotary_embedding;round;any": {"atb::_npu_rotary_embedding"},
    "_npu_reshape_and_cache;stale;any;output=1": {"atb::_npu_reshape_and_cache"},
    "npu_grouped_matmul;round;any": {"npu::npu_grouped_matmul"},
    "*npu_moe_token_unpermute;zero;any;elements=0.02": {"npu::npu_moe_token_unpermute"},
    "moe_gating_top_k;scale;any;factor=1.002": {"_C_ascend::moe_gating_top_k"},
    "npu_top_k_top_p;zero;any;elements=0.01": {"npu::npu_top_k_top_p"},
    "sort;zero;any": {"aten::sort"},
    "_log_softmax;round;any": {"aten::_log_softmax"},
    "embedding;round;any": {"aten::embedding"},
    "masked_fill_;round;any": {"aten::masked_fill_"},
    "mm;lowacc;any;dtype=bfloat16": {"aten::mm"},
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_wrong_operator_is_found_by_its_name(text: str) -> None:
    simulation = overlay.installed()
    assert simulation is not None
    battery = operator_battery.Battery("npu:0", torch.float32)
    with simulation.faults.injected(*parse_faults(text)) as (fault,):
        entries = battery.measure()
    if not fault.hits:
        pytest.skip(f"this cell calls no operator that {text} would hit")
    wrong = {entry.operator for entry in entries if entry.budget > 1 or entry.state == "raised"}
    assert wrong == FAULTS[text]


@pytest.mark.parametrize(
    ("family", "called", "fault"),
    [
        ("rotary", {"atb::_npu_rotary_embedding", "npu::npu_swiglu"}, "atb::_npu_rotary_embedding;round"),
        ("rotary", {"triton::_triton_rope", "aten::sort"}, "triton::_triton_rope;round"),
        (
            "norm",
            {"npu::npu_rms_norm", "_C_ascend::npu_add_rms_norm_bias"},
            "_C_ascend::npu_add_rms_norm_bias;round|npu::npu_rms_norm;round",
        ),
        ("choice", {"npu::npu_swiglu"}, ""),
    ],
)
def test_the_fault_of_a_family_distorts_the_operators_that_were_called(
    family: str, called: set[str], fault: str
) -> None:
    assert generation_program.seeded_fault(family, "round", called) == fault


def test_every_family_has_a_seeded_fault() -> None:
    assert {family for seeded in generation_program.FAULTS.values() for family in seeded} == {
        case.family for case in CASES
    }
    generated = {case.name for group in generation_program.GROUPS.values() for case in group}
    assert generation_program.FAULTS.keys() <= generated


def test_a_workers_faults_last_until_it_is_released() -> None:
    """The functions that an engine sends to its workers; here the worker is this process."""
    worker = SimpleNamespace()
    llm = SimpleNamespace(collective_rpc=lambda ask, args: [ask(worker, *args)])
    tokens, table = torch.tensor([1, 2], device="npu:0"), torch.full((3, 4), 1 / 3, device="npu:0")

    def look_up() -> torch.Tensor:
        return torch.nn.functional.embedding(tokens, table).cpu()

    exact, before = look_up(), engine_workers.total(llm, engine_workers.calls)
    assert not engine_workers.total(llm, engine_workers.release)
    engine_workers.total(llm, engine_workers.inject_fault, "aten::embedding;round")
    assert torch.equal(look_up(), exact.bfloat16().float())
    assert engine_workers.total(llm, engine_workers.release) == {"aten::embedding": 1}
    assert torch.equal(look_up(), exact)
    assert (engine_workers.total(llm, engine_workers.calls) - before)["aten::embedding"] == 2


class Executor:
    """Runs a kernel on host memory, as Triton's interpreter does."""

    def __init__(self, kernel: Callable[..., None]) -> None:
        self.fn = kernel

    def _init_args_hst(self, args: Any, kwargs: Any) -> Any:
        return list(args), kwargs

    def launch(self, *args: Any, **kwargs: Any) -> None:
        self.fn(*args, **kwargs)


def test_a_fault_distorts_what_a_kernel_writes_and_not_what_it_reads() -> None:
    def turn(query: torch.Tensor, rows: int, table: torch.Tensor, key: torch.Tensor) -> None:
        for values in (query, key):
            values[:rows] *= table

    interceptors: list[Any] = []
    injector = FaultInjector(interceptors, lambda: None)
    machine: Any = SimpleNamespace(interceptors=interceptors, pending=SimpleNamespace(value=0))
    launch = triton_interpreter.intercepted(Executor.launch, machine)
    query, key = torch.full((2, 3), 1 / 3), torch.full((2, 3), 1 / 7)
    table = torch.full((3,), 1 + 2.0**-20)

    launch(Executor(turn), query, 2, table, key=key)
    exact = query.clone()
    assert torch.equal(exact, torch.full((2, 3), 1 / 3) * table)
    with injector.injected(*parse_faults("triton::turn;round")) as (fault,):
        launch(Executor(turn), query, 2, table, key=key)
    assert fault.hit_operators == {"triton::turn": 1}
    assert torch.equal(query, (exact * table).bfloat16().float())
    assert torch.equal(key, key.bfloat16().float())
    assert torch.equal(table, torch.full((3,), 1 + 2.0**-20))
    injector.count_calls()
    launch(Executor(turn), query, 2, table, key=key)
    assert injector.calls == {"triton::turn": 1}


def test_autotuning_takes_the_first_configuration_of_kernels_that_run() -> None:
    benchmark = triton_interpreter._Driver().get_benchmarker()
    assert benchmark(lambda: None, quantiles=(0.5, 0.2, 0.8)) == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="out of resources"):
        benchmark(lambda: int("out of resources"), quantiles=(0.5,))


def test_an_operator_without_a_reference_names_itself() -> None:
    without = [
        (name, schema)
        for name, schema in schemas("atb")
        if name not in ATB and has_kernel(f"atb::{name}", DEVICE_KEY) and "workspace" not in name
    ]
    if not without:
        pytest.skip("every operator of ATB has a reference here")
    tokens = torch.zeros(2, 8, device="npu:0")
    numbers = {"int": 1, "float": 1.0, "bool": False, "str": "", "List[int]": [1]}
    stand_ins = {**numbers, "Tensor": tokens, "List[Tensor]": [tokens]}
    for name, schema in without:
        needed = [one for one in schema.arguments if not one.has_default_value()]
        given = {one.name: stand_ins[str(one.type)] for one in needed}
        with pytest.raises(NotImplementedError, match=f"not simulated: atb::{name}"):
            overload("atb", name)(**given)


def test_a_slot_outside_the_cache_is_refused() -> None:
    rows, cache = torch.zeros(1, 2, 8, device="npu:0"), torch.zeros(3, 4, 2, 8, device="npu:0")
    with pytest.raises(IndexError, match="slot 12"):
        torch.ops.atb._npu_reshape_and_cache_siso(rows, cache, torch.tensor([12], device="npu:0"))


def test_a_mask_that_is_not_causal_is_refused() -> None:
    case = next(case for case in CASES if case.operator == "atb::_npu_flash_attention")
    values = operator_battery.draw(case, 0, torch.float32)
    values["mask"] = torch.zeros_like(values["mask"])
    with pytest.raises(NotImplementedError, match="not causal"):
        operator_battery.compute(case, values, "npu:0", torch.float32)


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "BSH"])
@pytest.mark.parametrize("lengths", [None, [7, 4]], ids=str)
def test_fused_attention_in_batches_agrees_with_the_plain_formula(
    layout: str, lengths: list[int] | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, rows, heads, 8, generator=generator) for rows, heads in ((5, 4), (7, 2), (7, 2))
    )
    into = {"BSND": lambda x: x, "BNSD": lambda x: x.transpose(1, 2), "BSH": lambda x: x.flatten(2)}[layout]
    new = [5, 2]
    out, sums = torch.ops.npu.npu_fused_infer_attention_score(
        *(into(x).contiguous().npu() for x in (query, key, value)),
        atten_mask=torch.ones(2048, 2048, dtype=torch.int8).triu(1).npu(),
        actual_seq_lengths=new,
        actual_seq_lengths_kv=lengths,
        num_heads=4,
        num_key_value_heads=2,
        scale=0.3,
        input_layout=layout,
        sparse_mode=3,
        softmax_lse_flag=True,
    )
    back = {
        "BSND": lambda x: x,
        "BNSD": lambda x: x.transpose(1, 2),
        "BSH": lambda x: x.unflatten(-1, (4, 8)),
    }
    found = back[layout](out.cpu())
    assert sums.shape == (2, 4, 5, 1)
    for index, count in enumerate(new):
        seen = lengths[index] if lengths else 7
        q, k, v = (x[index].double() for x in (query[:, :count], key[:, :seen], value[:, :seen]))
        expected = plain_operators.attention(q, k, v, 0.3, causal=True)
        # Sums of eight products and seven weights of order one in fp32 need about ten roundings.
        assert float((found[index, :count] - expected).abs().max()) < 100 * 2.0**-24
        assert not found[index, count:].any()


def test_a_window_without_a_mask_is_refused() -> None:
    query, key = (torch.zeros(1, rows, 16, device="npu:0") for rows in (1, 6))
    with pytest.raises(NotImplementedError, match="window"):
        torch.ops.npu.npu_fused_infer_attention_score(
            query, key, key, num_heads=2, input_layout="BSH", pre_tokens=3, actual_seq_lengths_kv=[6]
        )
