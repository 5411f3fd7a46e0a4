"""Print lint results as text, JSON or GitHub workflow commands (SARIF: `sarif`)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping

from harness.compat.lint.lint_measurements import LintResult
from harness.compat.lint.sarif import as_sarif, relative_path
from harness.serialisation import json_object

GITHUB_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
WIDTH = 80
SCHEMA = {"name": "npu-matrix.lint", "version": 1}


def as_text(result: LintResult) -> str:
    """Text like that of a compiler: location, severity and rule, then the reason, the fix and the source."""
    lines = []
    for finding in result.findings:
        parts = {"why": finding.why, "do": finding.fix, "see": finding.source}
        lines += [str(finding), *(wrapped(f"  {name}:".ljust(7), text) for name, text in parts.items())]
    lines += [f"line {note.line}: not fully understood: {note.text}" for note in result.notes]
    lines += _undecided(result)
    return "\n".join([*lines, summary(result)]) + "\n"


def _undecided(result: LintResult) -> Iterator[str]:
    """The rules that were not decided, in one line if the same is not known for several."""
    rules: dict[tuple[str, ...], dict[str, None]] = {}
    for item in result.undecided:
        rules.setdefault(item.unknown, {})[item.rule] = None
    for unknown, names in rules.items():
        yield f"not decided: {', '.join(names)} (not known: {', '.join(unknown)})"


def wrapped(head: str, text: str) -> str:
    """A text behind its heading, in lines of at most 80 columns. Longer words are not broken."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * (7 if head.startswith(" ") else 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


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
        properties = {"file": relative_path(finding.file), "line": finding.line or 1, "title": finding.rule}
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
