"""verl's trainer with a vLLM rollout: passes on a clean device, fails if rollout and trainer disagree. Takes minutes.

`npu-matrix --profile full run --only verl-0-7-1-sim-4b15a92bd487 --check environment` builds the cell.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.convergence.trainer import vllm_check, vllm_one_step_check, vllm_rollout
from harness.convergence.trainer.trainer_measurements import GapLimits, TrainerMeasurements
from harness.convergence.trainer.trainer_runs import PROGRAM, read_run
from harness.measurements import read_shape
from harness.outcome import Evidence, State, Status
from harness.sources.git.mirrors import find_mirror, mirror_folders
from harness.verdict.verdict import judge_outcome

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]
ALGORITHM = "gspo"
ONE_STEP = vllm_one_step_check.CHECK.name
RECIPE = "recipe/one_step_off_policy/"
CHECK = f"trainer-vllm-{ALGORITHM}"
# Only the rollout calls this operator: the trainer's attention is eager.
COARSE_ATTENTION = {"op": "*infer_attention*", "kind": "round"}
# Every process of verl loads this plug-in; the process that sends weights omits one tensor of each update.
FORGETFUL = """
from harness.convergence.trainer.verl_extensions.verl_plugin import act


def forget(module):
    send = module.BucketedWeightSender.async_send_weights

    async def forgetful(self, weights):
        await send(self, (pair for pair in weights if pair[0] != "model.layers.1.mlp.down_proj.weight"))

    module.BucketedWeightSender.async_send_weights = forgetful


act({"verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": forget})
"""


def run_program(cell, folder, *arguments, python_path=()) -> TrainerMeasurements:
    """Run the trainer's program in the cell, with the settings of the checks with vLLM."""
    task, out = folder / "task", folder / "run.json"
    task.mkdir()
    completed = cell.run(
        folder,
        PROGRAM,
        *("--device", "npu", "--folder", str(task), "--out", str(out), *arguments),
        python_path=python_path,
        env={
            **vllm_rollout.ENVIRONMENT,
            "HF_HOME": str(folder / "hf"),
            "VLLM_CACHE_ROOT": str(folder / "vllm"),
        },
    )
    found = read_run(out, completed)
    assert isinstance(found, TrainerMeasurements), found
    return found


def test_the_two_agree_on_a_clean_device(engine_cell, tmp_path):
    outcome = engine_cell.execute(CHECK, tmp_path)
    judgement = judge_outcome(engine_cell.tasks[CHECK].check, outcome)

    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.PASS, judgement.reasons
    assert outcome.measurements["seconds"]["whole"] > 0


def test_attention_in_bf16_in_the_rollout_alone_is_found(engine_cell, tmp_path):
    outcome = engine_cell.execute(CHECK, tmp_path, [COARSE_ATTENTION])
    judgement = judge_outcome(engine_cell.tasks[CHECK].check, outcome)

    assert outcome.state is State.COMPLETED
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    assert "In step 1 the token probabilities of rollout and trainer differ" in judgement.reasons[0], (
        judgement.reasons
    )


def test_a_weight_that_an_update_forgets_is_found(engine_cell, tmp_path):
    clean = engine_cell.tasks[CHECK].check
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "forgetful.py").write_text(FORGETFUL, encoding="utf-8")
    found = run_program(
        engine_cell,
        tmp_path,
        *("--algorithm", ALGORITHM, "--steps", str(vllm_check.STEPS)),
        *vllm_rollout.arguments(),
        *("--plugin", "forgetful"),
        python_path=[plugins],
    )
    limits = tmp_path / "limits.json"
    engine_cell.run(
        tmp_path, vllm_check.LIMITS_PROGRAM, "--folder", str(tmp_path / "task"), "--out", str(limits)
    )

    judgement = clean.judge(replace(found, limits=read_shape(GapLimits, limits)), {})
    assert found.state == "measured"
    assert judgement.status is Status.FAIL
    assert "In step 1 the token probabilities of rollout and trainer differ" in judgement.reasons[0], (
        judgement.reasons
    )


@pytest.fixture
def one_step_cell(twin_cells):
    """The cell of the stack one-step-off-2card with its own versions, also of vLLM."""
    wanted = vllm_one_step_check.COMMITS
    found = next((one for one in twin_cells if one.verl in wanted and one.axes.get("vllm_ascend")), None)
    if found is None:
        pytest.skip("its cell is not built: run `npu-matrix --profile twins run` with NPU_MATRIX_MIRRORS set")
    return found


def test_one_step_off_the_rollouts_card_gets_the_weights(one_step_cell, tmp_path):
    outcome = one_step_cell.execute(ONE_STEP, tmp_path)
    judgement = judge_outcome(one_step_cell.tasks[ONE_STEP].check, outcome)

    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.PASS, judgement.reasons
    assert {"0", "1"} <= {process["visible"] for process in outcome.measurements["processes"]}


def test_one_step_off_stops_without_our_patch(one_step_cell, tmp_path):
    """Without the patch it requests a process group of a backend that Ray does not have, as on real cards."""
    commit = one_step_cell.verl.partition("@")[2]
    mirrors = mirror_folders()
    mirror = find_mirror(mirrors, commit) if mirrors else None
    if mirror is None:
        pytest.skip("a clone of verl that has its commit is needed: set NPU_MATRIX_MIRRORS")
    tree, unpatched = mirror.tree(commit), tmp_path / "unpatched"
    for path in tree.paths():
        if path.startswith(RECIPE):
            (unpatched / path).parent.mkdir(parents=True, exist_ok=True)
            (unpatched / path).write_bytes(tree.read(path))
    found = run_program(
        one_step_cell,
        tmp_path,
        *("--algorithm", "grpo", "--steps", "1", *vllm_one_step_check.OPTIONS),
        *vllm_rollout.arguments(),
        python_path=[unpatched],
    )
    judgement = vllm_check.judge(found, {})

    assert found.state == "crashed"
    assert judgement.status is Status.FAIL
    assert "HCCL is not registered" in judgement.reasons[1], judgement.reasons
