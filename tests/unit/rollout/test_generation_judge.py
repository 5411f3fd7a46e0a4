from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.cell_program.unsimulated_operators import unsimulated_operators
from harness.evidence import DeviceFacts
from harness.outcome import Judgement, Status
from harness.rollout.generation import generation_judge
from harness.rollout.generation.generation_checks import (
    GENERATION_CHECKS,
    needs_engine,
    needs_engine_with_graphs,
)
from harness.rollout.generation.generation_measurements import (
    BytesInUse,
    CaseResult,
    EngineFailure,
    EngineGroup,
    EngineSeconds,
    FaultResult,
    GeneratedCase,
    GenerationMeasurements,
    LogProbTolerance,
    PlumbingMeasurements,
    PlumbingStep,
    RaisedCase,
    SkippedCase,
    UnmeasuredFault,
)
from harness.rollout.operators.operator_result import OperatorMeasurement

NOT_COVERED = "Not covered: graph mode, torchair, compiled Triton kernels, HCCL itself."
SIMULATED = DeviceFacts(device="npu:0", kind="npu", simulated=True)
FAULT = FaultResult(
    case="qwen2",
    family="norm",
    fault="*rms_norm*;round;any",
    largest=0.3,
    rms=0.1,
    compared=320,
    tokens=64,
    likeliest=64,
    budget=120.0,
    choice="",
    hit={"npu::npu_rms_norm": 16},
    named=("npu::npu_add_rms_norm", "npu::npu_rms_norm"),
)
CASE = GeneratedCase(
    name="qwen2",
    dtype="float32",
    permitted=LogProbTolerance(largest=3e-3, rms=6e-4),
    largest=7e-5,
    rms=9e-6,
    compared=320,
    tokens=64,
    likeliest=64,
    budget=0.02,
    choice="",
    cached=0,
    expects_cached=False,
)
SKIPPED = SkippedCase(name="two devices", dtype="float32", why="1 device")
GROUP = EngineGroup(
    group="dense", device=SIMULATED, packages={}, seconds=EngineSeconds(engine=1.0, reference=1.0)
)


def fault(**changes: Any) -> FaultResult:
    return replace(FAULT, **changes)


def case(**changes: Any) -> GeneratedCase:
    return replace(CASE, **changes)


def raised(**changes: Any) -> RaisedCase:
    return replace(RaisedCase(name="other", dtype="float32", error="ValueError"), **changes)


def operator(name: str, budget: float = 0.1) -> OperatorMeasurement:
    return OperatorMeasurement(case=name, operator=name, family="norm", state="measured", budget=budget)


def generation(*cases: CaseResult, **measured: Any) -> Judgement:
    measurements = GenerationMeasurements(
        cases=cases,
        faults=(FAULT,),
        operators=(operator("npu::npu_rms_norm"), operator("npu::npu_swiglu")),
        groups=(GROUP,),
    )
    return generation_judge.generation(replace(measurements, **measured), {})


def test_a_healthy_engine_passes_and_says_what_that_means() -> None:
    judgement = generation(case(), case(name="two devices"))
    assert judgement.status is Status.PASS
    text = " ".join(judgement.reasons)
    assert "128 tokens" in text
    assert "1 of them change no token" in text
    assert "nothing about the rounding of Ascend hardware" in text
    assert "graph mode, torchair, compiled Triton kernels, HCCL itself" in text


def test_in_graphs_a_fault_of_updates_needs_no_wrong_operator_and_no_replay_fails() -> None:
    graphs = case(name="qwen2 in graphs", expects_replays=True, replays=15)
    updates = fault(case="qwen2 in graphs", fault="*attention*;outdated", named=(), only_in_graphs=True)
    judgement = generation(graphs, faults=(FAULT, updates))
    assert judgement.status is Status.PASS
    text = " ".join(judgement.reasons)
    assert "Graphs were replayed 15 times." in text
    assert "All 2 injected faults were detected, and those of operators (1) traced to them" in text
    assert "Not covered: torchair" in text
    undetected = replace(updates, budget=0.5)
    assert generation(graphs, faults=(undetected,)).status is Status.INCONCLUSIVE
    judgement = generation(replace(graphs, replays=0), faults=(FAULT, updates))
    assert judgement.status is Status.FAIL
    assert judgement.reasons[0] == "qwen2 in graphs: no graph was replayed."


def test_graphs_are_only_checked_where_their_settings_are_known() -> None:
    assert not needs_engine_with_graphs({"versions": {"vllm_ascend": "0.18.0"}})
    for version in ("0.11.0", "0.12.0rc1.dev0@941d54a2ce1c"):
        assert "0.13" in needs_engine_with_graphs({"versions": {"vllm_ascend": version}})
    assert needs_engine_with_graphs({"versions": {}}) == needs_engine({"versions": {}})


