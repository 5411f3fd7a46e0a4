"""SARIF: places in characters, fixes, fingerprints, and what was not checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.compat.lint.launch_script import script_of
from harness.compat.lint.line_hashes import line_hashes
from harness.compat.lint.lint_scripts import lint_script
from harness.compat.lint.sarif import as_sarif
from harness.compat.lint.script_fixes import FixTrials

SCRIPT = (
    "# é\n"
    "echo 'é'; export TASK_QUEUE_ENABLE=2\n"
    "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=1 \\\n"
    "  actor_rollout_ref.rollout.enforce_eager=False\n"
)


def sarif_run(path: Path, text: str = SCRIPT) -> Any:
    data = text.encode()

    def lint(script: bytes) -> Any:
        return lint_script(script_of(script, path), {})

    fixes = {fix.finding: fix for fix in FixTrials(path, data, lint).fixed(lambda _one: True).fixes}
    document = json.loads(as_sarif(lint(data), fixes, lambda _name: data))
    assert document["version"] == "2.1.0"
    [run] = document["runs"]
    return run


def result_of(run: Any, rule: str) -> Any:
    return next(one for one in run["results"] if one["ruleId"] == rule)


def test_a_result_has_its_rule_its_word_and_its_fingerprint() -> None:
    run = sarif_run(Path("my scripts/é.sh"))
    found = result_of(run, "GROUP-1")
    assert run["tool"]["driver"]["rules"][found["ruleIndex"]]["id"] == "GROUP-1"
    place = found["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "my%20scripts/%C3%A9.sh", "uriBaseId": "%SRCROOT%"}
    line = SCRIPT.splitlines()[2]
    region = place["region"]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == "actor_rollout_ref.rollout.n=1"
    assert found["partialFingerprints"] == {"primaryLocationLineHash": line_hashes(SCRIPT)[2]}


def test_a_fix_replaces_characters_and_not_bytes() -> None:
    found = result_of(sarif_run(Path("run.sh")), "GRAPH-QUEUE")
    [change] = found["fixes"][0]["artifactChanges"]
    [replacement] = change["replacements"]
    region = replacement["deletedRegion"]
    line = SCRIPT.splitlines()[region["startLine"] - 1]
    fixed = (
        line[: region["startColumn"] - 1]
        + replacement["insertedContent"]["text"]
        + line[region["endColumn"] - 1 :]
    )
    assert fixed == "echo 'é'; export TASK_QUEUE_ENABLE=1"


def test_a_finding_keeps_its_fingerprint_when_lines_come_before_it() -> None:
    before, after = (sarif_run(Path("run.sh"), text) for text in (SCRIPT, f"# new\n\n{SCRIPT}"))
    prints = [result_of(run, "GROUP-1")["partialFingerprints"] for run in (before, after)]
    assert prints[0] == prints[1]


def test_what_was_not_checked_is_a_notification() -> None:
    [invocation] = sarif_run(Path("run.sh"))["invocations"]
    assert not invocation["executionSuccessful"]
    texts = [one["message"]["text"] for one in invocation["toolExecutionNotifications"]]
    assert any(text.startswith("was not checked: overrides were not compared") for text in texts)


def test_a_script_outside_of_the_current_folder_is_a_file_uri(tmp_path: Path) -> None:
    found = result_of(sarif_run(tmp_path / "run.sh"), "GROUP-1")
    artifact = found["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": (tmp_path / "run.sh").as_uri()}
