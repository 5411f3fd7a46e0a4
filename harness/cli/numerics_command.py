"""`npu-matrix numerics`: the loss test battery on one target, and the calibration of a device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import EXIT_INCOMPLETE, EXIT_UNEXPECTED, InputError
from harness.serialisation import json_object
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.cell_program.program_run import ProgramFailure, Unsupported
    from harness.numerics.loss.loss_measurements import LossCaseOutcome, LossMeasured
    from harness.outcome import Judgement, Outcome

DEVICES = ("sim", "npu", "cpu")
LONGEST_REASON = 110


@click.group(
    "numerics",
    epilog="\b\nExamples:\n  npu-matrix numerics battery --target verl==0.9.1 --device sim\n"
    "  npu-matrix numerics battery --target verl==0.6.1 --device cpu --json | jq '.counts'\n"
    "  npu-matrix numerics battery --python ~/venv/bin/python --device npu\n"
    "  npu-matrix numerics calibrate --target verl==0.9.1 --device npu",
)
def command() -> None:
    """Test verl's losses on a device, or measure the precision of a device."""


def _target_options(function: Any) -> Any:
    for option in (
        click.option(
            "--keep",
            type=click.Path(file_okay=False, path_type=Path),
            help="Keep all intermediate files in this folder.",
        ),
        click.option("--seed", type=click.IntRange(min=0), help="Seed of the test battery."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--python",
            "interpreter",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Use this Python interpreter, which has verl installed, instead of a built cell.",
        ),
        click.option("--device", type=click.Choice(DEVICES), default="sim", show_default=True),
        click.option("--target", metavar="verl==VERSION", help="The verl version, as the cells name it."),
    ):
        function = option(function)
    return function


@command.command("battery")
@_target_options
@click.pass_obj
def battery(settings: Settings, /, as_json: bool, **options: Any) -> int:
    """Evaluate the loss test battery and print one line per case.

    Uses the environment of a built cell with that verl version. Exits with 0 when every case passes, 1 when a
    case fails, 4 when the result is inconclusive.
    """
    from harness.numerics.checks import CHECKS
    from harness.numerics.loss.loss_measurements import LOSS_FORMAT, LossMeasured
    from harness.workspace.execution.numerics_measurement import NumericsTarget, measure_numerics

    loss = next(check for check in CHECKS if check.name == "loss")
    outcome, judgement = measure_numerics(settings, loss, NumericsTarget(**options))
    if as_json:
        click.echo(json.dumps(_report("npu-matrix.numerics-battery", outcome, judgement), indent=2))
    else:
        measured = LOSS_FORMAT.read(outcome.measurements)
        if isinstance(measured, LossMeasured):
            _print_cases(measured.cases)
        _print_judgement(_device(measured), outcome, judgement)
    return _exit_code(judgement)


@command.command("calibrate")
@_target_options
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the calibration to this file."
)
@click.pass_obj
def calibrate(settings: Settings, /, out: Path | None, as_json: bool, **options: Any) -> int:
    """Measure the precision constants of a device.

    The error budget of each group of cases is measured too. The figures are recorded, not judged.
    """
    from harness.numerics.calibration.calibration_check import CALIBRATION
    from harness.workspace.execution.numerics_measurement import (
        NumericsTarget,
        calibration_file_name,
        measure_numerics,
    )

    outcome, _ = measure_numerics(settings, CALIBRATION, NumericsTarget(**options))
    calibration = CALIBRATION.read(outcome).calibration
    record = {
        **json_object(calibration),
        "evidence": outcome.evidence.value,
        "measured_at": outcome.finished,
    }
    out = out or settings.path("state") / "calibration" / calibration_file_name(calibration, outcome.evidence)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {out}", why=str(error), fix="name another file with --out") from error
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return 0
    for row in calibration.constants:
        mark = "" if row.holds else "  BEYOND"
        measured = "not finite" if row.measured is None else row.measured
        click.echo(f"{row.constant:<20}  measured {measured:<10}  contract {row.contract}{mark}")
    for group in calibration.groups:
        click.echo(
            f"{group.group:<12} {group.contract:<8} {group.cases:>4} cases, {group.outside} outside, "
            f"budget {group.median_budget:.0%}, worst {group.worst_budget:.3g} ({group.worst_case})"
        )
    click.echo(f"evidence: {outcome.evidence.value}; record: {out}")
    return 0


def _report(name: str, outcome: Outcome, judgement: Judgement) -> dict[str, object]:
    from harness.measurements import VERSION_FIELD

    return {
        "schema": {"name": name, "version": 1},
        "status": judgement.status.value,
        "evidence": outcome.evidence.value,
        "reasons": list(judgement.reasons),
        "remedies": list(judgement.remedies),
        **{key: value for key, value in outcome.measurements.items() if key != VERSION_FIELD},
    }


def _print_cases(cases: Sequence[LossCaseOutcome]) -> None:
    width = max((len(case.name) for case in cases), default=4)
    if cases:
        click.echo(f"{'case':<{width}}  {'status':<11}  {'budget':>8}  {'scale':>8}  why")
    for case in cases:
        scale = "" if case.scale is None else f"{case.scale:.4g}"
        budget = f"{case.budget:.1%}" if case.budget < 10 else f"{case.budget:.1e}"
        why = "; ".join(case.reasons)
        shown = why if len(why) <= LONGEST_REASON else why[: LONGEST_REASON - 3] + "..."
        status = case.status.value if case.is_required else f"({case.status.value})"
        click.echo(f"{case.name:<{width}}  {status:<11}  {budget:>8}  {scale:>8}  {shown}".rstrip())


def _device(measured: LossMeasured | ProgramFailure | Unsupported) -> str:
    from harness.numerics.loss.loss_measurements import LossMeasured

    if isinstance(measured, LossMeasured):
        return measured.device.device
    return getattr(measured, "on", "") or "no device"


def _print_judgement(device: str, outcome: Outcome, judgement: Judgement) -> None:
    click.echo(f"\n{judgement.status.value} on {device}, evidence: {outcome.evidence.value}")
    for reason in judgement.reasons:
        click.echo(f"  {reason}")
    for remedy in judgement.remedies:
        click.echo(f"  do: {remedy}")


def _exit_code(judgement: Judgement) -> int:
    return {"pass": 0, "fail": EXIT_UNEXPECTED}.get(judgement.status.value, EXIT_INCOMPLETE)
