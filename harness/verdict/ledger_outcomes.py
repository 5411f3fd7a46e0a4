"""The outcomes of all runs that a ledger has for a plan, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.ledger.plan_record import PlanEntry
from harness.ledger.run_record import Disposition
from harness.ledger.store import Ledger
from harness.outcome import DECIDED_STATES, UNRUN, Outcome, State, Status
from harness.plan.tasks.task import Plan
from harness.verdict.gate.flake import Attempt, FlakeDecision, decide
from harness.verdict.gate.gate_report import CellCheck
from harness.verdict.plan_verdicts import blocked_entries, judge_plan, judge_stored
from harness.verdict.verdict import ExpectedFailure, Verdict

HISTORY_LIMIT = 200


@dataclass(frozen=True, kw_only=True)
class RecordedAttempts:
    """All attempts on the keys of a plan, newest first, and the attempt that is judged for each key."""

    outcomes: Mapping[str, Outcome]
    attempts: Mapping[str, tuple[Outcome, ...]]


def read_attempts(plan: Plan, ledger: Ledger) -> RecordedAttempts:
    """The attempts in the ledger. Of a key, the last decided attempt is judged, else the last attempt.

    An attempt on a machine that could not run the check, for example without the sources, decides nothing,
    and neither does one whose hardware evidence is not believed. Attempts of this machine come before merged
    ones: another machine cannot replace them, whatever times it states.
    """
    outcomes: dict[str, Outcome] = {}
    attempts: dict[str, tuple[Outcome, ...]] = {}
    for key, task in plan.tasks.items():
        recorded = ledger.history(key=key, limit=HISTORY_LIMIT)
        if recorded:
            attempts[key] = recorded
            decided = [
                outcome
                for outcome in recorded
                if outcome.state in DECIDED_STATES and judge_stored(task, outcome)[0].status not in UNRUN
            ]
            outcomes[key] = next(iter(_own_or_all(decided)), recorded[0])
    return RecordedAttempts(outcomes=outcomes, attempts=attempts)


def _own_or_all(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes of this machine; all, if there are none."""
    return [outcome for outcome in outcomes if not outcome.trust.foreign] or outcomes


def outdated_attempts(plan: Plan, recorded: RecordedAttempts) -> dict[str, str]:
    """Key -> why the judged outcome proves nothing: a needed check ran again and never had the outcome that
    it was made from. Runs of other machines are attempts too, so outcomes of merged ledgers stay valid. An
    outcome of this machine must be made from the last outcome of this machine, as for `run`."""
    found: dict[str, str] = {}
    for key, outcome in recorded.outcomes.items():
        for need in plan.tasks[key].needs:
            attempts = recorded.attempts.get(need, ())
            made_from = outcome.inputs.get(attempts[0].check) if attempts else None
            current = next((one for one in attempts if _is_own_input(one)), None)
            if made_from and current and not outcome.trust.foreign and made_from != current.content_digest:
                found[key] = f"{current.check} has a new outcome since then"
            elif made_from and made_from not in {attempt.content_digest for attempt in attempts}:
                found[key] = (
                    f"it was made from an outcome of {attempts[0].check} that this ledger does not have"
                )
    return found


def _is_own_input(outcome: Outcome) -> bool:
    return outcome.state is State.COMPLETED and not outcome.trust.foreign


def verdicts_from_ledger(
    plan: Plan,
    outcomes: Mapping[str, Outcome],
    expected: Callable[[str, str], ExpectedFailure | None],
    outdated: Mapping[str, str] | None = None,
) -> dict[CellCheck, Verdict]:
    """(cell, check) -> verdict, for every entry of the plan. The outcomes may be from several runs.

    outdated: key -> why its outcome proves nothing; its verdict is stale.
    """
    outdated = outdated or {}
    outcomes = {key: outcome for key, outcome in outcomes.items() if key not in outdated}
    stale = stale_dispositions(plan, outdated)
    verdicts = judge_plan(plan, outcomes, [*_blocked(plan, outcomes), *stale], expected)
    return {(verdict.cell_id, verdict.check): verdict for verdict in verdicts}


