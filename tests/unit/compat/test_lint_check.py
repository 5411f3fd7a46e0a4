from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_server_commands import CONFIG as VLLM_CONFIG
from test_server_commands import FILES as VLLM_FILES

from harness.compat.lint import lint_check
from harness.compat.lint.engine_findings import ENGINE_RULE
from harness.compat.lint.lint_check import engine_tree, verl_tree
from harness.compat.lint.lint_measurements import (
    CONFIG_RULE,
    LINT_FORMAT,
    LintFinding,
    LintMeasured,
    UndecidedRule,
)
from harness.compat.lint.lint_scripts import lint_file
from harness.compat.lint.program_findings import PROGRAM_RULE
from harness.compat.lint.ruleset import load_ruleset
from harness.compat.lint.serving.server_findings import ServerSources
from harness.digest import digest_bytes
from harness.outcome import Status
from harness.sources.packages.locked_releases import releases_of_task
from harness.sources.tree import Tree
from harness.workspace.linting.given_versions import tree_of_vllm

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
    assert judgement.reasons[0].startswith("error GROUP-1: the group size of grpo is 1")
    assert "rollout.n=8" in judgement.remedies[0]
    assert found.findings[0].file == "recipe r"


BETTER = {**RECIPE, "overrides": {**RECIPE["overrides"], "actor_rollout_ref.rollout.n": 2}}


def test_warnings_pass_and_are_reported(context: Any) -> None:
    found, _judgement = lint_recipe(context, BETTER)
    compared = replace(found, undecided=())
    judgement = lint_check.judge(compared, {})
    assert judgement.status is Status.PASS
    assert any("GROUP-SMALL" in reason for reason in judgement.reasons)


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


MAIN = """\
import hydra
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    print(config.trainer.nnodes)
"""
PATCH = """\
--- a/verl/trainer/config/ppo_trainer.yaml
+++ b/verl/trainer/config/ppo_trainer.yaml
@@ -1 +1,2 @@
 trainer: {nnodes: 1}
+npu: {fusion: true}
"""


def lint_with_patch(context: Any, wheels: Any, tmp_path: Path, patch: str) -> tuple[LintMeasured, Any]:
    config = {
        "verl/trainer/main_ppo.py": MAIN,
        "verl/trainer/config/ppo_trainer.yaml": "trainer: {nnodes: 1}\n",
    }
    wheels.add("verl", "0.9.1", files=config)
    facets = {
        "recipe": {"name": "r", "entry": "verl.trainer.main_ppo", "overrides": {"npu.fusion": "false"}},
        "versions": {"verl": "0.9.1", "python": "host", "soc": "a2"},
        "pins": {},
        "platform": {"python": "3.11", "arch": "x86_64", "host": True},
        "patches[verl]": [],
    }
    task = context(facets)
    if patch:
        (task.root / "0001-npu.patch").write_text(patch)
        entry = {"id": "verl/0001-npu", "file": "0001-npu.patch", "digest": digest_bytes(patch.encode())}
        task.facets = {**facets, "patches[verl]": [entry]}
    measured = lint_check.run(task)
    stored = LINT_FORMAT.read(LINT_FORMAT.write(measured.measurements))
    return stored, lint_check.judge(stored, {})


def test_the_cell_is_linted_with_its_patches_of_verl(context: Any, wheels: Any, tmp_path: Path) -> None:
    plain, judgement = lint_with_patch(context, wheels, tmp_path, "")
    assert [one.rule for one in plain.findings if one.severity == "error"] == ["CONFIG-KEY"]
    assert judgement.status is Status.FAIL
    patched, judgement = lint_with_patch(context, wheels, tmp_path, PATCH)
    assert [one.rule for one in patched.findings if one.severity == "error"] == []
    assert (judgement.status, patched.misfits) == (Status.PASS, ())


def test_a_patch_that_does_not_apply_is_told_and_left_out(context: Any, wheels: Any, tmp_path: Path) -> None:
    found, judgement = lint_with_patch(context, wheels, tmp_path, PATCH.replace("nnodes: 1", "nnodes: 2"))
    assert found.misfits == ("verl/0001-npu",)
    assert judgement.status is Status.FAIL
    assert "Checked without our patch verl/0001-npu, which does not apply." in judgement.reasons


