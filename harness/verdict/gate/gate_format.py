"""Renders the report of a gate as text, JSON, for GitHub, and as SARIF. Texts from a cell are escaped."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from harness import __version__
from harness.errors import EXIT_NOTHING_SELECTED, EXIT_OK
from harness.outcome import Evidence
from harness.verdict.gate.gate_report import Blocks, GateClass, GateItem, GateReport
from harness.verdict.gate.mention import without_mentions
from harness.verdict.triage.log_line import masked, shown

SCHEMA = {"name": "npu-matrix.gate", "version": 1}
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: A hidden marker, by which the next run finds the comment to update.
COMMENT_MARKER = "<!-- npu-matrix gate -->"
TITLES = {
    GateClass.NEW: "newly broken",
    GateClass.UNKNOWN: "failing, and unknown on the base",
    GateClass.REMOVED: "no longer planned",
    GateClass.FIXED: "fixed",
    GateClass.FLAKY: "flaky",
    GateClass.KNOWN: "known failures",
    GateClass.INFRA: "planned, but undecided",
    GateClass.AWAITED: "awaited from another job",
    GateClass.NOT_RUN: "not run",
    GateClass.PASSED: "passed",
}
VERDICTS = {
    0: "green: every changed key has an outcome, and nothing is newly broken",
    1: "red: something is not as expected",
    3: "red: nothing was compared, so nothing was verified",
    4: "red: an outcome or a comparison is missing, or the change removes a check",
}
#: The verdicts that replace "every changed key has an outcome" where it says too much.
NO_KEY_CHANGED = "green, but no key changed: this gate verified nothing about the change"
SOME_AWAITED = "green except for what is awaited: nothing else is missing or newly broken"
SOME_DECLARED = "green except for {count} failures that this change itself declares as expected"
IS_HEAD = "red: the base is this checkout itself, so nothing was compared"
# GitHub shows at most ten annotations of each level per step.
MOST_ANNOTATIONS = 10
MOST_ROWS = 50
MOST_FILES = 10
MOST_CHARACTERS = 60_000
#: Classes of checks without an outcome.
_MISSING = frozenset({GateClass.INFRA, GateClass.NOT_RUN})
_MARKUP = re.compile(r"[\\`*_{}\[\]<>()#+!|~&@:\"'$-]")


def verdict_text(report: GateReport) -> str:
    """The verdict in one line, with the exit code."""
    code = report.exit_code
    text = VERDICTS[code]
    if code == EXIT_OK and report.declared:
        text = SOME_DECLARED.format(count=report.declared)
    elif code == EXIT_OK and not report.changed_keys and not report.gone:
        text = NO_KEY_CHANGED
    elif code == EXIT_OK and report.counts[GateClass.AWAITED]:
        text = SOME_AWAITED
    elif code == EXIT_NOTHING_SELECTED and report.scope.is_head:
        text = IS_HEAD
    return f"{text} (exit code {code})"


def scope_lines(report: GateReport) -> list[str]:
    """What the gate compared and what it could not, one sentence per line."""
    scope, decided = report.scope, report.decided_keys
    keys = report.changed_keys
    obtained = Counter(evidence.value for evidence in decided.values())
    kinds = ", ".join(f"{obtained[one.value]} {one.value}" for one in Evidence if obtained[one.value])
    head = (
        f"compared with {report.base}, profile {scope.profile}: {len(keys)} changed keys, "
        f"{len(decided)} with an outcome{f' ({kinds})' if kinds else ''}, "
        f"{len(keys - decided.keys())} without"
    )
    lines = [head]
    if report.awaiting:
        patterns, awaited = ", ".join(report.awaiting), report.counts[GateClass.AWAITED]
        lines.append(f"not verified here, awaited from other jobs ({patterns}): {awaited} checks")
    if report.declared:
        lines.append(f"the change itself declares {report.declared} failures as expected: review them")
    if report.gone:
        accepted = f", accepted ({', '.join(report.accept_removed)})" if report.accept_removed else ""
        named = [f"{cell} {check}" for cell, check in report.gone]
        lines.append(f"the change removes {len(named)} checks{accepted}: {_first(named)}")
    if scope.left_out:
        names = ", ".join(sorted({check for _cell, check in scope.left_out}))
        lines.append(
            f"not looked at: {len(scope.left_out)} changed checks that the profile leaves out ({names})"
        )
    if scope.changed_files is None:
        lines.append("not looked at: changed files, because the base is not a git revision")
    elif scope.unread_files:
        lines.append(
            f"not looked at: {len(scope.unread_files)} of {scope.changed_files} changed files, which no key "
            f"reads: {_first(scope.unread_files)}"
        )
    elif scope.changed_files == 0:
        lines.append("this checkout has the same files as the base")
    else:
        lines.append(f"keys or the plan read all {scope.changed_files} changed files")
    return [*lines, *scope.notes]


def _first(names: Sequence[str]) -> str:
    more = len(names) - MOST_FILES
    return ", ".join(names[:MOST_FILES]) + (f" and {more} more" if more > 0 else "")


def as_text(report: GateReport) -> str:
    """For a terminal: what was compared, then the items of interest with evidence, remedies and the command
    that runs them."""
    lines: list[str] = [shown(line) for line in scope_lines(report)]
    for item, *alike in _groups(report.items):
        lines += _item_lines(item)
        if alike:
            same = "without an outcome" if item.gate_class in _MISSING else "with this key"
            names = [shown(f"{one.cell_id} {one.check}") for one in alike]
            lines.append(f"  and {len(names)} more {same} for the same reason: {_first(names)}")
    lines += [f"error: {shown(problem)}" for problem in (*report.problems, *report.unverified)]
    lines += [f"note: {shown(notice)}" for notice in report.notices]
    verdict = f"gate against {shown(report.base)}: {verdict_text(report)}"
    return "\n".join([*lines, _counts(report), verdict]) + "\n"


def _groups(items: Sequence[GateItem]) -> list[list[GateItem]]:
    """The items of interest, those with the same reason together; what has no outcome comes last."""
    quiet = {GateClass.PASSED, GateClass.NOT_RUN, GateClass.KNOWN, GateClass.AWAITED}
    groups: dict[tuple[object, ...], list[GateItem]] = {}
    for item in items:
        if item.gate_class not in quiet or item.blocks is not Blocks.NO:
            cause = () if item.gate_class in _MISSING else (item.check, item.key or item.cell_id)
            alike = (item.gate_class, item.status, item.reasons, *cause)
            groups.setdefault(alike, []).append(item)
    return sorted(groups.values(), key=lambda group: group[0].gate_class in _MISSING)


def _item_lines(item: GateItem) -> list[str]:
    lines = [shown(f"{item.gate_class.value}: {item.cell_id} {item.check} ({item.status.value})")]
    lines += [f"  {shown(reason)}" for reason in item.reasons]
    lines += [f"  {shown(evidence)}" for evidence in item.evidence]
    lines += [f"  changed: {shown(change)}" for change in item.changes]
    if item.place:
        lines.append(f"  at: {shown(item.place.file)}:{item.place.line}")
    lines += [f"  do: {shown(remedy)}" for remedy in item.remedies]
    if item.blocks is not Blocks.NO and _names_no_command(item):
        lines.append(f"  reproduce: {shown(item.reproduce, len(item.reproduce))}")
    return lines


def as_json(report: GateReport) -> str:
    """Schema `npu-matrix.gate`."""
    return json.dumps(to_json(report), indent=2) + "\n"


def to_json(report: GateReport) -> dict[str, object]:
    """The report as JSON data (schema `npu-matrix.gate`)."""
    return {
        "schema": SCHEMA,
        "base": report.base,
        "exit_code": report.exit_code,
        "verdict": verdict_text(report),
        "scope": _scope_json(report),
        "untouched": report.untouched,
        "counts": {one.value: count for one, count in report.counts.items()},
        "items": [_item_json(item) for item in report.items],
        "gone": [{"cell": cell, "check": check} for cell, check in report.gone],
        "problems": list(map(masked, report.problems)),
        "unverified": list(map(masked, report.unverified)),
        "notices": list(map(masked, report.notices)),
    }


def _scope_json(report: GateReport) -> dict[str, object]:
    scope, decided = report.scope, report.decided_keys
    obtained = Counter(evidence.value for evidence in decided.values())
    return {
        "profile": scope.profile,
        "commit": scope.commit,
        "changed_keys": len(report.changed_keys),
        "with_outcome": len(decided),
        "without_outcome": len(report.changed_keys - decided.keys()),
        "evidence": {one.value: obtained[one.value] for one in Evidence},
        "awaiting": list(report.awaiting),
        "accept_removed": list(report.accept_removed),
        "left_out": [{"cell": cell, "check": check} for cell, check in scope.left_out],
        "changed_files": scope.changed_files,
        "unread_files": list(scope.unread_files),
        "notes": list(map(masked, scope.notes)),
    }


def _item_json(item: GateItem) -> dict[str, object]:
    return {
        "cell": item.cell_id,
        "check": item.check,
        "class": item.gate_class.value,
        "blocks": item.blocks.value,
        "status": item.status.value,
        "key": item.key,
        "changed": item.changed,
        "obtained": item.obtained.value if item.obtained else None,
        "reasons": list(map(masked, item.reasons)),
        "remedies": list(map(masked, item.remedies)),
        "evidence": list(map(masked, item.evidence)),
        "changes": list(map(masked, item.changes)),
        "file": item.place.file if item.place else None,
        "line": item.place.line if item.place else None,
        "reproduce": item.reproduce,
    }


def as_github(report: GateReport) -> str:
    """Workflow commands, from which GitHub makes annotations at the lines that caused failures."""
    lines = [
        _annotation("error", item, f"{item.gate_class.value}: {item.cell_id} {item.check}", _sentences(item))
        for item in report.blocking[:MOST_ANNOTATIONS]
    ]
    flaky = [item for item in report.items if item.gate_class is GateClass.FLAKY]
    lines += [
        _annotation("warning", item, f"flaky: {item.cell_id} {item.check}", _sentences(item))
        for item in flaky[:MOST_ANNOTATIONS]
    ]
    lines += [f"::error::{_data(shown(problem))}" for problem in (*report.problems, *report.unverified)]
    level = "notice" if report.exit_code == 0 else "error"
    return "".join(f"{line}\n" for line in [*lines, f"::{level}::{_data(f'gate: {verdict_text(report)}')}"])


def _annotation(level: str, item: GateItem, title: str, text: str) -> str:
    place = item.place
    where = f"file={_property(place.file)},line={place.line}," if place else ""
    return f"::{level} {where}title={_property(shown(title))}::{_data(text)}"


def _sentences(item: GateItem) -> str:
    sentences = [
        *map(shown, (*item.evidence, *item.reasons)),
        *(f"do: {shown(remedy)}" for remedy in item.remedies),
    ]
    return "\n".join(
        [
            *sentences,
            *(
                [f"reproduce: {shown(item.reproduce, len(item.reproduce))}"]
                if _names_no_command(item)
                else []
            ),
        ]
    )


def _names_no_command(item: GateItem) -> bool:
    """Whether the item has a command that none of its remedies contains."""
    return bool(item.reproduce) and not any(item.reproduce in remedy for remedy in item.remedies)


def as_markdown(report: GateReport) -> str:
    """For a job summary: a table for each class except `passed`."""
    parts = [f"### npu-matrix gate: {verdict_text(report)}", ""]
    parts += [f"- {_escaped(line)}" for line in scope_lines(report)]
    parts += ["", f"{_counts(report)}.", ""]
    parts += [f"- **{_escaped(problem)}**" for problem in (*report.problems, *report.unverified)]
    for one in GateClass:
        items = [item for item in report.items if item.gate_class is one]
        if items and one is not GateClass.PASSED:
            parts += _table(one, items)
    parts += [f"\n{_escaped(notice)}" for notice in report.notices]
    return _cut("\n".join(parts)) + "\n"


def as_comment(report: GateReport) -> str:
    """For a pull request: the summary after a hidden marker, so that the next run can update the comment."""
    return f"{COMMENT_MARKER}\n{as_markdown(report)}"


def _table(one: GateClass, items: list[GateItem]) -> list[str]:
    quiet = one in {GateClass.KNOWN, GateClass.NOT_RUN, GateClass.AWAITED} and not any(
        item.blocks is not Blocks.NO for item in items
    )
    title = f"{TITLES[one]} ({len(items)})"
    rows = ["| cell | check | what | evidence |", "| --- | --- | --- | --- |"]
    for item in items[:MOST_ROWS]:
        what = _escaped("; ".join([item.status.value, *item.reasons]))
        where = f" at {_escaped(f'{item.place.file}:{item.place.line}')}" if item.place else ""
        remedies = [f"do: {remedy}" for remedy in item.remedies] if item.blocks is not Blocks.NO else []
        evidence = _escaped("; ".join([*item.evidence, *item.changes, *remedies]))
        rows.append(f"| {_escaped(item.cell_id)} | {_escaped(item.check)} | {what} | {evidence}{where} |")
    if len(items) > MOST_ROWS:
        rows.append(f"| and {len(items) - MOST_ROWS} more | | | |")
    if quiet:
        return ["", f"<details><summary>{title}</summary>", "", *rows, "", "</details>"]
    return ["", f"**{title}**", "", *rows]


def as_sarif(report: GateReport) -> str:
    """SARIF 2.1.0: one rule per check, one result per item that blocks or is flaky."""
    shown_items = [
        item for item in report.items if item.blocks is not Blocks.NO or item.gate_class is GateClass.FLAKY
    ]
    rules = [{"id": name} for name in sorted({item.check for item in shown_items})]
    results = [_sarif_result(item) for item in shown_items]
    driver = {"name": "npu-matrix gate", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_result(item: GateItem) -> dict[str, object]:
    place = item.place
    result: dict[str, object] = {
        "ruleId": item.check,
        "level": "warning" if item.blocks is Blocks.NO else "error",
        "message": {"text": f"{item.gate_class.value}: {item.cell_id}\n{_sentences(item)}"},
        "partialFingerprints": {"cellAndCheck": f"{item.cell_id}/{item.check}"},
    }
    if place:
        region = {"startLine": place.line}
        result["locations"] = [
            {"physicalLocation": {"artifactLocation": {"uri": place.file}, "region": region}}
        ]
    return result


def _counts(report: GateReport) -> str:
    counts = [f"{count} {TITLES[one]}" for one, count in report.counts.items() if count]
    if report.untouched:
        counts.append(f"{report.untouched} not touched by this change and not compared")
    return ", ".join(counts) or "nothing"


def _escaped(text: str) -> str:
    """Text with HTML entities for characters that Markdown or GitHub would interpret."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", without_mentions(shown(text)))


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    beginning = text[:MOST_CHARACTERS].rpartition("\n")[0]
    closing = "\n\n</details>" * (beginning.count("<details>") - beginning.count("</details>"))
    return f"{beginning}{closing}\n\nThe summary is truncated; see `npu-matrix gate --json` for all of it."


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: Mapping[str, Callable[[GateReport], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
    "markdown": as_markdown,
    "comment": as_comment,
    "sarif": as_sarif,
}
