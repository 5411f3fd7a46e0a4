"""The history of a plan in the ledger: outcomes and judgements by key, failure rates, costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.check import Check, why_not_reusable
from harness.devices.host.host_inspection import HostReport
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.run_record import RunRecord
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Evidence, Judgement, Outcome, State, Status
from harness.plan.change.rerun_reasons import outdated_outcomes
from harness.plan.cost.task_cost import CostModel, TimedExecution
from harness.plan.tasks.evidence_bound import bounded_outcome
from harness.run.scheduling.altered_outcomes import altered_outcomes
from harness.settings import Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import PlanContext, host_kind, open_plan

#: How many executions of a check, and how many runs, the cost model uses.
HISTORY = 60
RUNS = 20
#: The fact of a stored run that says what the package index answered.
INDEX_FACT = "package index"
#: Above this number of keys, only recent outcomes are looked up.
MANY = 20_000


@dataclass(frozen=True, kw_only=True)
class PlanHistory:
    """What the ledger knows about a plan.

    outcomes, judgements: by key, for reusable outcomes. not_reusable: key -> why its stored outcome is not
    reused. failure_rate: check -> share of failed executions. planned_before: ids of cells in earlier plans
    of the profile. index_review: when the package index was last asked about the archives of outcomes.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    not_reusable: Mapping[str, str] = field(default_factory=dict)
    failure_rate: Mapping[str, float] = field(default_factory=dict)
    planned_before: frozenset[str] = frozenset()
    costs: CostModel
    index_review: str = ""


def read_history(context: PlanContext) -> PlanHistory:
    """Read the history of the plan from the ledger."""
    checks = {key: task.check for key, task in context.plan.tasks.items()}
    found = read_key_history(context.settings, checks, context.host)
    tasks = context.plan.tasks
    stored = {key: bounded_outcome(tasks[key], outcome).outcome for key, outcome in found.outcomes.items()}
    outdated = {
        **{key: one.trust.claimed for key, one in stored.items() if one.trust.claimed},
        **outdated_outcomes(tasks, found.outcomes),
        **altered_outcomes(
            tasks, found.outcomes, ArtifactStore(context.settings.path("state") / "artifacts")
        ),
    }
    return replace(
        found,
        outcomes={key: outcome for key, outcome in stored.items() if key not in outdated},
        judgements={key: judgement for key, judgement in found.judgements.items() if key not in outdated},
        not_reusable={**found.not_reusable, **outdated},
    )


def read_key_history(settings: Settings, checks: Mapping[str, Check], host: HostReport) -> PlanHistory:
    """Read the history of keys and their checks; a missing ledger is not created.

    host: executions on hosts of its kind are preferred to estimate costs.
    """
    if not (settings.path("state") / FILE_NAME).exists():
        return PlanHistory(costs=CostModel())
    by_name = {check.name: check for check in checks.values()}
    with open_ledger(settings) as ledger:
        stored = ledger.get_many(_recorded(ledger, checks, by_name))
        samples, rates = check_history(ledger, by_name)
        runs = ledger.runs(RUNS)
    judgements = {key: judge_outcome(checks[key], outcome) for key, outcome in stored.items()}
    not_reusable = {
        key: reason
        for key, outcome in stored.items()
        if (reason := why_not_reusable(checks[key], outcome, judgements[key]))
    }
    return PlanHistory(
        outcomes={key: outcome for key, outcome in stored.items() if key not in not_reusable},
        judgements={key: judgement for key, judgement in judgements.items() if key not in not_reusable},
        not_reusable=not_reusable,
        failure_rate=rates,
        index_review=last_review(runs),
        planned_before=frozenset(
            cell.id for run in runs if run.plan.profile == settings["profile"] for cell in run.plan.cells
        ),
        costs=CostModel(
            [_placed(sample, {run.run_id: host_label(run.host) for run in runs}) for sample in samples],
            host=host_label(host_kind(host)),
        ),
    )


def last_review(runs: Iterable[RunRecord]) -> str:
    """When a run last asked the index, and with which result. runs: newest first."""
    found = next((run for run in runs if INDEX_FACT in run.host), None)
    if found is None:
        return "no run of this ledger has asked the package index whether archives were replaced"
    return f"package index, last asked by run {found.run_id}: {found.host[INDEX_FACT]}"


def host_label(host: Mapping[str, object]) -> str:
    """A text that is the same for hosts with about the same speed."""
    return ", ".join(str(host.get(name, "")) for name in ("machine", "cpus", "npu"))


def _placed(sample: TimedExecution, hosts: Mapping[str, str]) -> TimedExecution:
    return replace(sample, host=hosts.get(sample.host, "elsewhere"))


def _recorded(ledger: Ledger, keys: Collection[str], checks: Collection[str]) -> Collection[str]:
    """The keys to look up: all, or if there are very many, only those with recent outcomes."""
    if len(keys) <= MANY:
        return keys
    return {
        outcome.key
        for name in checks
        for outcome in ledger.history(check=name, limit=MANY)
        if outcome.key in keys
    }


def check_history(
    ledger: Ledger, checks: Mapping[str, Check]
) -> tuple[list[TimedExecution], dict[str, float]]:
    """The completed executions, with the id of the run as their host, and the share of failures by check."""
    devices = {Evidence.SIMULATED: "sim", Evidence.HARDWARE: "npu", Evidence.CPU: "cpu"}
    samples: list[TimedExecution] = []
    rates: dict[str, float] = {}
    for name, check in checks.items():
        found = [one for one in ledger.history(check=name, limit=HISTORY) if one.state is State.COMPLETED]
        failed = 0
        for outcome in found:
            device = devices.get(outcome.evidence, "") if check.device else ""
            samples.append(
                TimedExecution(check=name, device=device, host=outcome.run_id, seconds=outcome.seconds)
            )
            failed += judge_outcome(check, outcome).status is Status.FAIL
        # Laplace's rule of succession: 1/2 without any history.
        rates[name] = (failed + 1) / (len(found) + 2)
    return samples, rates


def open_plan_with_history(settings: Settings, **selection: Any) -> tuple[PlanContext, PlanHistory]:
    """The plan of a selection, and its history."""
    context = open_plan(settings, **selection)
    return context, read_history(context)
