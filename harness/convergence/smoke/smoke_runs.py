"""Trains in the cell for the checks `grpo` and `gspo`, and judges the trainings.

`run` trains in the cell, one seed after another until the decision rule can decide; `judge` applies the rule
again to the recorded series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from harness.cell_program.program_run import (
    ProgramFailure,
    Unsupported,
    cell_device,
    run_in_cell,
)
from harness.check import TaskContext
from harness.convergence.decision.check_speed import REMEDY, TimedRun, compare_speed
from harness.convergence.decision.decide import decide
from harness.convergence.decision.decision import Decision
from harness.convergence.decision.decision_curves import training_curves
from harness.convergence.decision.reference_set import (
    LEFT_OUT,
    PERFORMANCE,
    ReferenceSet,
    by_digest,
    for_recipe,
)
from harness.convergence.smoke import smoke_recipe
from harness.convergence.smoke.smoke_measurements import SmokeHeader, SmokeMeasurements, SmokeRun
from harness.convergence.smoke.smoke_recipe import CANDIDATE_SEEDS, RUN_TIMEOUT_S
from harness.convergence.telemetry.live_reader import Watcher
from harness.convergence.telemetry.series import (
    RecordedRun,
    Series,
    decode_series,
    encode,
    encode_series,
    read,
)
from harness.convergence.telemetry.training_records import EarlyStop
from harness.errors import InfrastructureError
from harness.evidence import DeviceFacts, evidence_of
from harness.measurements import OldMeasurementsError, read_shape
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.serialisation import to_json

PROGRAM = "harness.convergence.smoke.smoke_program"
Trained = tuple[int, RecordedRun]
"""A seed and its recorded run."""


def run(context: TaskContext) -> Measured[SmokeMeasurements]:
    """Train the first seed, then further seeds one by one until the decision rule needs no more runs.

    Each run is read while it is written, and stopped once its remaining steps cannot change the decision.
    """
    recipe = smoke_recipe.recipe(str(context.params["algorithm"]))
    reference = for_recipe(recipe.digest())
    trained: list[Trained] = []
    stops: dict[int, EarlyStop] = {}
    failure: ProgramFailure | Unsupported | None = None
    for seed in CANDIDATE_SEEDS:
        stop_file = context.workdir / f"stop-{seed}"
        watcher = Watcher(
            read=partial(_series_so_far, context, seed),
            stop_reason=partial(_early_decision, tuple(trained), seed, reference),
            steps=recipe.steps,
            stop_file=stop_file,
        )
        with watcher:
            found, failure = _train(context, recipe.algorithm, seed, "--stop-file", str(stop_file))
        trained += found
        if watcher.stop is not None:
            stops[seed] = watcher.stop
        if failure is not None or not _decision(trained, reference).runs_wanted:
            break
    context.log(f"trained {len(trained)} runs")
    return _measured(context, recipe, reference, trained, stops, failure)


def _series_so_far(context: TaskContext, seed: int) -> Series:
    """The series of the run that is training now."""
    out = context.workdir / f"run-{seed}.jsonl"
    runs = read(out).runs if out.is_file() else ()
    return runs[-1].series if runs else {}


def _early_decision(
    trained: Sequence[Trained], seed: int, reference: ReferenceSet | None, series: Series
) -> str:
    """Why the run of `seed` can be stopped after the steps it has made so far, or ""."""
    if reference is None:
        return ""
    seeds = [*(one for one, _ in trained), seed]
    runs = [*(run.series for _, run in trained), series]
    decision = decide(reference.runs, runs, twins=reference.twins_of(seeds), running=True)
    return "" if decision.decided_by in ("running", "reference", "input") else decision.reasons[0]


def _train(
    context: TaskContext, algorithm: str, seed: int, *more: str
) -> tuple[list[Trained], ProgramFailure | Unsupported | None]:
    out = context.workdir / f"run-{seed}.jsonl"
    device = cell_device(context)
    ended = run_in_cell(
        context,
        PROGRAM,
        *("--algorithm", algorithm, "--seed", str(seed), "--device", device, "--out", str(out), *more),
        out=out,
        what="the training",
        timeout=RUN_TIMEOUT_S,
        on=device,
    )
    telemetry = read(out)
    runs = [(int(run.header.get("seed", -1)), run) for run in telemetry.runs]
    if isinstance(ended, (ProgramFailure, Unsupported)):
        return runs, ended
    if [trained for trained, _ in runs] != [seed]:
        tail = "; ".join([f"it recorded {len(runs)} of 1 runs", *telemetry.problems])
        return runs, ProgramFailure(state="crashed", returncode=0, tail=tail, on=device)
    return runs, None


def _decision(trained: Sequence[Trained], reference: ReferenceSet | None) -> Decision:
    runs = [run.series for _, run in trained]
    if reference is None:
        return decide((), runs)
    return decide(reference.runs, runs, twins=reference.twins_of([seed for seed, _ in trained]))


def _measured(
    context: TaskContext,
    recipe: smoke_recipe.TinyRecipe,
    reference: ReferenceSet | None,
    trained: Sequence[Trained],
    stops: Mapping[int, EarlyStop],
    failure: ProgramFailure | Unsupported | None,
) -> Measured[SmokeMeasurements]:
    header = _header(trained[0][1]) if trained else None
    device = header.device if header else DeviceFacts(device=cell_device(context))
    seconds = sorted(second for _, run in trained for second in run.series.get("seconds", ()))
    return Measured(
        measurements=SmokeMeasurements(
            state=failure.state if failure else "measured",
            returncode=failure.returncode if isinstance(failure, ProgramFailure) else 0,
            tail=_tail(failure),
            algorithm=recipe.algorithm,
            recipe_digest=header.digest if header else recipe.digest(),
            recipe=header.recipe if header else {},
            reference=reference.digest if reference else "",
            reference_provenance=reference.provenance if reference else None,
            runs=tuple(_smoke_run(seed, run, stops.get(seed)) for seed, run in trained),
            curves=training_curves(reference.runs if reference else (), trained),
            device=device,
            seconds_per_step=encode(seconds[len(seconds) // 2]) if seconds else None,
            decision=_decision(trained, reference) if trained else None,
        ),
        # Without a header the device is unknown, so the evidence is the weakest.
        evidence=evidence_of(device) if header else Evidence.CPU,
        artifacts={path.name: str(path) for path in sorted(context.workdir.glob("run-*.jsonl"))},
        environment={"versions": dict(header.versions) if header else {}, "device": to_json(device)},
    )


def _tail(failure: ProgramFailure | Unsupported | None) -> str:
    if isinstance(failure, Unsupported):
        return failure.why
    return failure.tail if failure else ""


def _header(run: RecordedRun) -> SmokeHeader:
    """The header of a run. Raises InfrastructureError when this version cannot read it."""
    try:
        return read_shape(SmokeHeader, run.header)
    except OldMeasurementsError as error:
        raise InfrastructureError(
            "the training's header cannot be read",
            why=str(error),
            fix="run the check again; report it if it stays",
        ) from error


def _smoke_run(seed: int, run: RecordedRun, stopped: EarlyStop | None) -> SmokeRun:
    header = _header(run)
    learning = {name: values for name, values in run.series.items() if name not in LEFT_OUT}
    performance = {name: run.series[name] for name in PERFORMANCE if name in run.series}
    return SmokeRun(
        seed=seed,
        fault=header.fault,
        problems=run.problems,
        series=encode_series(learning),
        stopped=stopped,
        host=header.host,
        performance=encode_series(performance),
    )


def judge(measured: SmokeMeasurements, _params: Mapping[str, Any]) -> Judgement:
    """Apply the decision rule to the recorded series and the reference set that the run was compared with."""
    if measured.state == "unsupported":
        return Judgement(status=Status.UNSUPPORTED, reasons=(measured.tail,))
    if measured.state != "measured":
        return _judge_failure(measured)
    reference = by_digest(measured.reference) or for_recipe(measured.recipe_digest)
    if reference is None or reference.recipe_digest != measured.recipe_digest:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(
                "There is no reference set with the settings of this run, so its curves cannot be compared.",
            ),
            remedies=(
                "Record a reference in a trusted cell: python -m harness.convergence.smoke.record_smoke.",
            ),
        )
    runs = [decode_series(run.series) for run in measured.runs]
    decision = decide(reference.runs, runs, twins=reference.twins_of([run.seed for run in measured.runs]))
    timed = [
        TimedRun(stopped_early=run.stopped is not None, performance=run.performance, host=run.host)
        for run in measured.runs
    ]
    times = compare_speed(reference, timed, measured.device)
    slower = decision.status is Status.PASS and bool(times.regressions)
    return Judgement(
        status=Status.FAIL if slower else decision.status,
        reasons=(
            *(times.sentences if slower else ()),
            *decision.reasons,
            *_notes(measured),
            *(f"{note}." for note in decision.notes),
            *(() if slower else times.sentences),
            f"Decided from {_cost(decision, measured, reference)}.",
        ),
        remedies=(*decision.remedies, *([REMEDY] if slower else ())),
    )


def _notes(measured: SmokeMeasurements) -> list[str]:
    """Sentences about early stops, injected faults and problems of the recorded files."""
    stops = [
        f"Run {run.seed}: {run.stopped.sentence(len(run.series.get('reward', ())))}"
        for run in measured.runs
        if run.stopped is not None
    ]
    faults = sorted({run.fault for run in measured.runs if run.fault})
    problems = [f"Run {run.seed}: {problem}." for run in measured.runs for problem in run.problems]
    return [*stops, *(f"These runs carry the seeded fault {name}." for name in faults), *problems]


def _cost(decision: Decision, measured: SmokeMeasurements, reference: ReferenceSet) -> str:
    runs = "1 run" if decision.runs_used == 1 else f"{decision.runs_used} runs"
    seeds = ", ".join(str(run.seed) for run in measured.runs)
    return (
        f"{runs} (seed {seeds}), reference {reference.name} {reference.digest[:12]}: "
        f"{len(reference.runs)} runs on {reference.provenance.device.device}"
    )


def _judge_failure(measured: SmokeMeasurements) -> Judgement:
    steps = [max((len(values) for values in run.series.values()), default=0) for run in measured.runs]
    where = f"after {steps[-1]} steps" if steps else "before its first step"
    state: Literal["hung", "crashed"] = "hung" if measured.state == "hung" else "crashed"
    failure = ProgramFailure(state=state, returncode=measured.returncode, tail=measured.tail)
    what = f"did not end within {RUN_TIMEOUT_S:.0f} s" if state == "hung" else failure.ending
    return Judgement(
        status=Status.FAIL,
        reasons=(f"The training {what}, {where}.", *failure.last_line),
        remedies=("Read the task's log: it names operators that the device does not support.",),
    )
