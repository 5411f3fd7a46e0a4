"""The checks that run verl's trainer, with files instead of the program in the cell."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from training_samples import SIMULATED, run_json, stored

from harness.check import Completed
from harness.convergence.trainer import trainer_check
from harness.convergence.trainer.judging import reference_comparison
from harness.convergence.trainer.judging.reference_comparison import CANDIDATE_SEEDS
from harness.convergence.trainer.record_trainer import FOLDER, load, recorded, same_start, write
from harness.convergence.trainer.trainer_measurements import TRAINER_FORMAT, TrainerRun
from harness.convergence.trainer.trainer_recipe import RECIPES
from harness.errors import InputError
from harness.measurements import read_shape
from harness.outcome import Evidence, Status
from harness.serialisation import json_object

STEPS = RECIPES["gspo"].steps


@pytest.fixture(autouse=True)
def no_reference_set(monkeypatch):
    """Runs are judged without a reference set here, and with one in test_reference_comparison."""
    monkeypatch.setattr(reference_comparison, "reference_for", lambda *_: None)


def first_candidate(algorithm="gspo"):
    """The recipe that a check trains without a reference set; the records have the same seed."""
    return dataclasses.replace(RECIPES[algorithm], seed=CANDIDATE_SEEDS[0])


RECORD = same_start(first_candidate(), first_candidate().digest(), "0.6.1")


def as_recorded(algorithm="gspo", **changes):
    """A run of the recorded length with the recorded series, except `changes`."""
    known = same_start(first_candidate(algorithm), first_candidate(algorithm).digest(), "0.6.1")
    recipe = dataclasses.replace(first_candidate(algorithm), steps=known.steps)
    series = {**known.series, **changes}
    return {"recipe": recipe.as_json(), "digest": recipe.digest(), "series": series}


def off_at_first(name, factor):
    values = RECORD.series[name]
    return {name: (factor * values[0], *values[1:])}


def series(*, end=0.75, steps=STEPS, **others):
    """The series of a healthy run, with the first step of the recorded run."""
    first = {name: values[0] for name, values in RECORD.series.items()}
    rng = np.random.default_rng(0)
    reward = np.linspace(0.05, end, steps) + 0.02 * rng.standard_normal(steps)
    found = {
        "reward": reward.tolist(),
        "entropy": [first.get("entropy", 2.0), *[1.0] * (steps - 1)],
        "grad_norm": [first.get("grad_norm", 1.0), *[1.0] * (steps - 1)],
        "ppo_kl": [first.get("ppo_kl", 0.05), *[0.01] * (steps - 1)],
        "seconds": [0.6] * steps,
    }
    return {**found, **others}


def run_file(**changes):
    own = {"recipe": first_candidate().as_json(), "digest": first_candidate().digest(), "series": series()}
    return run_json(**{**own, **changes})


class Cell:
    """A task context whose cell writes the given run."""

    def __init__(self, folder: Path, written=None, *, code=0, timed_out=False, tail="", kind="sim"):
        self.workdir = folder
        self.params = {"algorithm": "gspo"}
        self.facets = {"device": {"kind": kind}, "versions": {"verl": "0.6.1"}}
        self.written = written
        self.ending = (code, timed_out, tail)
        self.calls = []

    def log(self, text):
        pass

    def in_cell(self, module, *arguments, env=None, timeout=None):
        self.calls.append((module, arguments))
        if self.written is not None:
            Path(arguments[arguments.index("--out") + 1]).write_text(json.dumps(self.written))
        code, timed_out, tail = self.ending
        return Completed(argv=(), returncode=code, tail=tail, seconds=1.0, timed_out=timed_out)


def judged(cell):
    measured = trainer_check.run(cell)
    return measured, trainer_check.judge(stored(TRAINER_FORMAT, measured.measurements), cell.params)


def test_a_run_that_learns_passes_and_says_what_it_cost(tmp_path):
    measured, judgement = judged(Cell(tmp_path, run_file()))

    assert judgement.status is Status.PASS
    assert measured.evidence is Evidence.SIMULATED
    assert "First step after 41 s, then 0.60 s per step (median), 60 s in total." in judgement.reasons


def test_the_report_gets_the_curve_and_no_band(tmp_path):
    measured, _ = judged(Cell(tmp_path, run_file()))
    curves = measured.measurements.curves

    assert len(curves.candidate[0].reward) == STEPS
    assert curves.reference.mean == ()
    assert len(curves.telemetry["grad_norm"].candidate[0]) == STEPS


@pytest.mark.parametrize("kind", ["sim", "cpu"])
def test_the_program_is_told_the_cells_device(tmp_path, kind):
    cell = Cell(tmp_path, run_file(), kind=kind)
    judged(cell)

    module, arguments = cell.calls[0]
    assert module == "harness.convergence.trainer.trainer_program"
    assert arguments[arguments.index("--device") + 1] == ("cpu" if kind == "cpu" else "npu")


def test_a_run_that_stays_where_a_blind_policy_can_be_fails(tmp_path):
    _, judgement = judged(Cell(tmp_path, run_file(series=series(end=0.45))))

    assert judgement.status is Status.FAIL
    assert "not significantly above 0.467" in judgement.reasons[0]


def test_a_metric_that_is_not_finite_fails_at_its_step(tmp_path):
    broken = series(grad_norm=[1.0, 1.0, "nan", *[1.0] * (STEPS - 3)])
    _, judgement = judged(Cell(tmp_path, run_file(series=broken)))

    assert judgement.status is Status.FAIL
    assert judgement.reasons[0] == "Grad_norm is nan at step 3."


@pytest.mark.parametrize(
    ("values", "look_at"),
    [({"grad_norm": [0.0] * STEPS}, "response mask"), ({"reward": [0.1] * STEPS}, "reward function")],
)
def test_each_gate_has_its_own_remedy(tmp_path, values, look_at):
    _, judgement = judged(Cell(tmp_path, run_file(series=series(**values))))

    assert judgement.status is Status.FAIL
    assert look_at in judgement.remedies[0]


@pytest.mark.parametrize("name", ["entropy", "grad_norm"])
def test_a_run_without_a_series_that_shows_faults_is_inconclusive(tmp_path, name):
    lacks = {one: values for one, values in series().items() if one != name}
    _, judgement = judged(Cell(tmp_path, run_file(series=lacks)))

    assert judgement.status is Status.INCONCLUSIVE
    assert judgement.reasons[0].startswith(f"verl did not log {name} in every step")


def test_a_hopeless_run_is_stopped_and_told_by_its_gate(tmp_path):
    broken = series(steps=5, grad_norm=[1.0, 1.0, 1.0, 1.0, "inf"])
    stopped = run_file(series=broken, complete=False, returncode=None, stopped="grad_norm is inf at step 5")
    _, judgement = judged(Cell(tmp_path, stopped))

    assert judgement.status is Status.FAIL
    assert judgement.reasons[:2] == (
        "Grad_norm is inf at step 5.",
        f"It was stopped there, after 5 of {STEPS} steps.",
    )


def test_a_run_that_ends_early_fails(tmp_path):
    _, judgement = judged(Cell(tmp_path, run_file(series=series(steps=12), complete=False)))

    assert judgement.status is Status.FAIL
    assert f"after 12 of {STEPS} steps" in judgement.reasons[0]


def test_a_trainer_that_hung_says_where(tmp_path):
    hung = run_file(
        state="hung",
        returncode=None,
        where="ray::TaskRunnerV1.run hangs in init (transfer_queue/interface.py:123)",
        series={},
        complete=False,
        swept=9,
    )
    _, judgement = judged(Cell(tmp_path, hung))

    assert judgement.status is Status.FAIL
    assert judgement.reasons[0] == (
        "The trainer made no progress before its first step and was killed. "
        "ray::TaskRunnerV1.run hangs in init (transfer_queue/interface.py:123)."
    )
    assert "The trainer left 9 processes behind, which were killed." in judgement.reasons


def test_a_crash_is_told_by_its_error(tmp_path):
    tail = "ModuleNotFoundError: No module named 'cachetools'\n[ERROR] 2026 ERR99999 UNKNOWN\n"
    crashed = run_file(state="crashed", returncode=1, series={}, complete=False)
    _, judgement = judged(Cell(tmp_path, crashed, tail=tail))

    assert judgement.status is Status.FAIL
    assert judgement.reasons[:2] == (
        "The trainer ended with exit code 1 before its first step.",
        "Its last line of output: ModuleNotFoundError: No module named 'cachetools'",
    )


def test_an_operator_that_is_not_simulated_is_listed_and_fails_only_a_real_device(tmp_path):
    tail = (
        "(vLLMHttpServer pid=7) NotImplementedError: not simulated: npu::npu_swiglu\nray.exceptions.Error\n"
    )
    crashed = run_file(state="crashed", returncode=1, series={}, complete=False)
    (tmp_path / "sim").mkdir()
    _, judgement = judged(Cell(tmp_path / "sim", crashed, tail=tail))
    assert judgement.status is Status.INCONCLUSIVE
    assert judgement.reasons == ("not simulated: npu::npu_swiglu",)

    lacks = "RuntimeError: aclnnFoo or aclnnFooGetWorkspaceSize not in libopapi.so, or libopapi.so not found"
    real = {**json_object(SIMULATED), "simulated": False, "runtime": "cann"}
    (tmp_path / "npu").mkdir()
    _, judgement = judged(Cell(tmp_path / "npu", {**crashed, "device": real}, tail=lacks, kind="npu"))
    assert judgement.status is Status.FAIL
    assert "aclnnFoo" in judgement.reasons[1]


def test_a_program_that_writes_nothing_claims_no_device(tmp_path):
    measured, judgement = judged(Cell(tmp_path, code=4, tail="verl is not installed here"))

    assert judgement.status is Status.FAIL
    assert measured.evidence is Evidence.CPU
    assert "verl is not installed here" in judgement.reasons[1]


def test_a_program_that_is_killed_hung(tmp_path):
    _, judgement = judged(Cell(tmp_path, code=-9, timed_out=True))

    assert judgement.status is Status.FAIL
    assert "did not end within" in judgement.reasons[0]


def test_too_few_steps_decide_nothing(tmp_path):
    short = run_file(series=series(steps=8), recipe={**RECIPES["gspo"].as_json(), "steps": 8}, digest="x")
    _, judgement = judged(Cell(tmp_path, short))

    assert judgement.status is Status.INCONCLUSIVE


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_every_recipe_has_a_record_that_itself_passes(tmp_path, algorithm):
    _, judgement = judged(Cell(tmp_path, run_file(**as_recorded(algorithm))))

    assert judgement.status is Status.PASS, judgement.reasons
    assert "agrees with the recorded run of the same seed" in judgement.reasons[1]


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_a_run_of_another_length_has_the_same_first_step(algorithm):
    recipe = first_candidate(algorithm)
    longer = dataclasses.replace(recipe, steps=recipe.steps + 7)
    known = same_start(longer, longer.digest(), "0.6.1")

    assert known is not None
    assert known == same_start(recipe, recipe.digest(), "0.6.1")


@pytest.mark.parametrize("change", [{"seed": 77}, {"learning_rate": 2e-3}, {"prompts": 64}])
def test_other_settings_have_another_first_step(change):
    other = dataclasses.replace(first_candidate(), **change)

    assert same_start(other, other.digest(), "0.6.1") is None


def test_what_is_set_beside_the_recipe_makes_another_first_step():
    longer = dataclasses.replace(first_candidate(), steps=77)

    assert same_start(longer, "of the recipe and a setting more", "0.6.1") is None


def test_a_first_step_unlike_the_record_fails(tmp_path):
    other = as_recorded(**off_at_first("grad_norm", 1.002))
    _, judgement = judged(Cell(tmp_path, run_file(**other)))

    assert judgement.status is Status.FAIL
    assert judgement.reasons[0].startswith("grad_norm of the first step is")


def test_a_first_step_unlike_the_record_on_hardware_may_be_a_flipped_token(tmp_path):
    other = as_recorded(**off_at_first("entropy", 1.002))
    hardware = {**json_object(SIMULATED), "simulated": False, "runtime": "cann"}
    measured, judgement = judged(Cell(tmp_path, run_file(device=hardware, **other)))

    assert judgement.status is Status.INCONCLUSIVE
    assert measured.evidence is Evidence.HARDWARE


def test_another_verl_is_held_against_what_no_order_of_mini_batches_changes(tmp_path):
    other = as_recorded(**off_at_first("grad_norm", 1.1))
    _, judgement = judged(Cell(tmp_path, run_file(versions={"verl": "0.6.99"}, **other)))

    assert judgement.status is Status.PASS


def test_a_record_is_read_back_and_holds_no_wall_time(tmp_path):
    path = write(tmp_path, read_shape(TrainerRun, run_file()), date="2026-11-20")

    found = load(path)

    assert found.recipe_digest == first_candidate().digest()
    assert "seconds" not in found.series
    assert recorded(first_candidate().digest(), "0.6.1", tmp_path) == found
    assert path.name.startswith("gspo-0.6.1-")


def test_a_record_edited_by_hand_is_refused(tmp_path):
    path = write(tmp_path, read_shape(TrainerRun, run_file()), date="2026-11-20")
    path.write_text(path.read_text().replace("2026-11-20", "2026-11-21"))

    with pytest.raises(InputError, match="was edited"):
        load(path)


def test_shipped_records_name_what_they_were_made_with():
    for path in FOLDER.glob("*.json"):
        assert {"device", "versions", "date"} <= set(json.loads(path.read_text())["provenance"])


@pytest.mark.parametrize(
    ("verl", "asked"),
    [("0.5.0", False), ("0.6.1", True), ("0.7.0.dev0@5a2e0b1c", True), ("0.10.1", True), ("", False)],
)
def test_it_is_asked_of_versions_that_have_a_rollout_registry(verl, asked):
    assert (trainer_check.applies({"versions": {"verl": verl}}) == "") is asked


def test_the_checks_are_declared_as_the_plan_expects():
    assert [one.name for one in trainer_check.CHECKS] == ["trainer-grpo", "trainer-gspo"]
    for one in trainer_check.CHECKS:
        assert one.device
        assert one.needs == ("environment",)
