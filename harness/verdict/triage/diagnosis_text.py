"""Renders a diagnosis as text: for a terminal, and as reasons and remedies of a failed task."""

from __future__ import annotations

from harness.verdict.triage.diagnosis import Diagnosis, Finding

SHOWN_FINDINGS = 12
SHOWN_RANKS = 8


def describe(found: Diagnosis) -> list[str]:
    """A diagnosis as lines. Excerpts of the log follow `| `, so that CI runners execute no commands."""
    root = found.root
    if root is None:
        lines = [f"no failure found in {found.lines} lines"]
        if found.ending.sentence:
            lines.append(f"  but {found.ending.sentence}")
        return [*lines, *(f"note: {note}" for note in found.notes)]
    head = f"root cause: {root.id}" if found.known else f"unknown failure: {root.id}"
    lines = [f"{head}, line {root.line}{_ranks(root)}", f"  | {root.text}"]
    if root.signature:
        known = root.signature
        if not found.known:
            lines.append("  this is only a symptom: the failure that caused it is not in this log")
        lines += [f"  why: {known.cause}", f"  do:  {known.remedy}", f"  affects: {known.affects}"]
        lines.append(f"  see: {', '.join(known.sources)}")
        if root.derived:
            lines.append(f"  degree: {root.derived.degree}")
            lines += [f"  stack: {stack}" for stack in root.derived.stacks]
    elif root.failure:
        lines += [f"  at: {place}" for place in reversed(root.failure.stack)]
        lines.append(
            "  do:  when you know the cause, add it: npu-matrix triage LOG --learn --id ... --cause ..."
        )
    first = found.first
    if first and first is not root:
        lines.append(f"first error: {first.id}, line {first.line}{_ranks(first)}")
    rest = [finding for finding in found.findings if finding is not root]
    for finding in rest[:SHOWN_FINDINGS]:
        role = "before training continued" if finding.survived else "also"
        lines.append(f"{role}: {finding.id}, line {finding.line}{_ranks(finding)}")
        lines.append(f"  | {finding.text}")
    if len(rest) > SHOWN_FINDINGS:
        lines.append(f"and {len(rest) - SHOWN_FINDINGS} more, see --json")
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _ranks(finding: Finding) -> str:
    ranks = f", rank {', '.join(map(str, finding.ranks[:SHOWN_RANKS]))}" if finding.ranks else ""
    more = f" and {len(finding.ranks) - SHOWN_RANKS} more" if len(finding.ranks) > SHOWN_RANKS else ""
    count = f", {finding.count} times in {len(finding.processes)} processes" if finding.count > 1 else ""
    device = "" if finding.device is None else f", device {finding.device}"
    remote = "" if finding.remote_rank is None else f", waiting for rank {finding.remote_rank}"
    return f"{ranks}{more}{device}{remote}{count}"


def in_short(found: Diagnosis) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(reasons, remedies) that a log adds to those of a failed task; both are empty if nothing was found."""
    root = found.root
    if root is None:
        return (), ()
    place = f"line {root.line} of its log: {root.text}"
    if not found.known or root.signature is None:
        return (f"the log shows {root.id}, which no failure signature describes; {place}",), ()
    known = root.signature
    return (f"{known.id}: {known.cause}; {place}",), (f"{known.remedy} ({', '.join(known.sources)})",)
