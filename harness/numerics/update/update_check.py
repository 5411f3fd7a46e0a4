"""The check `update`: whole updates through verl's functions, compared with a float64 reference by their
definition.

`actor` compares verl on the device with verl on the CPU, so it cannot see what verl itself does wrongly. Here
the reference shares no code with verl. Each quantity is computed from the recorded values that it depends on,
with the error bounds of the loss battery (`error_bounds`), so the first wrong quantity names the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cell_program.program_run import (
    CPU_REFERENCE,
    ProgramFailure,
    Unsupported,
    cell_device,
    run_in_cell,
    run_reference,
)
from harness.cell_program.self_test import judge_self_test, self_test_summary
from harness.check import Completed, TaskContext
from harness.evidence import evidence_of
from harness.measurements import read_shape
from harness.numerics.loss.loss_measurements import UNCALLABLE
from harness.numerics.update.update_measurements import (
    MISSING,
    UpdateDeviceRun,
    UpdateMeasured,
    UpdateOutcome,
)
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.serialisation import json_object

PROGRAM = "harness.numerics.update.update_program"
TIMEOUT_S = 240.0
MAX_REASONS = 4

UpdateResult = UpdateMeasured | ProgramFailure | Unsupported


@dataclass(frozen=True, kw_only=True)
class _Files:
    records: Path
    run: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        return (f"--records={self.records}", f"--out={self.run}")


def run(context: TaskContext) -> Measured[UpdateResult]:
    """Run the cases on the device and compare; if some are wrong, run them on the CPU of the cell, too."""
    # Planning imports this module, but not numpy.
    from harness.numerics.loss.release_objectives import release_objective
    from harness.numerics.update.update_compare import (
        judge_faults,
        judged_outcomes,
        not_offered,
        outcome_is_wrong,
    )
    from harness.numerics.update.update_record import load_records

    device = cell_device(context)
    files = _Files(records=context.workdir / "update.npz", run=context.workdir / "update.json")
    end = run_in_cell(
        context,
        PROGRAM,
        *(f"--device={device}", "--faults", *files.arguments),
        out=files.run,
        what="the updates",
        timeout=TIMEOUT_S,
        on=device,
    )
    if isinstance(end, (ProgramFailure, Unsupported)):
        return Measured(measurements=end, evidence=Evidence.CPU)
    found = read_shape(UpdateDeviceRun, files.run)
    tree = context.facets.get("verl_tree", {})
    release = str(tree.get("version") or found.verl)
    revision = f"{release}@{tree['commit']}" if tree.get("commit") else release
    objective = release_objective(revision, found.source)
    records = load_records(files.records)
    outcomes = tuple(judged_outcomes(records, objective))
    on_cpu = None
    wrong = sorted({outcome.case for outcome in outcomes if outcome_is_wrong(outcome)})
    if device != "cpu" and wrong:
        cpu = _run_on_cpu(context, wrong)
        if cpu is not None:
            on_cpu = _wrong_too(outcomes, tuple(judged_outcomes(load_records(cpu), objective)))
    return Measured(
        measurements=UpdateMeasured(
            verl=release,
            device=found.device,
            paths=found.paths,
            outcomes=outcomes,
            self_test=judge_faults([record for record in records if record.fault], outcomes, objective),
            on_cpu=on_cpu,
            seconds={"in_cell": round(end.seconds, 3), "updates": found.seconds},
            known=objective.known,
            differences=()
            if objective.known
            else tuple(f"{one.what}; {one.consequence}" for one in objective.differences),
            not_offered=tuple(sorted({why for record in records if (why := not_offered(record, objective))})),
        ),
        evidence=evidence_of(found.device),
        artifacts={files.records.name: files.records.name},
        environment={"verl": found.verl, "device": json_object(found.device)},
    )


def _wrong_too(on_device: Sequence[UpdateOutcome], on_cpu: Sequence[UpdateOutcome]) -> int | None:
    """How many of the wrong updates are wrong on the CPU, too; None if nothing can be compared.

    Exceptions that only the CPU raised say nothing: releases of verl have functions that they do not have for
    CPUs.
    """
    wrong = {(one.case, one.path): one for one in on_device if one.wrong or one.error}
    compared = [
        one for one in on_cpu if (found := wrong.get((one.case, one.path))) and (found.error or not one.error)
    ]
    return sum(bool(one.wrong or one.error) for one in compared) if compared else None


def _run_on_cpu(context: TaskContext, cases: list[str]) -> Path | None:
    files = _Files(records=context.workdir / "update-cpu.npz", run=context.workdir / "update-cpu.json")
    end = run_reference(
        context,
        PROGRAM,
        *("--device=cpu", *files.arguments, "--only", *cases),
        out=files.run,
        what=CPU_REFERENCE,
        timeout=TIMEOUT_S,
    )
    return files.records if isinstance(end, Completed) else None


def judge(measurements: UpdateResult, _params: Mapping[str, Any]) -> Judgement:
    """Pass if every quantity of every case is in its interval and every injected fault was found where it was
    injected."""
    if isinstance(measurements, Unsupported):
        return Judgement(status=Status.UNSUPPORTED, reasons=(measurements.why,))
    if isinstance(measurements, ProgramFailure):
        return Judgement(
            status=Status.FAIL,
            reasons=(f"The updates on {measurements.on} {measurements.ending}.", *measurements.last_line),
            remedies=("Read the task's log.",),
        )
    wrong = [outcome for outcome in measurements.outcomes if outcome.wrong or outcome.error]
    unclear = [] if measurements.known else [outcome for outcome in wrong if _is_unclear(outcome)]
    if len(unclear) < len(wrong):
        return _judge_wrong(measurements, [outcome for outcome in wrong if outcome not in unclear])
    if unclear:
        return _judge_unclear(measurements, unclear)
    if not measurements.outcomes:
        return Judgement(status=Status.UNSUPPORTED, reasons=measurements.not_offered)
    missed = judge_self_test(measurements.self_test)
    if missed:
        return missed
    judged = sum(outcome.judged for outcome in measurements.outcomes)
    worst = max(outcome.worst_budget for outcome in measurements.outcomes)
    paths = list(dict.fromkeys(outcome.path for outcome in measurements.outcomes))
    summary = (
        f"{len(measurements.outcomes)} updates through {' and '.join(paths)} agree with the "
        f"float64 reference in all {judged} quantities, from rewards to updated parameters (worst error "
        f"{worst:.0%} of its tolerance); {self_test_summary(measurements.self_test)}."
    )
    differences = (
        f"Finding: by its source, this verl {difference}." for difference in measurements.differences
    )
    return Judgement(status=Status.PASS, reasons=(summary, *differences, *measurements.not_offered))


def _is_unclear(outcome: UpdateOutcome) -> bool:
    """Whether an update of a verl that this check does not know ended with an exception, or was not seen: the
    check may call it wrongly, or look in the wrong place."""
    return bool(outcome.error) or outcome.wrong[0].detail == MISSING


def _judge_unclear(measurements: UpdateMeasured, unclear: list[UpdateOutcome]) -> Judgement:
    total = len(measurements.outcomes)
    summary = (
        f"{len(unclear)} of {total} updates ended with an exception or were not recorded on "
        f"{measurements.device.device}. The check does not know this verl, so the cause may be how it calls "
        "verl."
    )
    reasons = (summary, *(_first_wrong(outcome) for outcome in unclear[:MAX_REASONS]))
    remedy = "Read verl's line; if verl is right, the check has to learn this commit."
    return Judgement(status=Status.INCONCLUSIVE, reasons=reasons, remedies=(remedy,))


def _judge_wrong(measurements: UpdateMeasured, wrong: list[UpdateOutcome]) -> Judgement:
    total = len(measurements.outcomes)
    reasons = [f"{len(wrong)} of {total} updates are wrong on {measurements.device.device}."]
    reasons += [_first_wrong(outcome) for outcome in wrong[:MAX_REASONS]]
    if measurements.on_cpu is None:
        remedy = "Look at the first quantity: everything that it is computed from is correct."
    elif measurements.on_cpu:
        reasons.append(f"On the CPU {measurements.on_cpu} of these {len(wrong)} are wrong, too.")
        remedy = "verl's code is wrong, or a patch of it: read the function that the reason names."
    else:
        reasons.append("On the CPU all of them are correct.")
        remedy = "The device is wrong: look for the operators of the function that the reason names."
    return Judgement(status=Status.FAIL, reasons=tuple(reasons), remedies=(remedy,))


def _first_wrong(outcome: UpdateOutcome) -> str:
    which = f"{outcome.case} ({outcome.path})"
    if outcome.error:
        raised = "" if outcome.error.startswith(UNCALLABLE) else "raised "
        return f"{which}: verl {raised}{outcome.error}."
    first = outcome.wrong[0]
    where = f" in {first.where}" if first.where else ""
    place = f" It is computed in {first.place}." if first.place else ""
    return f"{which}: the first wrong quantity is {first.quantity}{where}: {first.detail}.{place}"
