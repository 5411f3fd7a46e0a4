"""Does a short training with verl's losses learn on this device, like the recorded reference runs?

These are the checks `grpo` and `gspo` for a person in a cell: python -m pytest tests/npu/test_convergence_smoke.py
--device npu. A fault that stops the policy from learning must not pass.
"""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="needs verl: run inside a cell")

from harness.convergence.decision.decide import decide
from harness.convergence.decision.reference_set import for_recipe
from harness.convergence.smoke import smoke_program
from harness.convergence.smoke.smoke_recipe import ALGORITHMS, CANDIDATE_SEEDS, recipe
from harness.convergence.telemetry.series import Series, read
from harness.outcome import Status


def train(algorithm, device, out, *options):
    seed = CANDIDATE_SEEDS[0]
    words = ["--algorithm", algorithm, "--seed", str(seed), "--device", device, "--out", str(out), *options]
    assert smoke_program.main(words) == 0
    return seed, read(out).runs[0].series


def judged(algorithm, seed, series: Series):
    reference = for_recipe(recipe(algorithm).digest())
    assert reference is not None, "this version of the recipe has no recorded reference"
    return decide(reference.runs, [series], twins=reference.twins_of([seed]))


@pytest.mark.tier("convergence")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_short_training_learns_like_the_reference(algorithm, npu_device, tmp_path):
    decision = judged(algorithm, *train(algorithm, npu_device, tmp_path / "run.jsonl"))
    assert decision.status is Status.PASS, decision.reasons


@pytest.mark.tier("convergence")
def test_a_training_whose_advantages_have_the_wrong_sign_does_not_pass(npu_device, tmp_path):
    found = train("grpo", npu_device, tmp_path / "run.jsonl", "--fault", "flip-advantage")
    assert judged("grpo", *found).status is not Status.PASS
