from __future__ import annotations

import json

import pytest

from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_format import FORMATS
from harness.compat.lint.lint_measurements import LintResult
from harness.compat.lint.lint_scripts import lint_script

SCRIPT = "source missing.sh; for i in 1; do\npython -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n  actor_rollout_ref.rollout.n=1\ndone\n"


@pytest.fixture
def result() -> LintResult:
    return lint_script(parse_script(SCRIPT, "a,b:c%.sh"), {"verl": "0.9.1"})


def test_text_has_the_form_of_compiler_messages(result: LintResult) -> None:
    text = FORMATS["text"](result)
    assert "a,b:c%.sh:3:3: error GROUP-1: the group size of grpo is 1\n  why: a group of one" in text
    assert "line 1: not fully understood" in text
    assert (
        "VALUE-TYPO, VALUE-UNKNOWN, ENGINE-OPTION, VERL-CHECK, ENGINE-CHECK, UNREAD, NO-PROGRAM "
        "(not known: the configuration of verl.trainer.main_ppo in verl 0.9.1)" in text
    )
    assert text.splitlines()[-1].startswith("2 errors, ")


def test_github_commands_are_escaped(result: LintResult) -> None:
    line = next(line for line in FORMATS["github"](result).splitlines() if "GROUP-1" in line)
    assert line.startswith(
        "::error file=a%2Cb%3Ac%25.sh,line=3,title=GROUP-1,col=3::the group size of grpo is 1%0Awhy"
    )


def test_sarif_and_json_contain_every_finding(result: LintResult) -> None:
    sarif = json.loads(FORMATS["sarif"](result))
    [run] = sarif["runs"]
    assert len(run["results"]) == len(result.findings)
    assert {r["ruleId"] for r in run["results"]} == {r["id"] for r in run["tool"]["driver"]["rules"]}
    plain = json.loads(FORMATS["json"](result))
    assert plain["schema"] == {"name": "npu-matrix.lint", "version": 1}
    assert len(plain["findings"]) == len(result.findings)


def test_a_result_without_findings_is_printed() -> None:
    empty = LintResult(findings=(), undecided=())
    assert FORMATS["text"](empty) == "0 errors, 0 warnings, 0 notes; 0 rules not decided\n"
    assert FORMATS["github"](empty) == ""
