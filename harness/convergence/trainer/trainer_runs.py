"""Runs verl's trainer in a cell, seed by seed, and judges the runs. The checks in `trainer_check` use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from harness.cell_program.program_run import STORED_CHARACTERS
from harness.check import Completed, TaskContext
from harness.convergence.decision import run_gates
from harness.convergence.decision.bands import arrays
from harness.convergence.decision.check_speed import REMEDY, TimedRun, compare_speed
from harness.convergence.decision.decide import decide
from harness.convergence.decision.decision import Decision
from harness.convergence.decision.decision_curves import training_curves
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.reference_set import ReferenceSet, by_digest
from harness.convergence.telemetry.live_reader import Watcher
from harness.convergence.telemetry.series import RecordedRun, decode_series
from harness.convergence.telemetry.training_records import TrainingCurves
from harness.convergence.trainer import trainer_program
from harness.convergence.trainer.judging import reference_comparison
from harness.convergence.trainer.judging.failed_runs import TIMEOUT_S, failed, judge_failure, notes
from harness.convergence.trainer.judging.learning_test import (
    LEAST_LAST,
    FirstStepDifference,
    first_step_differences,
    judge_learning,
)
from harness.convergence.trainer.record_trainer import same_start
from harness.convergence.trainer.tiny_task import best_blind_reward
from harness.convergence.trainer.trainer_measurements import (
    FurtherRun,
    TrainerMeasurements,
    TrainerProgramFailure,
)
from harness.evidence import evidence_of
from harness.measurements import read_shape
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.serialisation import to_json

Measurements = TrainerMeasurements | TrainerProgramFailure

PROGRAM = "harness.convergence.trainer.trainer_program"


def measure(context: TaskContext, arguments: Sequence[str]) -> Measured[Measurements]:
    """Run `PROGRAM` with these arguments in the cell.

    If there is a reference set for these arguments, further seeds are trained until the decision rule needs
    no more runs, and each run is stopped once its remaining steps cannot change the decision.
    """
    device = "cpu" if context.facets["device"]["kind"] == "cpu" else "npu"
    words = [*arguments, "--device", device]
    reference = _reference(context, words)
    runs: list[TrainerMeasurements] = []
    for seed in (
        reference_comparison.CANDIDATE_SEEDS if reference else reference_comparison.CANDIDATE_SEEDS[:1]
    ):
        found = _run(context, words, seed, reference, runs)
        if isinstance(found, TrainerProgramFailure):
            return measured_by(context, found)
        runs.append(found)
        if reference is None or found.state != "measured":
            break
        if not decide(reference.runs, [decode_series(run.series) for run in runs]).runs_wanted:
            break
    return measured_by(context, _joined(runs, reference))


def measured_by(context: TaskContext, found: Measurements) -> Measured[Measurements]:
    """The measurements with their evidence, and with the file of each run as an artifact."""
    files = {path.name: str(path) for path in sorted(context.workdir.glob("run*.json"))}
    if isinstance(found, TrainerProgramFailure):
        # Without the program's report the device is unknown, so the evidence is the weakest.
        return Measured(measurements=found, evidence=Evidence.CPU, artifacts=files)
    return Measured(
        measurements=found,
        evidence=evidence_of(found.device),
        artifacts=files,
        environment={"versions": dict(found.versions), "device": to_json(found.device)},
    )


def _joined(runs: Sequence[TrainerMeasurements], reference: ReferenceSet | None) -> TrainerMeasurements:
    """The run that failed, or else the first run with the others as `more`, and the decision about them."""
    found = next((run for run in runs if run.state != "measured"), runs[0])
    if found.state == "measured":
        more = tuple(FurtherRun(recipe=run.recipe, series=run.series, stop=run.stop) for run in runs[1:])
        found = replace(found, more=more)
    if reference is not None:
        found = replace(found, reference=reference.digest, reference_provenance=reference.provenance)
    # Stored for reports only: `judge` applies the rule again.
    decision = _decision(found)[0] if found.state == "measured" else None
    return replace(found, decision=decision, curves=_curves(runs, reference))


def _reference(context: TaskContext, words: Sequence[str]) -> ReferenceSet | None:
    """The reference set for these options, or None. Commits of verl have no reference sets, only releases."""
    version, _, commit = str(context.facets["versions"].get("verl", "")).partition("@")
    if commit:
        return None
    options = trainer_program.parser().parse_args([*words, "--folder", ".", "--out", "."])
    digest = trainer_program.settings_digest(options)
    reference = reference_comparison.reference_for(digest, version)
    return None if reference_comparison.missing_references(reference) else reference


def _run(
    context: TaskContext,
    words: Sequence[str],
    seed: int,
    reference: ReferenceSet | None,
    earlier: Sequence[TrainerMeasurements],
) -> Measurements:
    # The names of the first run's files, which the documentation mentions, do not contain the seed.
    name = "" if not earlier else f"-{seed}"
    folder, out = context.workdir / f"task{name}", context.workdir / f"run{name}.json"
    live, stop_file = context.workdir / f"live-{seed}.json", context.workdir / f"stop-{seed}"
    folder.mkdir()
    before = [decode_series(run.series) for run in earlier]
    watcher = Watcher(
        read=lambda: reference_comparison.read_live_series(live),
        stop_reason=lambda series: (
            reference_comparison.early_stop_reason(reference, before, series) if reference else ""
        ),
        steps=reference.steps if reference else 0,
        stop_file=stop_file,
    )
    with watcher:
        completed = context.in_cell(
            PROGRAM,
            *(*words, "--seed", str(seed), "--live", str(live), "--stop-file", str(stop_file)),
            *("--folder", str(folder), "--out", str(out)),
            timeout=TIMEOUT_S,
        )
    found = read_run(out, completed)
    return found if isinstance(found, TrainerProgramFailure) else replace(found, stop=watcher.stop)


def read_run(out: Path, completed: Completed) -> Measurements:
    """Measurements of the run that `PROGRAM` wrote to `out`, or of the program's own failure."""
    tail = completed.tail[-STORED_CHARACTERS:]
    if completed.returncode != 0 or completed.timed_out or not out.is_file():
        state: Literal["hung", "failed"] = "hung" if completed.timed_out else "failed"
        return TrainerProgramFailure(state=state, returncode=completed.returncode, tail=tail)
    found = read_shape(TrainerMeasurements, out)
    return replace(found, curves=_curves([found], None), tail="" if found.state == "measured" else tail)