def stale_dispositions(plan: Plan, outdated: Mapping[str, str]) -> list[Disposition]:
    """Why entries are stale. outdated: key -> why its stored outcome proves nothing."""
    return [
        Disposition(
            cell_id=entry.cell_id,
            check=entry.check,
            key=entry.key,
            status=Status.STALE,
            reason=outdated[entry.key],
        )
        for entry in plan.entries
        if entry.key in outdated
    ]


def _blocked(plan: Plan, outcomes: Mapping[str, Outcome]) -> list[Disposition]:
    """Why entries without an outcome have none, as far as a run would block them."""
    if all(entry.skip is not None or entry.key in outcomes for entry in plan.entries):
        return []
    judgements = {
        key: judge_stored(plan.tasks[key], outcome)[0]
        for key, outcome in outcomes.items()
        if key in plan.tasks
    }
    return [
        Disposition(
            cell_id=decision.entry.cell_id,
            check=decision.entry.check,
            key=decision.entry.key,
            status=Status.BLOCKED,
            reason=decision.reason,
        )
        for decision in blocked_entries(plan, judgements)
    ]


def flake_decisions(
    plan: Plan, recorded: RecordedAttempts, ledger: Ledger, *, now: float
) -> dict[CellCheck, FlakeDecision]:
    """A decision for every entry with several attempts on its key, of which at least one failed."""
    mixed: list[tuple[PlanEntry, list[Attempt]]] = []
    failing: dict[CellCheck, FlakeDecision] = {}
    for entry in plan.entries:
        outcomes = recorded.attempts.get(entry.key, ())
        positions = ledger.positions(entry.key) if len(outcomes) > 1 else {}
        attempts = _attempts(plan, outcomes, positions, entry) if positions else []
        if len({attempt.passed for attempt in attempts}) > 1:
            mixed.append((entry, attempts))
        elif len(attempts) > 1 and not attempts[0].passed:
            failing[entry.cell_id, entry.check] = decide(attempts, (), now=now)
    if not mixed:
        return failing
    earlier = _earlier_keys(ledger, {(entry.cell_id, entry.check) for entry, _attempts in mixed})
    return failing | {
        (entry.cell_id, entry.check): decide(
            attempts,
            [
                _attempts(plan, ledger.history(key=key, limit=HISTORY_LIMIT), ledger.positions(key), entry)
                for key in earlier[entry.cell_id, entry.check]
                if key != entry.key
            ],
            now=now,
        )
        for entry, attempts in mixed
    }


def _attempts(
    plan: Plan, outcomes: Sequence[Outcome], positions: Mapping[int, int], entry: PlanEntry
) -> list[Attempt]:
    task = plan.tasks.get(entry.key)
    if task is None:
        return []
    decided = [outcome for outcome in reversed(outcomes) if outcome.state in DECIDED_STATES]
    own = any(not outcome.trust.foreign for outcome in decided)
    judged = [(judge_stored(task, outcome)[0].status, outcome) for outcome in decided]
    # A pass of another machine proves nothing against attempts of this one; its failures still count.
    judged = [
        (status, outcome)
        for status, outcome in judged
        if not (own and outcome.trust.foreign and status is Status.PASS)
    ]
    return [
        Attempt(passed=status is Status.PASS, time=outcome.finished, position=positions[outcome.attempt])
        for status, outcome in judged
        if status in {Status.PASS, Status.FAIL}
    ]


def _earlier_keys(ledger: Ledger, names: set[CellCheck]) -> dict[CellCheck, list[str]]:
    keys: dict[CellCheck, dict[str, None]] = {name: {} for name in names}
    for run in ledger.runs():
        for name, entry in run.plan.entries_by_name.items():
            if name in keys and entry.key:
                keys[name][entry.key] = None
    return {name: list(found) for name, found in keys.items()}