def test_on_hardware_nothing_is_said_of_a_simulated_device() -> None:
    judgement = generation(case(), groups=(replace(GROUP, device=replace(SIMULATED, simulated=False)),))
    text = " ".join(judgement.reasons)
    assert "simulated" not in text
    assert "Not covered: graph mode, torchair." in text
    assert "HCCL" not in text


def test_wrong_log_probabilities_fail_though_every_token_is_right_and_name_the_operator() -> None:
    wrong = [operator("npu::npu_rms_norm", budget=90.0), operator("npu::npu_swiglu")]
    judgement = generation(case(budget=128.0, largest=0.37), operators=wrong)
    assert judgement.status is Status.FAIL
    assert "0.37 (tolerance 0.003)" in judgement.reasons[0]
    assert judgement.reasons[1] == "Operator npu::npu_rms_norm is wrong: it differs from its plain formula."
    assert judgement.remedies == ("Start with npu::npu_rms_norm.",)


def test_a_wrong_operator_fails_by_itself() -> None:
    assert generation(case(), operators=(operator("a", budget=2.0),)).status is Status.FAIL


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"choice": "a token 9 behind the likeliest was chosen"}, "9 behind the likeliest"),
        ({"expects_cached": True, "cached": 0}, "the prefix cache was never used"),
    ],
)
def test_what_else_can_be_wrong_fails(changes: dict[str, Any], said: str) -> None:
    judgement = generation(case(), case(name="other", **changes))
    assert judgement.status is Status.FAIL
    assert said in judgement.reasons[0]


def test_a_case_that_raises_fails_with_its_error() -> None:
    judgement = generation(case(), raised(error="ValueError: no kernel"))
    assert judgement.status is Status.FAIL
    assert judgement.reasons[0] == "other: ValueError: no kernel"


def test_an_operator_without_a_reference_is_listed_and_never_a_pass() -> None:
    lacking = raised(error="NotImplementedError", not_simulated=("atb::_npu_paged_attention_mla",))
    judgement = generation(case(), lacking)
    assert judgement.status is Status.INCONCLUSIVE
    assert judgement.reasons == ("not simulated: atb::_npu_paged_attention_mla",)
    # Other wrong cases still fail, and the missing operators are listed too.
    both = generation(case(budget=3.0), lacking)
    assert both.status is Status.FAIL
    assert "not simulated: atb::_npu_paged_attention_mla" in both.reasons
    assert "log-probabilities are off" in both.reasons[0]
    # The caveats follow the figures.
    assert both.reasons[-2:] == (generation_judge.SHARED_KERNELS, NOT_COVERED)


def test_a_fault_that_shows_in_the_chosen_tokens_alone_is_noticed() -> None:
    drawn = fault(budget=0.1, choice="a token of rank 300 was sampled with top_k = 20")
    assert generation(case(), faults=(drawn,)).status is Status.PASS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budget": 0.9}, "was not detected"),
        ({"named": ()}, "not traced to npu::npu_rms_norm"),
        ({"hit": {}}, "affected no operator"),
    ],
)
def test_a_fault_that_goes_unnoticed_makes_green_worthless(changes: dict[str, Any], said: str) -> None:
    judgement = generation(case(), faults=(fault(**changes),))
    assert judgement.status is Status.INCONCLUSIVE
    assert said in judgement.reasons[1]


def test_a_family_without_a_known_operator_makes_green_worthless() -> None:
    unplaced = UnmeasuredFault(case="qwen2", family="norm", fault="", state="unplaced")
    judgement = generation(case(), faults=(unplaced,))
    assert judgement.status is Status.INCONCLUSIVE
    assert "no fault was injected into the operators of the family norm" in judgement.reasons[1]


def test_without_a_seeded_fault_green_is_worthless_too() -> None:
    judgement = generation(case(), faults=())
    assert judgement.status is Status.INCONCLUSIVE
    assert "No fault was injected" in judgement.reasons[1]


def test_what_did_not_run_is_named() -> None:
    judgement = generation(case(), SKIPPED)
    assert judgement.status is Status.PASS
    assert "Not run: two devices (1 device)." in judgement.reasons


def test_nothing_generated_is_not_a_pass() -> None:
    assert generation(SKIPPED).status is Status.INCONCLUSIVE


def test_an_engine_that_crashed_or_hung_fails_with_its_last_words() -> None:
    crashed = EngineFailure(group="dense", state="crashed", returncode=1, tail="x\nEZ9999: inner error\n")
    judgement = generation(groups=(crashed,))
    assert judgement.status is Status.FAIL
    assert "ended with exit code 1" in judgement.reasons[0]
    assert "EZ9999" in judgement.reasons[1]