def _curves(runs: Sequence[TrainerMeasurements], reference: ReferenceSet | None) -> TrainingCurves:
    """The curves that a report draws; without a reference set there are no bands."""
    drawn = [(run.recipe.seed, RecordedRun(series=decode_series(run.series))) for run in runs]
    return training_curves(reference.runs if reference else (), drawn)


def judge(measured: Measurements, _params: Mapping[str, Any]) -> Judgement:
    """Judge the recorded series.

    Applied in this order: the decision rule, if there is a reference set; the gates; whether the reward rises
    above what a policy reaches without reading its prompt; the comparison with the recorded first step;
    whether the series are there without which nothing is decided.
    """
    if isinstance(measured, TrainerProgramFailure) or measured.state != "measured":
        return judge_failure(measured)
    steps = measured.recipe.steps
    decision, reference = _decision(measured)
    series = decode_series(measured.series)
    worst = _worst_difference(measured, series)
    unlike = [worst.sentence()] if worst is not None and worst.alarm else []
    if decision is not None and reference is not None and decision.status is not Status.PASS:
        return _not_passed(measured, decision, reference, unlike)
    if crossed := _gate(measured, series):
        return crossed
    whole = _whole(measured, steps)
    if whole is None:
        made = len(series.get("reward", ()))
        reason = f"The trainer ended without an error, but after {made} of {steps} steps."
        return failed(measured, reason, remedy="Read the end of the task's log.")
    if steps < 2 * LEAST_LAST:
        reason = f"{steps} steps are too few to decide whether the policy learns."
        return Judgement(status=Status.INCONCLUSIVE, reasons=(reason,))
    found = judge_learning(whole["reward"], best_blind_reward())
    if not found.passed:
        return failed(measured, found.sentence(), *unlike, remedy=_LEARNED_REMEDY)
    if unlike and _is_hardware(measured):
        # On 15 % of the seeds, rounding in HF32 changes a sampled token of the first step, and with it the
        # rest of the run.
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(found.sentence(), *unlike, *notes(measured)),
            remedies=("Run the check with another seed: a fault shows with every seed, chance does not.",),
        )
    if unlike:
        return failed(measured, *unlike, found.sentence(), remedy=_FIRST_STEP_REMEDY)
    missing = [name for name in Rule().core if len(whole.get(name, ())) < len(whole["reward"])]
    if missing:
        reason = (
            f"verl did not log {' and '.join(missing)} in every step: faults that only they show may pass."
        )
        return Judgement(status=Status.INCONCLUSIVE, reasons=(reason, found.sentence(), *notes(measured)))
    return _passed(measured, decision, reference, (found.sentence(), _agreement(worst)))


def _decision(measured: TrainerMeasurements) -> tuple[Decision | None, ReferenceSet | None]:
    """The rule's decision about all runs and the reference set it used; both None if there is no set."""
    reference = by_digest(measured.reference) if measured.reference else None
    if reference is None:
        return None, None
    return decide(reference.runs, [decode_series(run.series) for run in _runs(measured)]), reference


