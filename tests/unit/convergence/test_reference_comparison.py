"""Runs of the trainer against a reference set of the same settings and verl."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pydantic", reason="decisions are made on the host")

from training_samples import run_json, stored

from harness.check import Completed
from harness.convergence.decision import reference_set
from harness.convergence.trainer import trainer_check, trainer_program
from harness.convergence.trainer.judging import reference_comparison
from harness.convergence.trainer.trainer_measurements import TRAINER_FORMAT, TrainerRun
from harness.convergence.trainer.trainer_recipe import RECIPES
from harness.errors import InfrastructureError
from harness.measurements import read_shape
from harness.outcome import Status

STEPS = RECIPES["grpo"].steps
SIMULATED = {"device": "npu:0", "kind": "npu", "simulated": True, "soc": "Ascend910B3"}
HARDWARE = {**SIMULATED, "simulated": False, "runtime": "cann"}
HERE = {"id": "0123456789abcdef", "load": 0.4, "others": 0.02}
WORDS = ["--algorithm", "grpo", "--device", "npu", "--folder", "f", "--out", "o"]
SETTINGS = trainer_program.settings_digest(trainer_program.parser().parse_args(WORDS))


def curves(seed, *, factor=1.0, seconds=0.6):
    """A healthy run of the tiny task, by its seed; `factor` below 1 learns less."""
    rng = np.random.default_rng(seed)
    rise = 0.7 * factor * (1 + 0.05 * rng.standard_normal())
    reward = 0.05 + rise / (1 + np.exp(-(np.arange(STEPS) - 12) / 3)) + 0.01 * rng.standard_normal(STEPS)
    noise = 1 + 0.05 * rng.standard_normal(STEPS)
    return {
        "reward": reward.tolist(),
        "entropy": (2.0 * np.exp(-np.arange(STEPS) / 20) * noise).tolist(),
        "grad_norm": (0.8 * noise).tolist(),
        "clip_fraction": (0.2 * noise).tolist(),
        "probs_difference": (1e-8 * noise).tolist(),
        "seconds": (seconds * noise).tolist(),
    }


def run_file(seed, **changes):
    own = {
        "algorithm": "grpo",
        "recipe": {**RECIPES["grpo"].as_json(), "seed": seed},
        "digest": "one seed's",
        "settings": SETTINGS,
        "host": HERE,
        "series": curves(seed),
    }
    return run_json(**{**own, **changes})


def trainer_run(seed, **changes):
    return read_shape(TrainerRun, run_file(seed, **changes))


@pytest.fixture
def references(tmp_path, monkeypatch):
    """The folder of the user's own reference sets, with one set of all seeds."""
    folder = tmp_path / "references"
    folder.mkdir()
    runs = [trainer_run(seed) for seed in reference_comparison.REFERENCE_SEEDS]
    reference_set.write(folder, reference_comparison.reference_set_content(runs, name="trainer-grpo"))
    monkeypatch.setenv("NPU_MATRIX_REFERENCES", str(folder))
    return folder


class Cell:
    """A task context whose cell writes the run that `make` returns for a seed."""

    def __init__(self, folder: Path, make, *, verl="0.6.1"):
        self.workdir = folder / "work"
        self.workdir.mkdir()
        self.params = {"algorithm": "grpo"}
        self.facets = {"device": {"kind": "sim"}, "versions": {"verl": verl}}
        self.make = make
        self.seeds = []

    def in_cell(self, _module, *arguments, env=None, timeout=None):
        words = list(arguments)
        self.seeds.append(int(words[words.index("--seed") + 1]))
        places = {name: Path(words[words.index(f"--{name}") + 1]) for name in ("out", "live", "stop-file")}
        places["out"].write_text(json.dumps(self.make(self.seeds[-1], places)))
        return Completed(argv=(), returncode=0, tail="", seconds=1.0)


def judged(cell):
    measured = trainer_check.run(cell)
    return measured, trainer_check.judge(stored(TRAINER_FORMAT, measured.measurements), cell.params)


@pytest.mark.usefixtures("references")
def test_a_healthy_run_lies_in_the_band(tmp_path):
    cell = Cell(tmp_path, lambda seed, _: run_file(seed))
    measured, judgement = judged(cell)

    assert judgement.status is Status.PASS, judgement.reasons
    assert cell.seeds == [2]
    assert any("within the reference's bands" in reason for reason in judgement.reasons)
    (cost,) = [
        reason for reason in judgement.reasons if reason.startswith("The decision compares 1 run (seed 2)")
    ]
    assert cost.endswith("20 runs of verl 0.6.1 on the simulated npu:0.")
    assert len(measured.measurements.curves.reference.mean) == STEPS
    assert [look.alarm for look in measured.measurements.decision.looks] == [False] * 3


