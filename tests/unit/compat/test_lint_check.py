from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.compat.lint import lint_check
from harness.compat.lint.lint_measurements import CONFIG_RULE, LINT_FORMAT, LintMeasured, UndecidedRule
from harness.outcome import Status

pytestmark = pytest.mark.usefixtures("wheels")
RECIPE = {
    "name": "r",
    "entry": "verl.trainer.main_ppo",
    "overrides": {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.rollout.n": 1,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "+actor_rollout_ref.rollout.calculate_log_probs": False,
        "data.train_files": "${DATA_ROOT}/train.parquet",
    },
    "env": {},
    "nodes": 1,
    "cards": 8,
}


def lint_recipe(context: Any, recipe: Any) -> tuple[LintMeasured, Any]:
    measured = lint_check.run(
        context(
            {
                "recipe": recipe,
                "versions": {"verl": "0.9.1", "python": "host", "soc": "a2"},
                "pins": {},
                "platform": {"python": "3.11", "arch": "x86_64", "host": True},
            }
        )
    )
    stored = LINT_FORMAT.read(LINT_FORMAT.write(measured.measurements))
    return stored, lint_check.judge(stored, {})


def test_an_error_fails_with_its_reason_and_remedy(context: Any) -> None:
    found, judgement = lint_recipe(context, RECIPE)
    assert judgement.status is Status.FAIL
    assert judgement.reasons[0].startswith("error GROUP-1: the GRPO group size is 1")
    assert "rollout.n=8" in judgement.remedies[0]
    assert found.findings[0].file == "recipe r"


BETTER = {**RECIPE, "overrides": {**RECIPE["overrides"], "actor_rollout_ref.rollout.n": 8}}


def test_warnings_pass_and_are_reported(context: Any) -> None:
    found, _judgement = lint_recipe(context, BETTER)
    compared = replace(found, undecided=())
    judgement = lint_check.judge(compared, {})
    assert judgement.status is Status.PASS
    assert any("LOGP-OFF" in reason for reason in judgement.reasons)


def test_settings_that_were_compared_with_no_configuration_are_not_green(context: Any) -> None:
    _found, judgement = lint_recipe(context, {**BETTER, "entry": "recipe.dapo.main_dapo"})
    assert judgement.status is Status.NOT_RUN
    assert judgement.reasons[0].startswith("Not checked: overrides were not compared with the configuration")


def test_a_commit_without_mirror_gives_not_run_and_says_what_would_answer(context: Any) -> None:
    found, _judgement = lint_recipe(context, BETTER)
    unknown = UndecidedRule(
        rule=CONFIG_RULE, unknown=("the configuration of main_ppo in verl 0.6.1@d62da4950573",)
    )
    judgement = lint_check.judge(replace(found, undecided=(unknown,)), {})
    assert judgement.status is Status.NOT_RUN
    assert "NPU_MATRIX_MIRRORS" in judgement.remedies[0]


def test_without_a_verl_recipe_the_check_is_unsupported(context: Any) -> None:
    assert lint_recipe(context, None)[1].status is Status.UNSUPPORTED
    other = {"name": "infer", "entry": "models/infer.sh", "overrides": {"exe_mode": "eager"}}
    assert lint_recipe(context, other)[1].status is Status.UNSUPPORTED


def test_paths_with_equal_texts_are_equal(context: Any) -> None:
    paths = {"data.train_files": "${DATA_ROOT}/a.parquet", "data.val_files": "${DATA_ROOT}/a.parquet"}
    found, _judgement = lint_recipe(context, {**RECIPE, "overrides": {**RECIPE["overrides"], **paths}})
    assert "TESTFREQ" in {finding.rule for finding in found.findings}
    paths["data.val_files"] = "${DATA_ROOT}/b.parquet"
    found, _judgement = lint_recipe(context, {**RECIPE, "overrides": {**RECIPE["overrides"], **paths}})
    assert "TESTFREQ" not in {finding.rule for finding in found.findings}


def test_undecided_rules_are_listed_with_the_unknown_names(context: Any) -> None:
    found, _judgement = lint_recipe(context, RECIPE)
    undecided = UndecidedRule(rule="MOE-WAKE", unknown=("model.experts", "vllm_ascend"), recipe="r")
    assert undecided not in found.undecided
    named = {**RECIPE, "overrides": {**RECIPE["overrides"], "actor_rollout_ref.rollout.name": "vllm"}}
    found, _judgement = lint_recipe(context, named)
    assert undecided in found.undecided
