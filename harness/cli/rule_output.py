"""Prints rules of lint: one with its example and source, or a list."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compat.lint.lint_format import wrapped
from harness.compat.lint.rule_catalogue import RuleExplanation, example_word
from harness.serialisation import as_object, dumps


def rule_lines(rule: RuleExplanation) -> str:
    """A rule in at most 80 columns, except for words that are longer."""
    parts = {"why": rule.why, "fix": rule.fix, "source": rule.source, "known from": rule.verified}
    lines = [wrapped(f"{rule.id} ({rule.severity}): ", rule.summary)]
    lines += [wrapped(f"  {name}: ", text) for name, text in parts.items()]
    for name, settings in (("wrong", rule.wrong), ("right", rule.right)):
        lines += [f"  {name}:", *(f"    {example_word(setting)}" for setting in settings)]
    return "\n".join(lines)


def rule_list(rules: Sequence[RuleExplanation]) -> str:
    """The rules by severity as they come, one paragraph for each."""
    listed = [wrapped(f"{rule.id} ({rule.severity}): ", rule.summary) for rule in rules]
    return "\n".join([*listed, "", f"{len(rules)} rules; `npu-matrix lint --explain RULE` explains one"])


def rule_json(rules: Sequence[RuleExplanation]) -> str:
    """JSON of the schema `npu-matrix.lint-rules`."""
    schema = {"name": "npu-matrix.lint-rules", "version": 1}
    return dumps({"schema": schema, "rules": [as_object(rule) for rule in rules]}, indent=2)
