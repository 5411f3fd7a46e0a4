"""verl's own trainer in a cell of the main job: passes on a clean device, fails for the right reason on a bad one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

import pytest

from harness.convergence.trainer import one_step_check
from harness.convergence.trainer.trainer_measurements import TrainerMeasurements
from harness.convergence.trainer.trainer_runs import PROGRAM, judge, read_run
from harness.outcome import Evidence, State, Status
from harness.sources.git.mirrors import find_mirror, mirror_folders
from harness.verdict.verdict import judge_outcome
from harness.workspace.planning.open_plan import open_plan

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]
ALGORITHM = "gspo"
# The commit of the stack one-step-off-2card.
COMMIT = "ccd7d934f91be98bb3732c78bd1870fa39c399ad"
CHECK = f"trainer-{ALGORITHM}"
# Tested with a fault only: both algorithms have the same judge, and a run takes a minute.
OTHER = "trainer-grpo"
ONE_STEP = "trainer-one-step-off"
MINUTES = pytest.mark.skipif(
    bool(os.environ.get("CI")), reason="takes one to three minutes, too long for CI: run this file by hand"
)
ENGINE = "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module"
# Attention does not learn with this fault, and a policy without attention cannot read its prompt.
WRONG_ATTENTION = {"op": "_softmax_backward_data", "kind": "sign"}


@pytest.fixture
def trainer_cell(built_cells):
    """The cell of verl 0.6.1 with the tasks that the default profile leaves out."""
    cell = next(one for one in built_cells if one.verl == "0.6.1")
    return with_checks(cell, CHECK, OTHER)


@pytest.fixture
def queue_cell(built_cells):
    """The cell of verl 0.9.1, whose trainer moves its data through TransferQueue."""
    cell = next(one for one in built_cells if one.verl == "0.9.1")
    return with_checks(cell, ONE_STEP)


def with_checks(cell, *checks):
    """The cell with tasks that its profile leaves out."""
    plan = open_plan(cell.settings, checks=checks).plan
    ids = {one.id for one in plan.cells if one.axes == cell.axes}
    keys = {entry.check: entry.key for entry in plan.entries if entry.cell_id in ids}
    return dataclasses.replace(
        cell, tasks={**cell.tasks, **{name: plan.tasks[keys[name]] for name in checks}}
    )


@pytest.fixture
def one_step_cell(twin_cells):
    """The cell with verl's one-step-off recipe, and the tree of its commit, which needs a mirror."""
    found = next((one for one in twin_cells if COMMIT in one.verl), None)
    mirrors = mirror_folders()
    mirror = find_mirror(mirrors, COMMIT) if mirrors else None
    if found is None or mirror is None:
        pytest.skip("its cell is not built: run `npu-matrix --profile twins run` with NPU_MATRIX_MIRRORS set")
    return found, mirror.tree(COMMIT)


def run_program(cell, folder, *arguments, faults=(), python_path=()) -> TrainerMeasurements:
    """Run the trainer's program in the cell, as its checks do."""
    task, out = folder / "task", folder / "run.json"
    task.mkdir()
    completed = cell.run(
        folder,
        PROGRAM,
        *("--device", "npu", "--folder", str(task), "--out", str(out), *arguments),
        faults=faults,
        python_path=python_path,
    )
    assert processes_of(folder) == []
    found = read_run(out, completed)
    assert isinstance(found, TrainerMeasurements), found
    return found