def step(name: str, expect: Any, found: Any = None, **changes: Any) -> PlumbingStep:
    return PlumbingStep(name=name, expect=expect, found=found or expect, **changes)


BYTES = BytesInUse(before=50, asleep=20, awake=50)


def plumbing(*steps: PlumbingStep, forgotten: float = 6000.0, **changes: Any) -> Judgement:
    cases = (
        case(name="healthy"),
        case(name="new weights", **changes),
        case(name=generation_judge.FORGOTTEN, budget=forgotten),
    )
    groups = (replace(GROUP, group="plumbing"),)
    return generation_judge.plumbing(PlumbingMeasurements(steps=steps, cases=cases, groups=groups), {})


def test_a_trainer_that_can_work_with_the_engine_passes() -> None:
    judgement = plumbing(step("sleep 1", "same", bytes=BYTES), step("NZ", "refused"))
    assert judgement.status is Status.PASS
    assert "2 steps" in judgement.reasons[0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (step("sleep 1", "same", "different"), "must stay the same, but they changed"),
        (step("sleep 2", "different", "same"), "must change, but they stayed the same"),
        (step("NZ", "refused", "accepted"), "must refuse this setting, but the setting was accepted"),
        (step("load", "same", "raised", message="KeyError: w"), "an error was raised: KeyError: w"),
        (step("sleep 1", "same", bytes=replace(BYTES, asleep=50)), "freed none of the 50 bytes"),
    ],
)
def test_a_step_that_does_not_do_what_a_trainer_relies_on_fails(wrong: dict[str, Any], said: str) -> None:
    judgement = plumbing(step("first", "same"), wrong)
    assert judgement.status is Status.FAIL
    assert said in judgement.reasons[0]


def test_new_weights_that_generate_something_else_fail() -> None:
    assert plumbing(step("first", "same"), budget=40.0).status is Status.FAIL


def test_an_update_that_forgets_a_tensor_must_show() -> None:
    assert plumbing(step("first", "same"), forgotten=0.5).status is Status.INCONCLUSIVE


def test_a_step_without_a_reference_is_never_a_pass() -> None:
    lacking = step("load", "same", "raised", not_simulated=("aclnnFoo",))
    assert plumbing(lacking).reasons == ("not simulated: aclnnFoo",)
    assert plumbing(lacking).status is Status.INCONCLUSIVE
    both = plumbing(step("first", "same", "different"), lacking)
    assert both.status is Status.FAIL
    assert "not simulated: aclnnFoo" in both.reasons
    assert both.reasons[-1] == NOT_COVERED


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("NotImplementedError: not simulated: atb::_npu_ring_mla", ["atb::_npu_ring_mla"]),
        ("the simulated device does not compute aten::foo", ["aten::foo"]),
        (
            (
                "Worker failed with error 'not simulated: _C_ascend::foo_bias', please check the stack trace. "
                "NotImplementedError: not simulated: _C_ascend::foo_bias."
            ),
            ["_C_ascend::foo_bias"],
        ),
        ("not simulated: aten::index.Tensor_out, or", ["aten::index.Tensor_out"]),
        ("RuntimeError: RopeOperation CreateOperation failed!", ["RopeOperation"]),
        (
            "Format of weight in npu_grouped_matmul is FRACTAL_NZ, current CANN version do not support with",
            ["npu_grouped_matmul"],
        ),
        (
            "The param sink is not supported in this CANN version, aclnnFlashAttentionScoreV3 is not available",
            ["aclnnFlashAttentionScoreV3"],
        ),
        # The version is compared, so the text is about the cell.
        ("RuntimeError: please upgrade CANN to version 9.0.0 or higher.", []),
        ("aclnnFoo or aclnnFooGetWorkspaceSize not in libopapi.so, or", ["aclnnFoo"]),
        ("RuntimeError: aclnnSilentCheck not found. ", ["aclnnSilentCheck"]),
        ("ValueError: shapes do not fit", []),
    ],
)
def test_an_error_text_says_which_operator_is_missing(text: str, names: list[str]) -> None:
    assert unsimulated_operators(text) == names


def test_the_checks_ask_only_cells_that_have_vllm_ascend() -> None:
    assert needs_engine({"versions": {"verl": "0.9.1"}})
    assert not needs_engine({"versions": {"verl": "0.9.1", "vllm_ascend": "0.18.0"}})
    assert all(check.applies({"versions": {}}) for check in GENERATION_CHECKS)
