"""The history of a plan in the ledger: outcomes and judgements by key, failure rates, costs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.check import Check, why_not_reusable
from harness.devices.host.inventory import HostReport
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Evidence, Judgement, Outcome, State, Status
from harness.plan.change.rerun_reasons import outdated_outcomes
from harness.plan.cost.task_cost import CostModel, TimedExecution
from harness.settings import Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import PlanContext, host_kind, open_plan

#: How many executions of a check, and how many runs, the cost model uses.
HISTORY = 60
RUNS = 20
#: Up to this number of keys, each is looked up in the ledger.
MANY = 20_000


@dataclass(frozen=True, kw_only=True)
class PlanHistory:
    """Outcomes and judgements by key; how often each check failed; cells of earlier plans; costs.

    not_reusable: keys whose outcome is asked again although it is stored, with the reason.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    not_reusable: Mapping[str, str] = field(default_factory=dict)
    failure_rate: Mapping[str, float] = field(default_factory=dict)
    planned_before: frozenset[str] = frozenset()
    costs: CostModel


def read_history(context: PlanContext) -> PlanHistory:
    """Read the history of the plan from the ledger."""
    checks = {key: task.check for key, task in context.plan.tasks.items()}
    found = read_key_history(context.settings, checks, context.host)
    again = outdated_outcomes(context.plan.tasks, found.outcomes)
    return replace(
        found,
        outcomes={key: outcome for key, outcome in found.outcomes.items() if key not in again},
        judgements={key: said for key, said in found.judgements.items() if key not in again},
        not_reusable={**found.not_reusable, **again},
    )


def read_key_history(settings: Settings, checks: Mapping[str, Check], host: HostReport) -> PlanHistory:
    """Read the history of keys and their checks; a missing ledger is not created.

    host: this one; what ran on hosts of its kind says best what work costs here.
    """
    if not (settings.path("state") / FILE_NAME).exists():
        return PlanHistory(costs=CostModel())
    by_name = {check.name: check for check in checks.values()}
    with open_ledger(settings) as ledger:
        stored = ledger.get_many(_recorded(ledger, checks, by_name))
        samples, rates = check_history(ledger, by_name)
        runs = ledger.runs(RUNS)
    judgements = {key: judge_outcome(checks[key], outcome) for key, outcome in stored.items()}
    asked_again = {
        key: reason
        for key, outcome in stored.items()
        if (reason := why_not_reusable(checks[key], outcome, judgements[key]))
    }
    return PlanHistory(
        outcomes={key: outcome for key, outcome in stored.items() if key not in asked_again},
        judgements={key: said for key, said in judgements.items() if key not in asked_again},
        not_reusable=asked_again,
        failure_rate=rates,
        planned_before=frozenset(
            cell.id for run in runs if run.plan.profile == settings["profile"] for cell in run.plan.cells
        ),
        costs=CostModel(
            [_placed(sample, {run.run_id: host_label(run.host) for run in runs}) for sample in samples],
            host=host_label(host_kind(host)),
        ),
    )


def host_label(host: Mapping[str, Any]) -> str:
    """Hosts with the same label do the same work in about the same time."""
    return ", ".join(str(host.get(name, "")) for name in ("machine", "cpus", "npu"))


def _placed(sample: TimedExecution, hosts: Mapping[str, str]) -> TimedExecution:
    return replace(sample, host=hosts.get(sample.host, "elsewhere"))


def _recorded(ledger: Ledger, keys: Collection[str], checks: Collection[str]) -> Collection[str]:
    """The keys to look up: all, or if there are very many, those with recent outcomes."""
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
    """Completed executions (their host is still the run's id), and each check's share of failures."""
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