def _runs(measured: TrainerMeasurements) -> tuple[TrainerMeasurements | FurtherRun, ...]:
    return (measured, *measured.more)


def _not_passed(
    measured: TrainerMeasurements, decision: Decision, reference: ReferenceSet, unlike: Sequence[str]
) -> Judgement:
    """Judge runs that the decision rule did not pass.

    unlike: how the first step differs from the recorded one. On hardware, that alone does not fail the cell.
    """
    sure = decision.status is Status.FAIL or (bool(unlike) and not _is_hardware(measured))
    return Judgement(
        status=Status.FAIL if sure else decision.status,
        reasons=(*decision.reasons, *unlike, *_cost(measured, decision, reference), *notes(measured)),
        remedies=(*decision.remedies, *([_FIRST_STEP_REMEDY] if unlike else ())),
    )


def _passed(
    measured: TrainerMeasurements,
    decision: Decision | None,
    reference: ReferenceSet | None,
    reasons: Sequence[str],
) -> Judgement:
    if decision is None or reference is None:
        shape = reference_comparison.missing_references(None)
        without = (*reasons, f"{shape[:1].upper()}{shape[1:]}.", *notes(measured))
        return Judgement(status=Status.PASS, reasons=without)
    run = TimedRun(stopped_early=measured.stop is not None, performance=measured.series, host=measured.host)
    times = compare_speed(reference, [run], measured.device)
    if times.regressions:
        return Judgement(status=Status.FAIL, reasons=(*times.sentences, *reasons), remedies=(REMEDY,))
    cost = _cost(measured, decision, reference)
    return Judgement(
        status=Status.PASS,
        reasons=(*decision.reasons, *reasons, *times.sentences, *cost, *notes(measured)),
    )


def _cost(measured: TrainerMeasurements, decision: Decision, reference: ReferenceSet) -> list[str]:
    """Sentences: the number of runs, the steps that early stops saved, and the reference set."""
    runs = _runs(measured)
    seeds = ", ".join(str(run.recipe.seed) for run in runs)
    device = reference.provenance.device
    simulated = "the simulated " if device.simulated else ""
    saved = [
        f"Seed {run.recipe.seed}: {run.stop.sentence(len(run.series.get('reward', ())))}"
        for run in runs
        if run.stop is not None
    ]
    number = "1 run" if decision.runs_used == 1 else f"{decision.runs_used} runs"
    against = (
        f"{reference.name} {reference.digest[:12]}, {len(reference.runs)} runs of verl "
        f"{reference.provenance.versions['verl']} on {simulated}{device.device}"
    )
    return [*saved, f"The decision compares {number} (seed {seeds}) with the reference {against}."]


def _gate(measured: TrainerMeasurements, series: Mapping[str, tuple[float, ...]]) -> Judgement | None:
    """The judgement if the first run fails a gate, or None."""
    gate = run_gates.first_failed_gate(arrays(series), Rule()) if series.get("reward") else None
    if gate is None:
        return None
    made = len(series["reward"])
    stopped = (
        [f"It was stopped there, after {made} of {measured.recipe.steps} steps."] if measured.stopped else []
    )
    return failed(measured, f"{gate.reason[:1].upper()}{gate.reason[1:]}.", *stopped, remedy=gate.hint)


def _whole(measured: TrainerMeasurements, steps: int) -> Mapping[str, tuple[float, ...]] | None:
    """The first complete run, or None. Further runs exist only if there is a reference set."""
    first = [measured] if measured.complete else []
    ended: list[TrainerMeasurements | FurtherRun] = [*first, *measured.more]
    runs = (decode_series(run.series) for run in ended)
    return next((series for series in runs if len(series.get("reward", ())) >= steps), None)


_LEARNED_REMEDY = "Look at the advantages (sign, grouping), the optimizer, and the backward of attention."
_FIRST_STEP_REMEDY = "Compare with the numerics tier's check `loss`, which names the function."


def _worst_difference(
    measured: TrainerMeasurements, series: Mapping[str, tuple[float, ...]]
) -> FirstStepDifference | None:
    verl = measured.versions.get("verl", "")
    recorded = same_start(measured.recipe, measured.digest, verl)
    if recorded is None:
        return None
    found = first_step_differences(series, recorded.series, same_verl=recorded.verl == verl)
    return found[0] if found else None


def _agreement(worst: FirstStepDifference | None) -> str:
    if worst is None:
        return "The first step was not compared: there is no recorded run of these settings."
    how = f"to {worst.size:.1e} or better" if worst.size else "exactly"
    return f"The first step agrees with the recorded run of the same seed {how}."


def _is_hardware(measured: TrainerMeasurements) -> bool:
    return evidence_of(measured.device) is Evidence.HARDWARE
