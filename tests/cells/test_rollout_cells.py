"""A vLLM cell on a wrong device: the checks fail and name the operator. Takes minutes.

`npu-matrix --profile full run --only verl-0-7-1-sim-4b15a92bd487 --check generation` builds such a cell; the tests of MoE models need
`--only verl-0-9-1-sim-c3585b007787`.
"""

from __future__ import annotations

import pytest

from harness.outcome import Evidence, Status
from harness.verdict.verdict import judge_outcome

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]
EXPERTS = "npu::npu_grouped_matmul"


def test_attention_in_bf16_is_found_though_every_token_is_right(engine_cell, tmp_path):
    outcome = engine_cell.execute("generation", tmp_path, [{"op": "*infer_attention*", "kind": "round"}])
    judgement = judge_outcome(engine_cell.tasks["generation"].check, outcome)
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    text = " ".join(judgement.reasons)
    assert "log-probabilities are off" in text
    assert "Operator npu::npu_fused_infer_attention_score is wrong" in text
    assert "npu_swiglu" not in text


def test_a_cache_that_forgets_what_is_written_is_found(engine_cell, tmp_path):
    fault = {"op": "*reshape_and_cache*", "kind": "stale", "output": 1}
    outcome = engine_cell.execute("plumbing", tmp_path, [fault])
    assert judge_outcome(engine_cell.tasks["plumbing"].check, outcome).status is Status.FAIL


def test_experts_are_right_on_a_clean_device_and_their_seeded_faults_are_traced(experts_cell, tmp_path):
    outcome = experts_cell.execute("generation-experts", tmp_path)
    judgement = judge_outcome(experts_cell.tasks["generation-experts"].check, outcome)
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.PASS, judgement.reasons
    cases = {case["name"]: case for case in outcome.measurements["cases"]}
    assert {name: case["state"] for name, case in cases.items()} == {
        "qwen3_moe bf16": "generated",
        "gpt_oss": "generated",
    }
    sign = next(fault for fault in outcome.measurements["faults"] if fault["case"] == "qwen3_moe bf16")
    assert sign["fault"] == f"{EXPERTS};sign"
    assert sign["budget"] > 1
    assert EXPERTS in sign["named"]


def test_experts_with_the_wrong_sign_are_found_by_their_operator(experts_cell, tmp_path):
    outcome = experts_cell.execute("generation-experts", tmp_path, [{"op": EXPERTS, "kind": "sign"}])
    judgement = judge_outcome(experts_cell.tasks["generation-experts"].check, outcome)
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    text = " ".join(judgement.reasons)
    assert "qwen3_moe bf16: log-probabilities are off" in text
    assert f"Operator {EXPERTS} is wrong" in text
    assert text.count("is wrong") == 1


def test_graphs_whose_updates_have_no_effect_are_found_though_every_operator_is_right(engine_cell, tmp_path):
    fault = {"op": "*infer_attention*", "kind": "outdated"}
    outcome = engine_cell.execute("generation-graphs", tmp_path, [fault])
    judgement = judge_outcome(engine_cell.tasks["generation-graphs"].check, outcome)
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    text = " ".join(judgement.reasons)
    assert "qwen2 in graphs: log-probabilities are off" in text
    assert "qwen3 bf16 in graphs: log-probabilities are off" in text
    assert "is wrong" not in text


def test_a_collective_that_rounds_is_found_in_the_case_of_two_devices_alone(engine_cell, tmp_path):
    # A scaled collective would not be detected: it scales the whole residual stream, and norms undo that.
    outcome = engine_cell.execute("generation", tmp_path, [{"op": "c10d::allreduce_", "kind": "round"}])
    judgement = judge_outcome(engine_cell.tasks["generation"].check, outcome)
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    wrong = {case["name"] for case in outcome.measurements["cases"] if case["budget"] > 1}
    assert wrong == {"llama on two devices"}
    assert "llama on two devices: log-probabilities are off" in judgement.reasons[0]