def processes_of(folder: Path) -> list[str]:
    """The commands of the running processes that were started for the run in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_the_trainer_learns_on_the_simulated_device(trainer_cell, tmp_path):
    outcome = trainer_cell.execute(CHECK, tmp_path)
    # How fast it is says nothing here: the tests beside it use the same processors, memory and disk.
    load = {**outcome.measurements["host"], "others": None}
    untimed = dataclasses.replace(outcome, measurements={**outcome.measurements, "host": load})
    judgement = judge_outcome(trainer_cell.tasks[CHECK].check, untimed)

    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.PASS, judgement.reasons
    workers = [one for one in outcome.measurements["processes"] if one["visible"] == "0"]
    assert workers, "Ray gave the simulated device to no worker"
    assert all(one["device_facts"]["simulated"] for one in workers)
    assert processes_of(tmp_path) == []


def test_a_device_with_a_wrong_gradient_of_attention_turns_it_red(trainer_cell, tmp_path):
    outcome = trainer_cell.execute(OTHER, tmp_path, [WRONG_ATTENTION])
    judgement = judge_outcome(trainer_cell.tasks[OTHER].check, outcome)

    assert outcome.state is State.COMPLETED
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    # Detected by the bands of the shipped reference set, at their first look, with two seeds.
    assert "between-run standard deviations" in judgement.reasons[0], judgement.reasons
    assert sum("It was stopped after" in reason for reason in judgement.reasons) == 2, judgement.reasons
    assert any("of the first step is" in reason for reason in judgement.reasons), judgement.reasons


@MINUTES
def test_a_trainer_that_stands_still_is_ended_and_says_where(trainer_cell, tmp_path):
    hang = {"op": "_softmax_backward_data", "kind": "hang", "after": 20}

    found = run_program(
        trainer_cell, tmp_path, "--algorithm", ALGORITHM, "--step-seconds", "15", faults=[hang]
    )

    assert found.state == "hung"
    assert "harness/devices/sim" in found.where, found.where
    assert found.swept > 3


@MINUTES
def test_a_transfer_queue_that_nobody_has_processors_for_is_ended_and_says_where(queue_cell, tmp_path):
    """By default eight storage units request one processor each. On a small host verl waits forever."""
    name = "transfer_queue.backend.SimpleStorage.num_data_storage_units"

    found = run_program(
        queue_cell,
        tmp_path,
        *("--algorithm", ALGORITHM, "--start-up-seconds", "45"),
        *("--set", f"{name}=8", "--set", "ray_kwargs.ray_init.num_cpus=4"),
    )
    judgement = judge(found, {})

    assert found.state == "hung"
    assert found.returncode is None
    assert "transfer_queue/" in found.where, (found.where, found.stacks)
    assert judgement.status is Status.FAIL
    assert "before its first step" in judgement.reasons[0]
    assert found.where in judgement.reasons[0]


def test_one_step_off_policy_training_stops_without_our_patch(one_step_cell, tmp_path):
    """Without the patch it requests a backend that Ray does not have; the check recipe-twin tests it with the patch."""
    cell, tree = one_step_cell
    for path in tree.paths():
        if path.startswith("recipe/one_step_off_policy/"):
            unpatched = tmp_path / "unpatched" / path
            unpatched.parent.mkdir(parents=True, exist_ok=True)
            unpatched.write_bytes(tree.read(path))

    found = run_program(
        cell,
        tmp_path,
        *("--algorithm", "grpo", "--one-step-off", "--steps", "2"),
        python_path=[tmp_path / "unpatched"],
    )
    judgement = judge(found, {})

    assert found.state == "crashed"
    assert judgement.status is Status.FAIL
    assert "HCCL" in judgement.reasons[1] or "NCCL" in judgement.reasons[1], judgement.reasons


@MINUTES
def test_without_a_group_it_stops_and_says_so(queue_cell, tmp_path):
    found = run_program(
        queue_cell,
        tmp_path,
        *("--algorithm", "grpo", "--one-step-off", "--steps", "2", "--set", f"{ENGINE}=null"),
    )
    judgement = judge(found, {})

    assert found.state == "crashed"
    assert judgement.status is Status.FAIL
    assert "Checkpoint engine nccl not registered" in judgement.reasons[1], judgement.reasons


@MINUTES
def test_weights_that_never_reach_the_rollout_turn_it_red_by_the_gap(queue_cell, tmp_path):
    found = run_program(
        queue_cell,
        tmp_path,
        *("--algorithm", "grpo", "--one-step-off", "--steps", "12", "--set", f"{ENGINE}=lost_weights"),
        python_path=[Path(__file__).parent],
    )
    judgement = one_step_check.judge(found, {})

    assert found.state == "measured"
    assert judgement.status is Status.FAIL
    assert "more than the 3.66 that one-step staleness explains" in judgement.reasons[0], judgement.reasons
    assert "weight sync" in judgement.remedies[0]


@MINUTES
def test_released_one_step_off_policy_training_learns_on_two_devices(queue_cell, tmp_path):
    outcome = queue_cell.execute(ONE_STEP, tmp_path)
    judgement = judge_outcome(queue_cell.tasks[ONE_STEP].check, outcome)

    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.PASS, judgement.reasons
    assert "within the 3.66 that one-step staleness explains" in judgement.reasons[0], judgement.reasons
    assert {one["visible"] for one in outcome.measurements["processes"]} >= {"0", "1"}
    assert processes_of(tmp_path) == []
