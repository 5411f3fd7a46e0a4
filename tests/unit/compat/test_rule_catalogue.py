"""Every rule is explained, and its example shows what it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from test_lint_rules import GOOD, NOW

from harness.cli.rule_output import rule_lines, rule_list
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_check import lint_job
from harness.compat.lint.rule_catalogue import explained_rule, explained_rules
from harness.compat.lint.ruleset import VERSION_NAMES, load_ruleset
from harness.errors import InputError
from harness.package import PACKAGE_ROOT


def rules_found(settings: Sequence[str]) -> set[str]:
    recipe: dict[str, Any] = {**GOOD, **{part: dict(GOOD[part]) for part in ("overrides", "env", "facts")}}
    versions = dict(NOW)
    for setting in settings:
        name, _, value = setting.partition("=")
        parts = {"env": recipe["env"], "fact": recipe["facts"]}
        part, _, rest = name.removeprefix("~").partition(".")
        target, key = (parts[part], rest) if part in parts else (recipe["overrides"], name.removeprefix("~"))
        if name in VERSION_NAMES:
            target, key = versions, name
        elif name in ("entry", "model"):
            target, key = recipe, name
        if name.startswith("~"):
            target.pop(key, None)
        else:
            number = part == "fact" and re.fullmatch(r"[\d.]+", value)
            target[key] = float(value) if number else value
    return {finding.rule for finding in lint_job(JobSettings.from_facet(recipe), versions).findings}


@pytest.mark.parametrize("rule", load_ruleset().rules, ids=lambda rule: rule.id)
def test_the_example_of_a_rule_is_reported_until_it_is_corrected(rule: Any) -> None:
    assert rule.id in rules_found(rule.example.wrong)
    assert rule.id not in rules_found([*rule.example.wrong, *rule.example.right])


def test_every_rule_in_the_code_is_explained() -> None:
    sources = (PACKAGE_ROOT / "compat" / "lint").rglob("*.py")
    ids = {found for file in sources for found in re.findall(r'_RULE = "([A-Z-]+)"', file.read_text("utf-8"))}
    assert ids
    assert ids <= set(explained_rules())


def test_a_rule_is_explained_in_80_columns() -> None:
    for rule in explained_rules().values():
        lines = rule_lines(rule).splitlines()
        prose = lines[: lines.index("  wrong:")]
        assert all(len(line) <= 80 or len(line.split()) == 1 for line in prose), rule.id
        assert rule.source.split()[0] in rule_lines(rule)
    assert rule_list([*explained_rules().values()]).count("(error)") > 10


def test_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        explained_rule("GROUP")
    assert caught.value.problems[0].fix.startswith("nearest: GROUP-1")
    assert explained_rule("group-1").id == "GROUP-1"
