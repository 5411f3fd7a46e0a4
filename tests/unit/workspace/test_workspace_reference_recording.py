"""Recording reference sets in the cells of a run."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from training_samples import RUN

from harness.check import Completed
from harness.convergence.decision.reference_set import load
from harness.convergence.trainer.trainer_recipe import RECIPES
from harness.digest import canonical_json
from harness.errors import InfrastructureError, NothingSelectedError
from harness.serialisation import json_object
from harness.workspace.execution.reference_recording import (
    SEEDS,
    record_references,
    recordings_of_run,
    run_program,
)


def entry(check, *, cell="verl-sim", built=True):
    outcome = SimpleNamespace(measurements={"built": built}) if check else None
    return SimpleNamespace(entry=SimpleNamespace(cell_id=cell, check=check), outcome=outcome)


def plan(device="sim"):
    return SimpleNamespace(cells=[SimpleNamespace(id="verl-sim", device=device)])


def result(*entries):
    return SimpleNamespace(entries=entries)


def recorded_cells(plan, result):
    """The recordings of a run whose entries have these outcomes; each entry has a key of its own."""
    outcomes = {str(number): one.outcome for number, one in enumerate(result.entries) if one.outcome}
    entries = [
        SimpleNamespace(**vars(one.entry), key=str(number)) for number, one in enumerate(result.entries)
    ]
    return recordings_of_run(
        SimpleNamespace(cells=plan.cells, entries=entries), SimpleNamespace(outcomes=outcomes)
    )


class Cell:
    """A cell whose recording program prints a path, or fails."""

    def __init__(self, code=0):
        self.code, self.arguments = code, []

    def enter(self, _environment, module, arguments):
        self.arguments.append((module, list(arguments)))
        return ["python", "-m", module, *arguments], {"PYTHONPATH": "/bundle"}

    def run(self, argv, _variables, _seconds):
        tail = "no device npu:0" if self.code else "Warning: noise\n/refs/grpo-0123456789ab.json\n"
        return Completed(argv=tuple(argv), returncode=self.code, tail=tail, seconds=1.0)


def test_each_answered_check_is_recorded_with_the_seeds_of_candidates(tmp_path):
    cell = Cell()
    recordings = recorded_cells(
        plan(), result(entry("environment"), entry("loss"), entry("grpo"), entry("gspo"))
    )

    paths = list(record_references(recordings, tmp_path / "refs", cell.enter, cell.run))

    assert paths == ["/refs/grpo-0123456789ab.json"] * 2
    module, arguments = cell.arguments[0]
    assert module == "harness.convergence.smoke.record_smoke"
    assert arguments[arguments.index("--seeds") + 1] == str(SEEDS)
    assert arguments.count("--twin") == 3
    assert arguments[arguments.index("--device") + 1] == "npu:0"


class Trainer(Cell):
    """A cell whose trainer writes a whole run for each seed but one."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.fails_at = fails_at

    def run(self, argv, _variables, _seconds):
        words = list(argv)
        seed = int(words[words.index("--seed") + 1])
        reward = [0.1 + 0.01 * step + 0.001 * seed for step in range(24)]
        written = replace(
            RUN,
            state="hung" if seed == self.fails_at else "measured",
            settings="digest of the settings",
            algorithm="grpo",
            recipe=replace(RECIPES["grpo"], seed=seed),
            series={"reward": reward, "seconds": [0.5] * 24},
        )
        Path(words[words.index("--out") + 1]).write_text(canonical_json(json_object(written)))
        return Completed(argv=tuple(argv), returncode=0, tail="step:24\n", seconds=1.0)


def test_a_trainer_is_run_once_for_every_seed(tmp_path):
    cell = Trainer()
    recordings = recorded_cells(plan(), result(entry("environment"), entry("trainer-grpo")))

    (path,) = record_references(recordings, tmp_path, cell.enter, cell.run)

    found = load(Path(path))
    assert len(cell.arguments) == len(found.runs) == len(found.performance) == 20
    assert found.name == "trainer-grpo"
    assert "seed" not in found.recipe
    assert [file.name for file in tmp_path.iterdir()] == [Path(path).name]


def test_a_recording_goes_on_where_it_was_interrupted(tmp_path):
    recordings = recorded_cells(plan(), result(entry("environment"), entry("trainer-grpo")))
    broken, mended = Trainer(fails_at=104), Trainer()

    with pytest.raises(InfrastructureError, match="seed 104 is not complete"):
        list(record_references(recordings, tmp_path, broken.enter, broken.run))
    (path,) = record_references(recordings, tmp_path, mended.enter, mended.run)

    assert len(mended.arguments) == 16
    assert len(load(Path(path)).runs) == 20


def test_a_cpu_cell_is_recorded_on_its_cpu():
    (recording,) = recorded_cells(plan("cpu"), result(entry("environment"), entry("grpo")))

    assert recording.device == "cpu"


@pytest.mark.parametrize(
    "entries", [(), (entry("environment"), entry("loss")), (entry("environment", built=False), entry("grpo"))]
)
def test_without_an_answered_check_there_is_nothing_to_record(entries):
    with pytest.raises(NothingSelectedError, match="nothing to record"):
        recorded_cells(plan(), result(*entries))


def test_a_recording_that_fails_says_where_and_why(tmp_path):
    cell = Cell(code=4)
    recordings = recorded_cells(plan(), result(entry("environment"), entry("grpo")))

    with pytest.raises(InfrastructureError, match="grpo in verl-sim") as found:
        list(record_references(recordings, tmp_path, cell.enter, cell.run))
    assert "no device npu:0" in str(found.value)


def test_an_interrupted_recording_ends_its_program(tmp_path):
    started = time.monotonic()
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    done = run_program(argv, {}, 600.0, stopped=lambda: time.monotonic() - started > 0.5)

    assert done.returncode != 0
