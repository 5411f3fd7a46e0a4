"""The runs that a history is made of, and what they say about entries that they did not execute."""

from __future__ import annotations

from collections.abc import Sequence

from harness.ledger.run_record import RunRecord
from harness.ledger.store import Ledger
from harness.report.model.judged_outcomes import Pair
from harness.report.model.streak import EarlierVerdict

#: How many runs a history has at most.
HISTORY_LENGTH = 50
#: How many runs are searched for the predecessors of a run that is not among the last ones.
FURTHER_BACK = 500


def revision_of(run: RunRecord) -> str:
    """The commit of the checkout of a run, with a `+` if files differed from it; "" if not recorded."""
    return str(run.host.get("revision", ""))


def runs_before(ledger: Ledger, run_id: str, entries: int) -> tuple[RunRecord, ...]:
    """The runs before `run_id`, newest first; if there is no such run, the last runs.

    entries: if the last `HISTORY_LENGTH` runs planned fewer, because they are runs of parts of the matrix on
    several machines, further runs are added until all planned so many.
    """
    runs = ledger.runs(HISTORY_LENGTH + 1)
    indices = {run.run_id: index for index, run in enumerate(runs)}
    known = run_id in indices or ledger.run(run_id) is None
    before = runs[indices.get(run_id, -1) + 1 :][:HISTORY_LENGTH] if known else ()
    if known and (len(runs) <= HISTORY_LENGTH or _planned(before) >= entries):
        return before
    further = ledger.runs(FURTHER_BACK)
    order = {name: index for index, name in enumerate(ledger.run_ends())}
    end = order[run_id] if run_id in order else len(order)
    found: list[RunRecord] = []
    for run in (run for run in further if order[run.run_id] < end):
        if len(found) >= HISTORY_LENGTH and _planned(found) >= entries:
            break
        found.append(run)
    return tuple(found)


def _planned(runs: Sequence[RunRecord]) -> int:
    return sum(len(run.plan.entries) for run in runs)


def dispositions_of(
    ledger: Ledger, run: RunRecord, known: dict[EarlierVerdict, EarlierVerdict] | None = None
) -> dict[Pair, EarlierVerdict]:
    """The verdicts on entries that a run did not execute.

    known: equal verdicts, which are repeated run after run, become the one object in it.
    """
    known = {} if known is None else known
    found: dict[Pair, EarlierVerdict] = {}
    for unrun in ledger.dispositions(run.run_id):
        verdict = EarlierVerdict(status=unrun.status, reason=unrun.reason, key=unrun.key)
        found[unrun.cell_id, unrun.check] = known.setdefault(verdict, verdict)
    return found
