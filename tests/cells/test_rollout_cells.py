"""A vLLM cell on a wrong device: the checks turn red and name the operator. Minutes; on demand.

`npu-matrix --profile full run --only verl-0-7-1-sim-4b15a92bd487 --check generation` builds such a cell.
"""

from __future__ import annotations

import pytest

from harness.outcome import Evidence, Status
from harness.verdict.verdict import judge_outcome

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]


def test_attention_in_bf16_is_found_though_every_token_is_right(engine_cell, tmp_path):
    outcome = engine_cell.execute("generation", tmp_path, [{"op": "*infer_attention*", "kind": "round"}])
    judgement = judge_outcome(engine_cell.tasks["generation"].check, outcome)
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    text = " ".join(judgement.reasons)
    assert "log-probabilities are off" in text
    assert "operator npu::npu_fused_infer_attention_score is wrong" in text
    assert "npu_swiglu" not in text


def test_a_cache_that_forgets_what_is_written_is_found(engine_cell, tmp_path):
    fault = {"op": "*reshape_and_cache*", "kind": "stale", "output": 1}
    outcome = engine_cell.execute("plumbing", tmp_path, [fault])
    assert judge_outcome(engine_cell.tasks["plumbing"].check, outcome).status is Status.FAIL