ENGINE_CONFIG = """\
actor_rollout_ref:
  actor: {use_dynamic_bsz: true}
  rollout: {engine_kwargs: {vllm: {max_num_seqs: 1}}}
"""
ENGINE_MAIN = """\
import hydra
from vllm import LLM
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    LLM(model="m", **config.actor_rollout_ref.rollout.engine_kwargs.vllm)
"""
PLAIN_PLATFORM = """\
class NPUPlatform:
    @classmethod
    def check_and_update_config(cls, vllm_config):
        sequences = vllm_config.scheduler_config.max_num_seqs
        return sequences
"""
STRICT_PLATFORM = PLAIN_PLATFORM.replace(
    "        return", "        if sequences > 4:\n            raise ValueError('too many')\n        return"
)


def unified(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return "".join(lines)


@pytest.mark.parametrize("raises_in", ["the patch", "the release", "both"])
def test_vllm_ascend_is_followed_with_its_patches_of_the_cell(
    context: Any, wheels: Any, raises_in: str
) -> None:
    path = "vllm_ascend/platform.py"
    before = PLAIN_PLATFORM if raises_in == "the patch" else STRICT_PLATFORM
    after = PLAIN_PLATFORM if raises_in == "the release" else STRICT_PLATFORM
    config = {
        "verl/trainer/main_ppo.py": ENGINE_MAIN,
        "verl/trainer/config/ppo_trainer.yaml": ENGINE_CONFIG,
    }
    wheels.add("verl", "0.9.1", files=config)
    wheels.add("vllm-ascend", "0.11.0", files={path: before})
    dynamic = "actor_rollout_ref.actor.use_dynamic_bsz"
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_seqs"
    task = context(
        {
            "recipe": {"name": "r", "entry": "verl.trainer.main_ppo", "overrides": {key: 8, dynamic: True}},
            "versions": {"verl": "0.9.1", "vllm_ascend": "0.11.0", "python": "host", "soc": "a2"},
            "pins": {},
            "platform": {"python": "3.11", "arch": "x86_64", "host": True},
            "patches[verl]": [],
            "patches[vllm_ascend]": [],
        }
    )
    if raises_in != "both":
        patch = unified(path, before, after)
        (task.root / "0001-check.patch").write_text(patch)
        task.facets["patches[vllm_ascend]"] = [
            {"id": "vllm_ascend/x", "file": "0001-check.patch", "digest": digest_bytes(patch.encode())}
        ]
    measured = lint_check.run(task).measurements
    stops = [one for one in measured.findings if one.rule == "ENGINE-CHECK"]
    assert len(stops) == (raises_in != "the release")
    assert measured.misfits == ()
    assert (lint_check.judge(measured, {}).status is Status.FAIL) is bool(stops)


@pytest.mark.parametrize("upstream", ["verl", "vllm_ascend"])
def test_patches_that_are_not_known_give_not_run(context: Any, wheels: Any, upstream: str) -> None:
    unread = {
        "axis": "fork",
        "version": "1",
        "commit": "ab" * 20,
        "reason": "no mirror",
        "remedy": "clone it",
    }
    task = context(
        {
            "recipe": BETTER,
            "versions": {"verl": "0.9.1", "python": "host", "soc": "a2"},
            "pins": {},
            "platform": {"python": "3.11", "arch": "x86_64", "host": True},
            f"patches[{upstream}]": [{"unread": unread}],
        }
    )
    measured = lint_check.run(task).measurements
    assert measured.absent_commits == ("ab" * 20,)
    assert lint_check.judge(measured, {}).status is Status.NOT_RUN


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


def test_a_finding_that_another_one_at_its_place_covers_is_told_once() -> None:
    rules = load_ruleset()
    known = {PROGRAM_RULE, ENGINE_RULE, *(rule.id for rule in rules.rules)}
    assert {rule.covered_by for rule in rules.rules} - {""} <= known
    (covered,) = (rule for rule in rules.rules if rule.id == "ROLLOUT-DIVIDES")

    def finding(rule: str, line: int) -> LintFinding:
        texts = dict.fromkeys(("message", "why", "fix", "source"), "text")
        return LintFinding(rule=rule, severity="error", file="run.sh", line=line, column=1, **texts)

    all_of_them = [finding(covered.id, 3), finding(PROGRAM_RULE, 3), finding(covered.id, 4)]
    told = lint_check._told_once(all_of_them, rules)
    assert [(one.rule, one.line) for one in told] == [(PROGRAM_RULE, 3), (covered.id, 4)]


VLLM_CHECK = """
    def verify_memory(self):
        if not 0 < self.fraction <= 1.0:
            raise ValueError(f"memory {self.fraction}")
"""
VLLM = {
    **VLLM_FILES,
    "vllm/config/all.py": VLLM_CONFIG.replace(
        "    images: dict[str, int] | None = None\n",
        f"    images: dict[str, int] | None = None\n{VLLM_CHECK}",
    ),
}
MEMORY = "actor_rollout_ref.rollout.engine_kwargs.vllm.fraction"


@pytest.mark.parametrize(
    ("vllm", "value", "problems"),
    [
        ("0.18.0", 1.5, ["vllm stops: memory 1.5"]),
        ("0.18.0", 0.5, []),
        ("0.18.0", "${MEMORY}", []),
        (f"0.18.0@{'ab' * 20}", 1.5, []),
        ("", 1.5, []),
    ],
)
def test_a_cell_and_a_script_get_the_same_findings_of_vllm_itself(
    context: Any, wheels: Any, tmp_path: Path, vllm: str, value: Any, problems: list[str]
) -> None:
    path = "vllm_ascend/platform.py"
    config = ENGINE_CONFIG.replace("max_num_seqs: 1", "fraction: 0.9")
    files = {"verl/trainer/main_ppo.py": ENGINE_MAIN, "verl/trainer/config/ppo_trainer.yaml": config}
    wheels.add("verl", "0.9.1", files=files)
    wheels.add("vllm-ascend", "0.18.0", files={path: PLAIN_PLATFORM})
    wheels.add("vllm", "0.18.0", files=VLLM)
    versions = {"verl": "0.9.1", "vllm_ascend": "0.18.0", **({"vllm": vllm} if vllm else {})}
    dynamic = "actor_rollout_ref.actor.use_dynamic_bsz"
    recipe = {"name": "r", "entry": "verl.trainer.main_ppo", "overrides": {MEMORY: value, dynamic: True}}
    task = context(
        {
            "recipe": recipe,
            "versions": {**versions, "python": "host", "soc": "a2"},
            "pins": {},
            "platform": {"python": "3.11", "arch": "x86_64", "host": True},
        }
    )
    measured = LINT_FORMAT.read(LINT_FORMAT.write(lint_check.run(task).measurements))
    judgement = lint_check.judge(measured, {})
    if not vllm:
        # vllm-ascend 0.18.0 is made for this release.
        problems = ["vllm stops: memory 1.5"]
    assert [one.message for one in measured.findings if one.rule == "ENGINE-CHECK"] == problems
    assert judgement.status is (Status.FAIL if problems else Status.PASS)
    script = tmp_path / "run.sh"
    script.write_text(f"python -m verl.trainer.main_ppo {MEMORY}={value} {dynamic}=True\n")
    releases = releases_of_task(task)
    verl, ascend = verl_tree(versions, releases), engine_tree(versions, releases)
    assert verl
    assert ascend

    def fetch_vllm() -> Tree | None:
        return tree_of_vllm(versions, releases)

    servers = ServerSources(fetch_vllm=fetch_vllm)
    by_script = lint_file(script, versions, verl[0], engine=ascend[0], servers=servers)
    assert [one.message for one in by_script.findings if one.rule == "ENGINE-CHECK"] == problems
    told = [reason for reason in judgement.reasons if reason.startswith("Not checked")]
    unknown = [one.unknown for one in by_script.undecided if one.rule == "ENGINE-CHECK"]
    if "@" not in vllm:
        assert (told, unknown, measured.absent_commits) == ([], [], ())
        assert "vllm" in {archive.package for archive in measured.archives_read}
    else:
        assert "Not checked: the sources of vllm 0.18.0@abababababab are not available." in told
        assert "the source of vllm 0.18.0@abababababab" in unknown[0]
        assert measured.absent_commits == ("ab" * 20,)
        assert any("NPU_MATRIX_MIRRORS" in one for one in judgement.remedies)


def test_after_an_error_it_is_not_told_what_else_was_not_followed(context: Any) -> None:
    """An expected failure lists the reasons of the failure only."""
    found, _judgement = lint_recipe(context, RECIPE)
    unfollowed = UndecidedRule(rule=ENGINE_RULE, unknown=("the steps of a check", "vllm_ascend"))
    failed = lint_check.judge(replace(found, undecided=(unfollowed,)), {})
    assert not any("Not checked" in reason for reason in failed.reasons)
    passed = lint_check.judge(replace(found, findings=(), undecided=(unfollowed,)), {})
    told = "Not checked: what vLLM and vllm-ascend verify themselves needs the steps of a check."
    assert (passed.status, passed.reasons) == (Status.PASS, (told,))
