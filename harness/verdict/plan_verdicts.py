"""The verdict on every entry of a plan, and the exit code of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.ledger.plan_record import PlanEntry, SkipCause
from harness.ledger.run_record import Disposition
from harness.outcome import UNRUN, UNVERIFIED, Judgement, Outcome, Status
from harness.plan.tasks.cell_decisions import EntryDecision, Phase, decide_cell, entries_by_cell
from harness.plan.tasks.evidence_bound import bounded_outcome
from harness.plan.tasks.task import Plan, Task
from harness.verdict.verdict import (
    ExpectedFailure,
    Standing,
    Verdict,
    failure_state,
    judge_against_expectation,
    judge_outcome,
)

#: How to get the verdict of an entry without a task on this host.
REMEDIES = {
    SkipCause.HOST: "Run the same command on a host with that device, then add its outcomes here: "
    "`npu-matrix ledger merge FOLDER`.",
    SkipCause.PROFILE: "Run a profile that includes the check, on a host with the device of the cell: "
    "`npu-matrix --profile NAME run`.",
}
#: How to get the verdict of an entry whose task has no outcome.
WITHOUT_OUTCOME = {
    Status.NOT_RUN: "Run the check. If another host has its device, run it there, then add its outcomes "
    "here: `npu-matrix ledger merge FOLDER`.",
    Status.STALE: "Run the check again.",
    Status.BLOCKED: "Make the check pass that is named here; this one then runs by itself.",
}


def judge_plan(
    plan: Plan,
    outcomes: Mapping[str, Outcome],
    dispositions: Iterable[Disposition],
    expected: Callable[[str, str], ExpectedFailure | None],
) -> tuple[Verdict, ...]:
    """One verdict per entry, in plan order. An entry with neither outcome nor disposition is an error."""
    without_outcome = {(entry.cell_id, entry.check): entry for entry in dispositions}
    judgements = {
        key: judge_stored(plan.tasks[key], outcome) for key, outcome in outcomes.items() if key in plan.tasks
    }

    def verdict_on(entry: PlanEntry, *, blocked_by_known: bool = False) -> Verdict:
        judgement, outcome = _judgement(entry, judgements, without_outcome)
        return judge_against_expectation(
            entry.cell_id,
            entry.check,
            judgement,
            key=entry.key,
            outcome=outcome,
            state=failure_state(plan.tasks[entry.key].check, outcome, judgement) if outcome else "",
            expected=expected(entry.cell_id, entry.check),
            blocked_by_known=blocked_by_known,
        )

    verdicts = {(entry.cell_id, entry.check): verdict_on(entry) for entry in plan.entries}
    if any(verdict.status is Status.BLOCKED for verdict in verdicts.values()):
        standings = {(verdict.cell_id, verdict.key): verdict.standing for verdict in verdicts.values()}
        for decision in blocked_entries(plan, {key: judged[0] for key, judged in judgements.items()}):
            entry = decision.entry
            name = (entry.cell_id, entry.check)
            cause = standings.get((entry.cell_id, decision.blocked_by))
            if verdicts[name].status is Status.BLOCKED and cause is Standing.KNOWN:
                verdicts[name] = verdict_on(entry, blocked_by_known=True)
    return tuple(verdicts.values())


def blocked_entries(plan: Plan, judgements: Mapping[str, Judgement]) -> list[EntryDecision]:
    """The entries without an outcome that a run would block, as another entry of the cell did not pass.

    judgements: by key, of the tasks that have an outcome.
    """
    planned = [entry for entry in plan.entries if entry.skip is None and entry.key in plan.tasks]
    return [
        decision
        for entries in entries_by_cell(planned).values()
        for decision in decide_cell(entries, judgements.get, plan.tasks, keep_going=False)
        if decision.phase is Phase.BLOCKED
    ]


def judge_stored(task: Task, outcome: Outcome) -> tuple[Judgement, Outcome]:
    """The judgement on a stored outcome of the task, and the outcome with the evidence that is believed."""
    bounded = bounded_outcome(task, outcome)
    judgement = judge_outcome(task.check, bounded.outcome)
    if bounded.lowered:
        judgement = replace(judgement, reasons=(*judgement.reasons, bounded.lowered))
    return judgement, bounded.outcome


def _judgement(
    entry: PlanEntry,
    judgements: Mapping[str, tuple[Judgement, Outcome]],
    dispositions: Mapping[tuple[str, str], Disposition],
) -> tuple[Judgement, Outcome | None]:
    if entry.skip is not None:
        remedy = REMEDIES.get(entry.skip.cause) if entry.skip.status is Status.NOT_RUN else None
        return _unrun(entry.skip.status, entry.skip.reason, remedy), None
    if entry.key in judgements:
        return judgements[entry.key]
    disposition = dispositions.get((entry.cell_id, entry.check))
    if disposition is not None:
        remedy = WITHOUT_OUTCOME.get(disposition.status)
        return _unrun(disposition.status, disposition.reason, remedy), None
    return (
        Judgement(
            status=Status.ERROR,
            reasons=("the check was planned, but it has no outcome",),
            remedies=("run the same command again; it resumes the run",),
        ),
        None,
    )


def _unrun(status: Status, reason: str, remedy: str | None) -> Judgement:
    return Judgement(status=status, reasons=(reason,), remedies=(remedy,) if remedy else ())


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Counts by status and by standing, the exit code of the run, and the reasons for it."""

    by_status: dict[str, int]
    by_standing: dict[str, int]
    exit_code: int
    reasons: tuple[str, ...]


def summarise_verdicts(verdicts: Iterable[Verdict]) -> RunSummary:
    """The worst standing determines the exit code: unexpected (1), incomplete (4), as expected (0).

    The exit code is 3 if there are no verdicts, or if no check could run.
    """
    statuses, standings = Counter[Status](), Counter[Standing]()
    for verdict in verdicts:
        statuses[verdict.status] += 1
        standings[verdict.standing] += 1
    unexpected = standings[Standing.UNEXPECTED] + standings[Standing.UNEXPECTED_PASS]
    incomplete = standings[Standing.INCOMPLETE]
    reasons: list[str] = []
    if unexpected:
        reasons.append(f"{unexpected} not as expected")
    if incomplete:
        reasons.append(f"{incomplete} planned, but without a verdict")
    if not statuses:
        code = EXIT_NOTHING_SELECTED
        reasons.append("nothing was selected")
    elif not standings.keys() - {Standing.AS_EXPECTED} and not statuses.keys() - UNVERIFIED:
        code = EXIT_NOTHING_SELECTED
        reasons.append("no selected check could run on this host, so nothing was verified")
    else:
        code = EXIT_UNEXPECTED if unexpected else EXIT_INCOMPLETE if incomplete else EXIT_OK
    return RunSummary(
        by_status={status.value: count for status, count in statuses.items()},
        by_standing={standing.value: count for standing, count in standings.items()},
        exit_code=code,
        reasons=tuple(reasons) or (_all_as_expected(statuses),),
    )


def _all_as_expected(statuses: Counter[Status]) -> str:
    """The reason for exit code 0; it says how many checks were not run."""
    unrun = sum(statuses[status] for status in UNRUN)
    if unrun:
        return f"every check that ran came out as expected; {unrun} of {statuses.total()} were not run"
    return "all planned checks came out as expected"
