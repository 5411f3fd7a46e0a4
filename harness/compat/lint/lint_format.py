"""Print lint results as text, JSON, GitHub workflow commands or SARIF."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from harness import __version__
from harness.compat.lint.lint_measurements import LintFinding, LintResult
from harness.compat.lint.ruleset import load_ruleset
from harness.serialisation import JsonValue, json_object

GITHUB_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
SCHEMA = {"name": "npu-matrix.lint", "version": 1}
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(result: LintResult) -> str:
    """Text like that of a compiler: location, severity and rule, then the reason, the fix and the source."""
    lines = []
    for finding in result.findings:
        lines += [
            str(finding),
            f"  why: {finding.why}",
            f"  do:  {finding.fix}",
            f"  see: {finding.source}",
        ]
    lines += [f"line {note.line}: not fully understood: {note.text}" for note in result.notes]
    lines += [f"not decided: {item.rule} (not known: {', '.join(item.unknown)})" for item in result.undecided]
    return "\n".join([*lines, summary(result)]) + "\n"


def summary(result: LintResult) -> str:
    """The number of findings of each severity, in one line."""
    counts = {level: sum(f.severity == level for f in result.findings) for level in GITHUB_LEVELS}
    counted = [f"{count} {level}{'s' if count != 1 else ''}" for level, count in counts.items()]
    text = f"{', '.join(counted)}; {len(result.undecided)} rules not decided"
    return f"{text}; incomplete: {'; '.join(result.unchecked)}" if result.unchecked else text


def as_github(result: LintResult) -> str:
    """GitHub workflow commands, which annotate the line."""
    lines = []
    for finding in result.findings:
        properties = {"file": finding.file, "line": finding.line or 1, "title": finding.rule}
        if finding.column:
            properties["col"] = finding.column
        written = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
        text = _data(f"{finding.message}\nwhy: {finding.why}\ndo: {finding.fix}\nsee: {finding.source}")
        lines.append(f"::{GITHUB_LEVELS[finding.severity]} {written}::{text}")
    lines += [f"::warning title=lint::{_data(f'was not checked: {text}')}" for text in result.unchecked]
    return "".join(f"{line}\n" for line in lines)


def as_json(result: LintResult) -> str:
    """JSON of the schema `npu-matrix.lint`."""
    return (
        json.dumps({"schema": SCHEMA, **json_object(result), "unchecked": list(result.unchecked)}, indent=2)
        + "\n"
    )


def as_sarif(result: LintResult) -> str:
    """SARIF 2.1.0."""
    used = {finding.rule: finding for finding in result.findings}
    known = {rule.id: rule for rule in load_ruleset().rules}
    rules = [
        {
            "id": name,
            "shortDescription": {"text": finding.message},
            "fullDescription": {"text": finding.why},
            "help": {"text": f"{finding.fix}\nSource: {finding.source}"},
            "defaultConfiguration": {"level": finding.severity},
            "properties": {"verified": known[name].verified if name in known else "code"},
        }
        for name, finding in sorted(used.items())
    ]
    driver = {"name": "npu-matrix", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "results": [_sarif_result(finding) for finding in result.findings]}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_result(finding: LintFinding) -> dict[str, JsonValue]:
    physical: dict[str, JsonValue] = {"artifactLocation": {"uri": finding.file}}
    if finding.line:
        region: dict[str, JsonValue] = {"startLine": finding.line}
        if finding.column:
            region["startColumn"] = finding.column
        physical["region"] = region
    return {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": f"{finding.message}. {finding.why}. {finding.fix}"},
        "locations": [{"physicalLocation": physical}],
    }


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: Mapping[str, Callable[[LintResult], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}
