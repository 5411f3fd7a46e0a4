"""The strongest evidence that an outcome of a task can have, and the outcome with its evidence bounded by it.

A ledger is a file that anybody with write access can edit. Whoever joins a stored outcome with its task calls
`bounded_outcome`, and so does the executor of a task: what is stored never says more than the task can prove.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness import evidence
from harness.evidence import evidence_of, read_device_facts
from harness.ledger.plan_record import TaskRecord
from harness.outcome import Evidence, Outcome
from harness.plan.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class BoundedOutcome:
    """An outcome whose evidence is not stronger than its task and its measurements can prove.

    lowered: why the stored evidence was stronger, as a sentence; "" if it was not.
    """

    outcome: Outcome
    lowered: str = ""


def strongest_evidence(task: Task | TaskRecord | None) -> Evidence:
    """The strongest evidence that an outcome of the task may have; `static` for an unknown task."""
    if task is None:
        return Evidence.STATIC
    tier = task.check.tier if isinstance(task, Task) else task.tier
    return evidence.strongest_evidence(tier, task.facets)


def bounded_outcome(task: Task | TaskRecord | None, outcome: Outcome) -> BoundedOutcome:
    """The outcome of the task, with the weakest of three kinds of evidence.

    These are the evidence it states, the strongest evidence that the task can give, and the evidence that
    follows from the device in its measurements. If only hardware can give an outcome of the task, an outcome
    of another or an unnamed machine that no runner signed is claimed, whatever evidence it states.
    """
    strongest = strongest_evidence(task)
    trust = outcome.trust
    if strongest is Evidence.HARDWARE and trust.unsigned:
        claimed = replace(trust, claimed=trust.unsigned)
        return BoundedOutcome(outcome=replace(outcome, evidence=Evidence.STATIC, trust=claimed))
    measured = _measured_evidence(outcome)
    weakest = min(outcome.evidence, strongest, measured or outcome.evidence, key=lambda one: one.rank)
    if weakest is outcome.evidence:
        return BoundedOutcome(outcome=outcome)
    cause = "its check and cell" if weakest is strongest else "the device in its measurements"
    return BoundedOutcome(
        outcome=replace(outcome, evidence=weakest),
        lowered=f"The stored outcome states {outcome.evidence.value} evidence, but {cause} can give "
        f"{weakest.value} at most.",
    )


def _measured_evidence(outcome: Outcome) -> Evidence | None:
    """The evidence that follows from the device that the program or the probe reports; None without one."""
    device = outcome.measurements.get("device")
    if not isinstance(device, Mapping):
        probe = outcome.measurements.get("probe")
        device = probe.get("device") if isinstance(probe, Mapping) else None
    if not isinstance(device, Mapping):
        return None
    try:
        return evidence_of(read_device_facts(device))
    except (TypeError, ValueError):
        return Evidence.CPU
