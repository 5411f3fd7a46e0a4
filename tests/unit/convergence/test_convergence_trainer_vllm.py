"""The checks that run verl's trainer with vLLM, with files instead of the programs in the cell."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from training_samples import run_json, stored

from harness.check import Completed
from harness.convergence.trainer import vllm_check, vllm_one_step_check, vllm_rollout
from harness.convergence.trainer.trainer_measurements import TRAINER_FORMAT
from harness.convergence.trainer.trainer_recipe import RECIPES, overrides
from harness.convergence.trainer.trainer_runs import PROGRAM
from harness.convergence.trainer.verl_extensions import vllm_plugin
from harness.errors import InfrastructureError
from harness.outcome import Evidence, Status

LIMITS = {"mean": 2.1e-6, "largest": 1.7e-5}


def series(**changes):
    return {
        "reward": [0.05, 0.08],
        "entropy": [2.31, 2.36],
        "grad_norm": [0.80, 0.87],
        "probs_difference": [2.5e-8, 1.8e-8],
        "probs_difference_max": [2.4e-7, 1.8e-7],
        "seconds": [12.9, 3.6],
        **changes,
    }


def run_file(**changes):
    own = {
        "recipe": {**RECIPES["gspo"].as_json(), "steps": 2},
        "versions": {"verl": "0.7.1"},
        "seconds": {"start_up": 70.0, "whole": 90.0, "prepare": 1.0},
        "series": series(),
    }
    return run_json(**{**own, **changes})


class Cell:
    """A task context whose cell writes the given run and limits."""

    def __init__(self, folder: Path, written=None, *, limits=LIMITS, kind="sim", vllm_ascend="0.18.0"):
        self.workdir = folder
        self.params = {"algorithm": "gspo", "steps": 2}
        self.facets = {"device": {"kind": kind}, "versions": {"verl": "0.7.1", "vllm_ascend": vllm_ascend}}
        self.written = {PROGRAM: written, vllm_check.LIMITS_PROGRAM: limits}
        self.calls = []

    def log(self, text):
        pass

    def in_cell(self, module, *arguments, env=None, timeout=None):
        self.calls.append((module, arguments, env or {}))
        content = self.written[module]
        if content is not None:
            Path(arguments[arguments.index("--out") + 1]).write_text(json.dumps(content))
        code = 0 if content is not None else 1
        return Completed(argv=(), returncode=code, tail="RuntimeError: no", seconds=1.0, timed_out=False)


def judged(cell):
    measured = vllm_check.run(cell)
    return measured, vllm_check.judge(stored(TRAINER_FORMAT, measured.measurements), cell.params)


def judge_series(folder, **changes):
    return judged(Cell(folder, run_file(series=series(**changes))))[1]


def test_agreement_within_rounding_passes_and_says_what_it_shows_and_what_not(tmp_path):
    measured, judgement = judged(Cell(tmp_path, run_file()))

    assert judgement.status is Status.PASS
    assert measured.evidence is Evidence.SIMULATED
    text = " ".join(judgement.reasons)
    assert "2.5e-08 on average and 2.4e-07 at most, which is 1.4% of what rounding explains" in text
    assert "not that the policy learns" in text
    assert "nothing about the rounding of Ascend hardware" in text
    assert "Not covered: graph mode, torchair" in text


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("probs_difference", [2.5e-8, 3.1e-4], "of rollout and trainer differ by 0.00031"),
        ("probs_difference_max", [1.6e-3, 2e-7], "of rollout and trainer differ by 0.0016"),
        ("probs_difference", ["nan", 2e-8], "of rollout and trainer differ by nan"),
        ("grad_norm", [0.8, "inf"], "Grad_norm is inf at step 2."),
        ("pg_loss", [0.1, "nan"], "Pg_loss is nan at step 2."),
        ("grad_norm", [0.8, 0.0], "The gradient is zero, so the weights were not trained."),
        ("reward", [0.05, 1.7], "The reward is outside its range"),
    ],
)
def test_what_rounding_does_not_explain_fails_with_its_step(tmp_path, name, values, said):
    judgement = judge_series(tmp_path, **{name: values})

    assert judgement.status is Status.FAIL
    assert any(said in reason for reason in judgement.reasons), judgement.reasons


def test_a_gap_that_verl_does_not_report_is_no_agreement(tmp_path):
    without = {name: values for name, values in series().items() if name != "probs_difference_max"}
    _, judgement = judged(Cell(tmp_path, run_file(series=without)))

    assert judgement.status is Status.INCONCLUSIVE
    assert "probs_difference_max" in judgement.reasons[0]


def test_a_run_without_its_last_step_fails(tmp_path):
    short = {name: values[:1] for name, values in series().items()}
    _, judgement = judged(Cell(tmp_path, run_file(series=short, complete=False)))

    assert judgement.status is Status.FAIL
    assert "after 1 of 2 steps" in judgement.reasons[0]


def test_a_trainer_that_does_not_start_fails_with_its_last_words(tmp_path):
    _, judgement = judged(Cell(tmp_path))

    assert judgement.status is Status.FAIL
    assert "Its last line of output: RuntimeError: no" in judgement.reasons


def test_limits_that_cannot_be_measured_are_no_verdict_on_the_cell(tmp_path):
    with pytest.raises(InfrastructureError, match="the limits of rounding errors"):
        judged(Cell(tmp_path, run_file(), limits=None))


def test_two_runs_on_a_host_never_share_a_simulated_device(tmp_path):
    numbers = []
    with vllm_check._device(Cell(tmp_path)) as first, vllm_check._device(Cell(tmp_path)) as second:
        for variables in (first, second):
            numbers.append(int(variables["ASCEND_RT_VISIBLE_DEVICES"]))
            assert int(variables["NPU_SIM_COUNT"]) > numbers[-1]
    assert numbers[0] != numbers[1]
    with vllm_check._device(Cell(tmp_path, kind="npu")) as real:
        assert real == {}


@pytest.mark.parametrize(
    ("vllm_ascend", "interpreted"),
    [("0.11.0rc1", True), ("0.13.0", False), ("0.18.0", False), ("0.23.0", True)],
)
def test_triton_is_interpreted_where_nothing_goes_without_it(tmp_path, vllm_ascend, interpreted):
    with vllm_check._device(Cell(tmp_path, vllm_ascend=vllm_ascend)) as variables:
        assert (variables.get("NPU_SIM_TRITON") == "interpret") is interpreted


def test_every_setting_is_one_of_verls_rollout_and_reaches_the_program(tmp_path):
    cell = Cell(tmp_path, run_file())
    judged(cell)

    _, arguments, environment = cell.calls[0]
    given = [value for option, value in itertools.pairwise(arguments) if option == "--set"]
    assert given == [f"{key}={value}" for key, value in vllm_rollout.OVERRIDES.items()]
    base = overrides(RECIPES["gspo"], (0, 7, 1), task=tmp_path, device="npu")
    assert base["actor_rollout_ref.rollout.name"] == "hf"
    assert environment["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert Path(environment["VLLM_CACHE_ROOT"]).is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        ({"verl": "0.7.1", "vllm_ascend": "0.18.0"}, ""),
        ({"verl": "0.9.1"}, "this cell has no vllm-ascend"),
        ({"verl": "0.6.1", "vllm_ascend": "0.11.0"}, "verl 0.6.1 has no vLLM server"),
        ({"vllm_ascend": "0.18.0"}, "this cell has no verl"),
    ],
)
def test_it_is_asked_where_there_is_a_vllm_server(versions, why):
    found = vllm_check.applies({"versions": versions})
    assert found.startswith(why)
    assert bool(found) == bool(why)


COMMIT = "0.7.0.dev0@ccd7d934f91be98bb3732c78bd1870fa39c399ad"


def one_step_off(folder, **changes):
    steps = vllm_one_step_check.STEPS
    own = {name: [values[0]] * steps for name, values in series().items()}
    recipe = {**RECIPES["grpo"].as_json(), "steps": steps}
    cell = Cell(folder, run_file(series={**own, **changes}, recipe=recipe))
    cell.params = vllm_one_step_check.CHECK.params
    measured = vllm_one_step_check.run(cell)
    return cell, vllm_one_step_check.CHECK.judge(stored(TRAINER_FORMAT, measured.measurements), cell.params)


def test_one_step_off_only_the_first_step_trains_on_what_its_own_policy_sampled(tmp_path):
    cell, judgement = one_step_off(tmp_path, probs_difference=[2.5e-8, 3e-3, 4e-3])

    assert "--one-step-off" in cell.calls[0][1]
    assert judgement.status is Status.PASS, judgement.reasons
    assert "agree on the policy in the first step" in judgement.reasons[0]


def test_one_step_off_weights_that_were_not_handed_over_fail(tmp_path):
    judgement = one_step_off(tmp_path, probs_difference=[3e-2, 3e-2, 3e-2])[1]

    assert judgement.status is Status.FAIL
    assert judgement.reasons[0].startswith(
        "In step 1 the token probabilities of rollout and trainer differ by 0.03"
    )


def test_one_step_off_a_gap_that_verl_does_not_report_is_no_agreement(tmp_path):
    judgement = one_step_off(tmp_path, probs_difference=[])[1]

    assert judgement.status is Status.INCONCLUSIVE
    assert "verl did not log probs_difference" in judgement.reasons[0]


@pytest.mark.parametrize(
    ("verl", "vllm_ascend", "kind", "why"),
    [
        (COMMIT, "0.11.0rc1", "sim", ""),
        (COMMIT, "", "sim", "this cell has no vllm-ascend"),
        ("0.7.1", "0.18.0", "sim", "this check runs only with verl ccd7d934"),
        (COMMIT, "0.11.0rc1", "npu", "this check runs on two simulated devices only"),
    ],
)
def test_one_step_off_is_asked_of_the_commit_that_has_the_patch(verl, vllm_ascend, kind, why):
    facets = {"versions": {"verl": verl, "vllm_ascend": vllm_ascend}, "device": {"kind": kind}}
    found = vllm_one_step_check.applies(facets)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_a_models_class_is_looked_at_where_it_is_asked_for():
    class Registry:
        @staticmethod
        def _run_in_subprocess(function):
            raise AssertionError("started a process")

    vllm_plugin.inspect_here(Registry)
    assert Registry._run_in_subprocess(lambda: 7) == 7
    vllm_plugin.inspect_here(object())
