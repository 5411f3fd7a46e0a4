"""Lint results as SARIF 2.1.0, for code scanning and editors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from harness import __version__
from harness.compat.lint.line_hashes import line_hashes
from harness.compat.lint.lint_measurements import LintFinding, LintResult
from harness.compat.lint.rule_catalogue import RuleExplanation, explained_rules
from harness.compat.lint.script_edits import ScriptEdit
from harness.compat.lint.script_fixes import ScriptFix
from harness.serialisation import JsonValue

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: The only fingerprint that GitHub uses.
FINGERPRINT = "primaryLocationLineHash"
Fixes = Mapping[LintFinding, ScriptFix]


def as_sarif(
    result: LintResult, fixes: Fixes | None = None, read: Callable[[str], bytes] | None = None
) -> str:
    """SARIF 2.1.0. fixes: those that were tried. read: the bytes of a script, for columns and hashes."""
    explained = explained_rules()
    ids = sorted({finding.rule for finding in result.findings})
    rules = [_rule(explained[name]) if name in explained else {"id": name} for name in ids]
    scripts = {name: _Script(read(name) if read else b"") for name in {one.file for one in result.findings}}
    results = [
        _result(finding, ids.index(finding.rule), scripts[finding.file], (fixes or {}).get(finding))
        for finding in result.findings
    ]
    notifications: list[JsonValue] = [
        {"level": "warning", "message": {"text": f"was not checked: {text}"}} for text in result.unchecked
    ]
    invocation: dict[str, JsonValue] = {"executionSuccessful": not notifications}
    if notifications:
        invocation["toolExecutionNotifications"] = notifications
    run = {
        "tool": {"driver": {"name": "npu-matrix", "version": __version__, "rules": rules}},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


class _Script:
    """A script, for the places in it. Columns are counted in bytes inside of lint, and in characters here."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._lines = data.split(b"\n")
        self._hashes = line_hashes(data.decode("utf-8", "replace")) if data else []

    def column(self, line: int, column: int) -> int:
        """The column in characters of a place in bytes."""
        if not 0 < line <= len(self._lines):
            return column
        return len(self._lines[line - 1][: column - 1].decode("utf-8", "replace")) + 1

    def fingerprint(self, line: int) -> str:
        """The hash of a line; "" if the script was not read."""
        return self._hashes[line - 1] if 0 < line <= len(self._hashes) else ""

    def region(self, line: int, column: int) -> dict[str, JsonValue]:
        """The word at a place, or the line if the column is not known."""
        region: dict[str, JsonValue] = {"startLine": line}
        if not column:
            return region
        region["startColumn"] = self.column(line, column)
        if 0 < line <= len(self._lines):
            word = self._lines[line - 1][column - 1 :].split(maxsplit=1)
            if word and self._lines[line - 1][column - 1 : column].strip():
                region["endColumn"] = self.column(line, column + len(word[0]))
        return region

    def edit_region(self, edit: ScriptEdit) -> dict[str, JsonValue]:
        """The text that an edit replaces."""
        line = self._data.count(b"\n", 0, edit.start) + 1
        first = self._data.rfind(b"\n", 0, edit.start) + 1
        return {
            "startLine": line,
            "startColumn": self.column(line, edit.start - first + 1),
            "endLine": line,
            "endColumn": self.column(line, edit.end - first + 1),
        }


def _rule(rule: RuleExplanation) -> dict[str, JsonValue]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.fix}\nSource: {rule.source}"},
        "defaultConfiguration": {"level": rule.severity},
        "properties": {"verified": rule.verified, "tags": ["npu", "verl"]},
    }


def _result(finding: LintFinding, rule: int, script: _Script, fix: ScriptFix | None) -> dict[str, JsonValue]:
    physical: dict[str, JsonValue] = {"artifactLocation": _artifact(finding.file)}
    if finding.line:
        physical["region"] = script.region(finding.line, finding.column)
    result: dict[str, JsonValue] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": f"{finding.message}. Why: {finding.why}. Do: {finding.fix}."},
        "locations": [{"physicalLocation": physical}],
    }
    fingerprint = script.fingerprint(finding.line or 1)
    if fingerprint:
        result["partialFingerprints"] = {FINGERPRINT: fingerprint}
    if fix is not None:
        result["fixes"] = [_fix(finding, fix.edits, script)]
    return result


def _fix(finding: LintFinding, edits: Sequence[ScriptEdit], script: _Script) -> dict[str, JsonValue]:
    replacements: list[JsonValue] = [
        {"deletedRegion": script.edit_region(edit), "insertedContent": {"text": edit.new.decode()}}
        for edit in edits
    ]
    return {
        "description": {"text": "; ".join(map(str, finding.changes))},
        "artifactChanges": [{"artifactLocation": _artifact(finding.file), "replacements": replacements}],
    }


def _artifact(file: str) -> dict[str, JsonValue]:
    """Where a script is: relative to the current folder, which is the checkout in CI, or as a file URI."""
    path = Path(relative_path(file))
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": "%SRCROOT%"}


def relative_path(file: str) -> str:
    """A path relative to the current folder if it lies below it: what CI systems can show beside the code."""
    path = Path(file)
    inside = path.is_absolute() and path.is_relative_to(Path.cwd())
    return path.relative_to(Path.cwd()).as_posix() if inside else file
