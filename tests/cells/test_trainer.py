"""verl's own trainer in a cell of the main job: green on a clean device, red for the right reason on a bad one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.cli.bench import open_bench
from harness.convergence.trainer.check import PROGRAM
from harness.outcome import Evidence, State, Status
from harness.verdict.verdict import judge_outcome

pytestmark = [pytest.mark.cell, pytest.mark.timeout(900)]
ALGORITHM = "gspo"
CHECK = f"trainer-{ALGORITHM}"
# Attention learns nothing with it, and a policy without attention cannot read its prompt.
WRONG_ATTENTION = {"op": "_softmax_backward_data", "kind": "sign"}


@pytest.fixture
def trainer_cell(built_cells):
    """The cell of verl 0.6.1 with the tasks that the default profile leaves out."""
    cell = next(one for one in built_cells if one.verl == "0.6.1")
    plan = open_bench(cell.settings, checks=[CHECK]).plan
    ids = {one.id for one in plan.cells if one.axes.get("verl") == cell.verl and one.device == "sim"}
    key = next(entry.key for entry in plan.entries if entry.check == CHECK and entry.cell_id in ids)
    return dataclasses.replace(cell, tasks={**cell.tasks, CHECK: plan.tasks[key]})


def processes_of(folder: Path) -> list[str]:
    """Commands of the living processes that were started for the run in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_the_trainer_learns_on_the_simulated_device(trainer_cell, tmp_path):
    outcome = trainer_cell.execute(CHECK, tmp_path)
    judgement = judge_outcome(trainer_cell.tasks[CHECK].check, outcome)

    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.PASS, judgement.reasons
    workers = [one for one in outcome.measurements["processes"] if one["visible"] == "0"]
    assert workers, "Ray gave the simulated device to no worker"
    assert all(one["device_facts"]["simulated"] for one in workers)
    assert processes_of(tmp_path) == []


def test_a_device_with_a_wrong_gradient_of_attention_turns_it_red(trainer_cell, tmp_path):
    outcome = trainer_cell.execute(CHECK, tmp_path, [WRONG_ATTENTION])
    judgement = judge_outcome(trainer_cell.tasks[CHECK].check, outcome)

    assert outcome.state is State.COMPLETED
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    assert any("not surely above 0.400" in reason for reason in judgement.reasons), judgement.reasons
    assert any("of the first step is" in reason for reason in judgement.reasons), judgement.reasons


def test_a_trainer_that_stands_still_is_ended_and_says_where(trainer_cell, tmp_path):
    hang = {"op": "_softmax_backward_data", "kind": "hang", "after": 20}
    folder, out = tmp_path / "task", tmp_path / "run.json"
    folder.mkdir()
    argv, variables = trainer_cell.command(
        PROGRAM,
        *("--algorithm", ALGORITHM, "--device", "npu", "--folder", str(folder), "--out", str(out)),
        *("--step-seconds", "15"),
        faults=[hang],
    )
    done = subprocess.run(
        argv, env={**os.environ, **variables}, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["state"] == "hung"
    assert "harness/devices/sim" in found["where"], found["where"]
    assert found["swept"] > 3
    assert processes_of(folder) == []
