"""Judges trainers that failed, and adds notes on a run to every judgement. Pure functions."""

from __future__ import annotations

from harness.cell_program.unsimulated_operators import judge_unsimulated_error
from harness.convergence.trainer.trainer_measurements import TrainerMeasurements, TrainerProgramFailure
from harness.outcome import Judgement, Status

# The program itself detects a hung trainer and kills it. This limit is for a hung program.
TIMEOUT_S = 1800.0


def judge_failure(measured: TrainerMeasurements | TrainerProgramFailure) -> Judgement:
    """The judgement on a trainer that failed: FAIL, or inconclusive if the simulation lacks an operator."""
    if isinstance(measured, TrainerProgramFailure):
        if measured.state == "hung":
            what = f"The trainer's program did not end within {TIMEOUT_S:.0f} s."
        else:
            what = f"The trainer's program ended with exit code {measured.returncode}."
        words = _last_words(measured.tail)
        return Judgement(
            status=Status.FAIL,
            reasons=(what, *([f"Its last line of output: {words}"] if words else [])),
            remedies=(_LOG_REMEDY,),
        )
    if lacking := judge_unsimulated_error(measured.device, measured.tail):
        return lacking
    steps = max((len(values) for values in measured.series.values()), default=0)
    reached = f"after {steps} steps" if steps else "before its first step"
    if measured.state == "hung":
        stood = f" {measured.where}." if measured.where else " No stack could be collected."
        return failed(
            measured,
            f"The trainer made no progress {reached} and was killed.{stood}",
            remedy="Look at the stacks in run.json. A common cause is a Ray resource that no node has.",
        )
    words = _last_words(measured.tail)
    return failed(
        measured,
        f"The trainer ended with exit code {measured.returncode} {reached}.",
        *([f"Its last line of output: {words}"] if words else []),
        remedy=_LOG_REMEDY,
    )


_LOG_REMEDY = "Read the task's log: it shows the error."


def _last_words(tail: str) -> str:
    """The last line that names an error, else the last line."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] and not line.startswith("[ERROR]")]
    return (errors or lines or [""])[-1]


def failed(measured: TrainerMeasurements, *reasons: str, remedy: str) -> Judgement:
    """The status FAIL with these reasons and the notes on the run."""
    return Judgement(status=Status.FAIL, reasons=(*reasons, *notes(measured)), remedies=(remedy,))


def notes(measured: TrainerMeasurements) -> list[str]:
    """Sentences for every judgement: problems of the run's log, processes it left behind, its times."""
    durations = measured.series.get("seconds", ())
    steps = sorted(value for value in durations if isinstance(value, (int, float)))
    found = [f"{problem}." for problem in measured.problems]
    if measured.swept:
        found.append(f"The trainer left {measured.swept} processes behind, which were killed.")
    if measured.seconds.start_up is not None and steps:
        found.append(
            f"First step after {measured.seconds.start_up:.0f} s, then {steps[len(steps) // 2]:.2f} s per "
            f"step (median), {measured.seconds.whole:.0f} s in total."
        )
    return found
