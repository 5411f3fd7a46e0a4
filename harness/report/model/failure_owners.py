"""Who is responsible for which failure: expected failures of matrix.yaml by owner, and those without one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.outcome import Status
from harness.report.model.marks import Mark
from harness.report.model.report_inputs import KnownFailure, ReportInputs, ReportResult
from harness.report.model.streak import HistoryEntry
from harness.report.model.turning_points import BAD, TurnCause

#: Verdicts that need an owner if no expectation covers them.
NEED_OWNER = (Mark.FAIL, Mark.INCONCLUSIVE, Mark.UNEXPECTED_PASS)
NOBODY = ""


@dataclass(frozen=True, kw_only=True)
class OwnedFailure:
    """An expected failure with its results in this report, or a failure that no expectation covers.

    known: None without an expectation. since: the first run in a row with this failure, for the first result,
    and its time in Unix seconds; "" and 0 without a history. changed_by: the authors of the commits that can
    have changed its inputs.
    """

    owner: str
    check: str
    reason: str
    known: KnownFailure | None
    results: tuple[ReportResult, ...]
    since: str = ""
    since_time: float = 0.0
    changed_by: tuple[str, ...] = ()


def has_or_needs_owner(result: ReportResult) -> bool:
    """Whether an expectation covers the result, or its failure needs an owner."""
    return result.verdict.expected is not None or result.mark in NEED_OWNER


def failures_by_owner(
    inputs: ReportInputs, results: Iterable[ReportResult] | None = None
) -> Mapping[str, Sequence[OwnedFailure]]:
    """Owner -> failures; those without an owner come first, the others by name.

    results: those that have an owner or need one, by default all.
    """
    covered: dict[str, list[ReportResult]] = defaultdict(list)
    open_failures: dict[tuple[str, str], list[ReportResult]] = defaultdict(list)
    known = {one.id: one for one in inputs.known}
    for result in inputs.results if results is None else results:
        expected = result.verdict.expected
        if expected is not None and result.mark in {Mark.KNOWN_FAIL, Mark.UNEXPECTED_PASS, Mark.ERROR}:
            covered[expected.id].append(result)
            known.setdefault(expected.id, _from_verdict(result))
        elif result.mark in NEED_OWNER:
            open_failures[result.check, result.reason].append(result)
    found: dict[str, list[OwnedFailure]] = defaultdict(list)
    for (check, reason), results in open_failures.items():
        found[NOBODY].append(_owned(inputs, NOBODY, check, reason, None, results))
    for name, one in known.items():
        found[one.owner].append(_owned(inputs, one.owner, one.check, one.reason, one, covered[name]))
    return {owner: found[owner] for owner in sorted(found, key=lambda owner: (owner != NOBODY, owner))}


def _from_verdict(result: ReportResult) -> KnownFailure:
    expected = result.verdict.expected
    assert expected is not None
    return KnownFailure(
        id=expected.id,
        owner=expected.owner,
        check=result.check,
        state=expected.state,
        reason=expected.reason,
        source=expected.source,
        until=expected.until,
        where=expected.where,
    )


def _first_failure(result: ReportResult) -> HistoryEntry | None:
    """The first of the earlier runs in a row that failed too; runs without a verdict do not count."""
    first = None
    for past in reversed(result.history):
        if past.verdict.status is Status.PASS:
            break
        if past.verdict.status in BAD:
            first = past
    return first


def _owned(
    inputs: ReportInputs,
    owner: str,
    check: str,
    reason: str,
    known: KnownFailure | None,
    results: Sequence[ReportResult],
) -> OwnedFailure:
    broke = next((one.turns[-1] for one in results if one.turns and not one.turns[-1].better), None)
    authors = (
        commit.author
        for commits in (inputs.commits.of(broke) if broke and broke.cause is TurnCause.INPUTS else ())
        for commit in commits.commits
    )
    first = _first_failure(results[0]) if results else None
    return OwnedFailure(
        owner=owner,
        check=check,
        reason=reason,
        known=known,
        results=tuple(results),
        since=broke.after.run_id if broke else first.run_id if first else "",
        since_time=broke.after.time if broke else first.time if first else 0.0,
        changed_by=tuple(dict.fromkeys(authors)),
    )