@pytest.mark.usefixtures("references")
def test_a_run_that_learns_less_fails_although_it_learns(tmp_path):
    cell = Cell(tmp_path, lambda seed, _: run_file(seed, series=curves(seed, factor=0.75)))
    measured, judgement = judged(cell)

    assert judgement.status is Status.FAIL
    assert cell.seeds == [2, 3]
    assert "reward" in judgement.reasons[0]
    assert len(measured.measurements.more) == 1


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize(("difference", "status"), [(0.003, "pass"), (0.08, "fail")])
def test_a_rollout_with_other_weights_fails_although_it_learns(tmp_path, difference, status):
    def make(seed, _):
        return run_file(seed, series={**curves(seed), "probs_difference": [difference] * STEPS})

    _, judgement = judged(Cell(tmp_path, make))

    assert judgement.status.value == status
    assert judgement.reasons[0].startswith("probs_difference") == (status == "fail")
    assert any("the rollout samples with" in one for one in judgement.remedies) == (status == "fail")


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize(("seconds", "status"), [(0.6, "pass"), (0.2, "pass"), (0.9, "fail")])
def test_slower_steps_fail_and_faster_ones_do_not(tmp_path, seconds, status):
    cell = Cell(tmp_path, lambda seed, _: run_file(seed, series=curves(seed, seconds=seconds)))
    _, judgement = judged(cell)

    assert judgement.status.value == status
    assert judgement.reasons[0].startswith("seconds is") == (status == "fail")


def test_a_reference_of_a_busy_machine_says_what_it_may_hide(references, tmp_path):
    (path,) = references.glob("*.json")
    path.unlink()
    runs = [
        trainer_run(seed, host={**HERE, "others": seed / 200})
        for seed in reference_comparison.REFERENCE_SEEDS
    ]
    reference_set.write(references, reference_comparison.reference_set_content(runs, name="trainer-grpo"))
    _, judgement = judged(Cell(tmp_path, lambda seed, _: run_file(seed)))

    assert judgement.status is Status.PASS
    assert any("a slow-down by a factor of up to 2.5 cannot be detected" in one for one in judgement.reasons)


@pytest.mark.usefixtures("references")
def test_a_run_that_is_bad_for_sure_is_ended_while_it_trains(tmp_path):
    def make(seed, places):
        series = curves(seed)
        series["grad_norm"][6:] = [1e-12] * (STEPS - 6)
        series["entropy"] = [1e-6] * STEPS
        for made in range(1, STEPS + 1):
            so_far = {name: values[:made] for name, values in series.items()}
            beside = places["live"].with_suffix(".new")
            beside.write_text(json.dumps(so_far))
            beside.replace(places["live"])
            deadline = time.monotonic() + 60
            while made == 12 and not places["stop-file"].exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            if places["stop-file"].exists():
                break
        return run_file(seed, series=so_far, complete=False, stopped=places["stop-file"].read_text())

    cell = Cell(tmp_path, make)
    measured, judgement = judged(cell)

    assert judgement.status is Status.FAIL
    assert len(measured.measurements.series["reward"]) < STEPS
    assert any("It was stopped after" in reason and "saved" in reason for reason in judgement.reasons)


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize("verl", ["0.7.1", "0.6.1@d62da4950573"])
def test_another_verl_is_not_held_against_it(tmp_path, verl):
    cell = Cell(tmp_path, lambda seed, _: run_file(seed), verl=verl)
    _, judgement = judged(cell)

    assert judgement.status is Status.PASS
    assert cell.seeds == [reference_comparison.CANDIDATE_SEEDS[0]]
    assert any("there is no reference set (of at least 10 runs)" in reason for reason in judgement.reasons)


def test_too_few_runs_decide_nothing(references):
    (path,) = references.glob("*.json")
    path.unlink()
    runs = [trainer_run(seed) for seed in reference_comparison.REFERENCE_SEEDS[:9]]
    reference_set.write(references, reference_comparison.reference_set_content(runs, name="trainer-grpo"))

    assert "the reference set has 9 runs, 10 are" in reference_comparison.missing_references(
        reference_comparison.reference_for(SETTINGS, "0.6.1")
    )


@pytest.mark.parametrize("changes", [{"state": "hung"}, {"complete": False}, {"stopped": "a gate"}])
def test_a_run_that_is_not_whole_is_no_reference(changes):
    with pytest.raises(InfrastructureError, match="seed 100 is not complete"):
        reference_comparison.reference_set_content([trainer_run(100, **changes)], name="trainer-grpo")


def test_seeds_make_one_set_and_settings_another():
    other = trainer_program.settings_digest(trainer_program.parser().parse_args([*WORDS, "--set", "a=1"]))
    same = trainer_program.settings_digest(trainer_program.parser().parse_args([*WORDS, "--seed", "7"]))

    assert same == SETTINGS != other


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize(
    ("device", "status"),
    [(SIMULATED, "fail"), ({**SIMULATED, "simulated": False}, "fail"), (HARDWARE, "inconclusive")],
)
def test_a_first_step_unlike_the_recorded_one_decides_what_the_bands_leave_open(tmp_path, device, status):
    def make(seed, _):
        series = curves(seed)
        if seed == 2:
            series["entropy"] = [4 * value for value in series["entropy"]]
        digest = dataclasses.replace(RECIPES["grpo"], seed=seed).digest()
        return run_file(seed, series=series, digest=digest, device=device)

    _, judgement = judged(Cell(tmp_path, make))

    assert judgement.status.value == status
    assert "not every run shows it" in judgement.reasons[0]
    assert "entropy of the first step is" in judgement.reasons[1]
