"""From the verdicts of a run to its counts and its exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.outcome import Status
from harness.verdict.verdict import Standing, Verdict

NOT_CHECKED = frozenset({Status.NOT_RUN, Status.UNSUPPORTED})


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Counts by status and by standing, and what the run amounts to."""

    by_status: dict[str, int]
    by_standing: dict[str, int]
    exit_code: int
    reasons: tuple[str, ...]


def summarise_verdicts(verdicts: Iterable[Verdict]) -> RunSummary:
    """The worst standing decides: unexpected before incomplete before as expected; no verdicts is code 3."""
    found = list(verdicts)
    standings = Counter(verdict.standing for verdict in found)
    reasons: list[str] = []
    if not found:
        return RunSummary(
            by_status={}, by_standing={}, exit_code=EXIT_NOTHING_SELECTED, reasons=("nothing was selected",)
        )
    if not standings.keys() - {Standing.AS_EXPECTED} and all(one.status in NOT_CHECKED for one in found):
        return RunSummary(
            by_status=dict(Counter(verdict.status.value for verdict in found)),
            by_standing={standing.value: count for standing, count in standings.items()},
            exit_code=EXIT_NOTHING_SELECTED,
            reasons=("nothing of the selection could be asked here, so nothing was proved",),
        )
    code = EXIT_OK
    if standings[Standing.INCOMPLETE]:
        code = EXIT_INCOMPLETE
        reasons.append(f"{standings[Standing.INCOMPLETE]} planned without an answer")
    unexpected = standings[Standing.UNEXPECTED] + standings[Standing.UNEXPECTED_PASS]
    if unexpected:
        code = EXIT_UNEXPECTED
        reasons.insert(0, f"{unexpected} not as expected")
    return RunSummary(
        by_status=dict(Counter(verdict.status.value for verdict in found)),
        by_standing={standing.value: count for standing, count in standings.items()},
        exit_code=code,
        reasons=tuple(reasons) or ("everything planned came out as expected",),
    )
