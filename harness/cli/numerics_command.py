"""`npu-matrix numerics`: the loss battery on one target, and the calibration of a device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import EXIT_INCOMPLETE, EXIT_UNEXPECTED, InfrastructureError, InputError
from harness.settings import Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger
from harness.workspace.open_plan import open_bench
from harness.workspace.selection import no_match

if TYPE_CHECKING:
    from harness.check import Check
    from harness.outcome import Judgement, Outcome
    from harness.run.jobs.job import CellCommand, Job

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
    """Judge verl's losses on a device, or record what a device's arithmetic is."""


def _target_options(function: Any) -> Any:
    for option in (
        click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep all files here."),
        click.option("--seed", type=click.IntRange(min=0), help="Seed of the battery."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--python",
            "interpreter",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Use this interpreter, in which verl is installed, instead of a built cell.",
        ),
        click.option("--device", type=click.Choice(DEVICES), default="sim", show_default=True),
        click.option("--target", metavar="verl==VERSION", help="Which verl, as its cell names it."),
    ):
        function = option(function)
    return function


@command.command("battery")
@_target_options
@click.pass_obj
def battery(settings: Settings, /, **options: Any) -> int:
    """Evaluate the loss battery and print one line per case.

    Uses the environment of a built cell with that verl. Exit code 0 when every case passes, 1 when one
    fails, 4 when it could not be said.
    """
    from harness.numerics.checks import CHECKS

    loss = next(check for check in CHECKS if check.name == "loss")
    outcome, judgement = _measure(settings, loss, options)
    if options["as_json"]:
        click.echo(json.dumps(_report("npu-matrix.numerics-battery", outcome, judgement), indent=2))
    else:
        _print_cases(outcome.measurements.get("cases", ()))
        _print_judgement(outcome, judgement)
    return _exit_code(judgement)


@command.command("calibrate")
@_target_options
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Where the record is written.")
@click.pass_obj
def calibrate(settings: Settings, /, out: Path | None, **options: Any) -> int:
    """Record a device's constants and the budget of each group of cases; nothing passes or fails."""
    from harness.numerics.arithmetic.calibration_check import CALIBRATION

    outcome, judgement = _measure(settings, CALIBRATION, options)
    record = outcome.measurements.get("calibration")
    if record is None:
        _print_judgement(outcome, judgement)
        return EXIT_INCOMPLETE
    record = {**record, "evidence": outcome.evidence.value, "measured_at": outcome.finished}
    out = out or settings.path("state") / "calibration" / _record_name(record)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {out}", why=str(error), fix="name another file with --out") from error
    if options["as_json"]:
        click.echo(json.dumps(record, indent=2))
        return 0
    for row in record["constants"]:
        mark = "" if row["holds"] else "  BEYOND"
        click.echo(f"{row['constant']:<20}  measured {row['measured']:<10}  contract {row['contract']}{mark}")
    for row in record["groups"]:
        click.echo(
            f"{row['group']:<12} {row['contract']:<8} {row['cases']:>4} cases, {row['outside']} outside, "
            f"budget {row['median_budget']:.0%}, worst {row['worst_budget']:.3g} ({row['worst_case']})"
        )
    click.echo(f"evidence: {record['evidence']}; record: {out}")
    return 0


def _record_name(record: Mapping[str, Any]) -> str:
    device = record["device"]
    soc = str(device.get("soc") or device.get("kind") or "device")
    name = f"{soc}-{record['evidence']}-torch-{device.get('torch', '')}-verl-{record['verl']}"
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name) + ".json"


def _measure(settings: Settings, check: Check, options: Mapping[str, Any]) -> tuple[Outcome, Judgement]:
    """Run the check on the chosen target, in a folder of its own: nothing of it enters the ledger."""
    from harness.builds.ownership.temporary_folders import temporary_folder
    from harness.outcome import State
    from harness.run.jobs.execute import execute
    from harness.run.jobs.job import Site

    if options["seed"] is not None:
        check = replace(check, params={**check.params, "seed": options["seed"]})
    job, enter = (
        _own_environment(settings, check, options)
        if options["interpreter"]
        else _cell(settings, check, options)
    )
    keep: Path | None = options["keep"]
    with temporary_folder() as place:
        site = Site(
            root=settings.root,
            state=(keep or place).absolute(),
            cache=settings.cache,
            environ=os.environ,
            cell=enter,
            keep=keep is not None,
        )
        outcome = execute(job, site)
    if outcome.state is not State.COMPLETED:
        failure = outcome.failure
        raise InfrastructureError(
            f"the battery could not be measured: {failure.message if failure else outcome.state.value}",
            fix=failure.fix if failure else "run it again with --keep FOLDER and read the log there",
        )
    return outcome, judge_outcome(check, outcome)


def _cell(settings: Settings, check: Check, options: Mapping[str, Any]) -> tuple[Job, CellCommand]:
    """The job in the environment of a built cell; InfrastructureError names the command that builds it."""
    from harness.plan.tasks.task import Task
    from harness.run.jobs.job import Job

    wanted, device = _version(options["target"]), options["device"]
    plan = open_bench(settings).plan
    cells = [cell for cell in plan.cells if _names(cell.axes.get("verl", ""), wanted)]
    if not cells:
        raise no_match("cell with verl", wanted, sorted({cell.axes.get("verl", "") for cell in plan.cells}))
    # On a CPU the packages of any cell will do; a simulated one can be built anywhere.
    fitting = [cell for cell in cells if cell.device == device or (device == "cpu" and cell.device == "sim")]
    if not fitting:
        there = sorted({cell.device for cell in cells})
        raise InputError(
            f"no cell of the profile {settings['profile']!r} has verl {wanted} on {device}",
            why=f"there it is on {', '.join(there)}",
            fix="name one of these, another profile, or your own environment with --python",
        )
    with open_ledger(settings) as ledger:
        for cell in fitting:
            keys = {
                entry.check: entry.key for entry in plan.entries if entry.cell_id == cell.id and entry.key
            }
            built = ledger.get(keys["environment"]) if "environment" in keys else None
            if built is None or not built.measurements.get("built"):
                continue
            if plan.tasks[built.key].check.outdated(built):
                continue
            planned = plan.tasks[keys["loss"]]
            facets = dict(planned.facets)
            if device == "cpu":
                facets["device"] = {"kind": "cpu"}
            task = Task(
                key=planned.key,
                check=check,
                facets=facets,
                facet_digests=planned.facet_digests,
                code_digest=planned.code_digest,
                needs=planned.needs,
            )
            return Job(task=task, inputs={"environment": built}), _enter(settings, facets["device"])
    raise InfrastructureError(
        f"no environment with verl {wanted} is built here",
        fix=f"npu-matrix run --only {fitting[0].id} --check environment",
    )


def _own_environment(settings: Settings, check: Check, options: Mapping[str, Any]) -> tuple[Job, CellCommand]:
    """The job in an environment the user made."""
    from harness.digest import digest_json
    from harness.outcome import Evidence, Outcome, State, Tier
    from harness.plan.tasks.task import Task
    from harness.run.jobs.job import Job

    device = {"kind": options["device"]}
    if device["kind"] == "sim":
        raise InputError(
            "--python needs --device npu or cpu",
            why="the simulated device belongs to cells that npu-matrix builds",
            fix="use --target verl==VERSION --device sim",
        )
    python = options["interpreter"].absolute()
    facets: dict[str, Any] = {"device": device}
    if options["target"]:
        facets["verl_tree"] = {"version": _version(options["target"])}
    built = Outcome(
        key="",
        check="environment",
        tier=Tier.BUILD,
        state=State.COMPLETED,
        evidence=Evidence.CPU,
        facets={},
        measurements={"python": str(python), "prefix": str(python.parent.parent), "requested_device": device},
    )
    key = digest_json({"python": str(python), **facets})
    task = Task(key=key, check=check, facets=facets, facet_digests={}, code_digest="")
    return Job(task=task, inputs={"environment": built}), _enter(settings, device)


def _enter(settings: Settings, device: Mapping[str, Any]) -> CellCommand:
    import harness
    from harness.builds.cell.bundle import make_bundle
    from harness.builds.cell.cell_command import cell_command

    def enter(built: Outcome, module: str, args: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        bundle = make_bundle(Path(harness.__file__).parent, settings.cache)
        environment = built.measurements
        if device["kind"] == "cpu":
            environment = {**environment, "requested_device": device}
        return cell_command(environment, bundle, module, args)

    return enter


def _version(target: str | None) -> str:
    name, separator, version = (target or "").partition("==")
    if name.strip() != "verl" or not separator or not version.strip():
        raise InputError(
            f"not a target: {target!r}" if target else "no target is named",
            fix="--target verl==0.9.1, or --python for an environment of your own",
        )
    return version.strip()


def _names(axis: str, wanted: str) -> bool:
    """A cell's verl `0.6.1@commit` answers to its whole name and to its version."""
    return wanted in {axis, axis.partition("@")[0]}


def _report(name: str, outcome: Outcome, judgement: Judgement) -> dict[str, Any]:
    return {
        "schema": {"name": name, "version": 1},
        "status": judgement.status.value,
        "evidence": outcome.evidence.value,
        "reasons": list(judgement.reasons),
        "remedies": list(judgement.remedies),
        **{key: value for key, value in outcome.measurements.items() if key != "schema"},
    }


def _print_cases(cases: Sequence[Mapping[str, Any]]) -> None:
    width = max((len(entry["name"]) for entry in cases), default=4)
    if cases:
        click.echo(f"{'case':<{width}}  {'status':<11}  {'budget':>8}  {'scale':>8}  why")
    for entry in cases:
        scale = "" if entry["scale"] is None else f"{entry['scale']:.4g}"
        budget = f"{entry['budget']:.1%}" if entry["budget"] < 10 else f"{entry['budget']:.1e}"
        why = "; ".join(entry["reasons"])
        shown = why if len(why) <= LONGEST_REASON else why[: LONGEST_REASON - 3] + "..."
        status = entry["status"] if entry["severity"] == "required" else f"({entry['status']})"
        click.echo(f"{entry['name']:<{width}}  {status:<11}  {budget:>8}  {scale:>8}  {shown}".rstrip())


def _print_judgement(outcome: Outcome, judgement: Judgement) -> None:
    device = outcome.measurements.get("device", {}).get("device", "")
    click.echo(f"\n{judgement.status.value} on {device}, evidence: {outcome.evidence.value}")
    for reason in judgement.reasons:
        click.echo(f"  {reason}")
    for remedy in judgement.remedies:
        click.echo(f"  do: {remedy}")


def _exit_code(judgement: Judgement) -> int:
    return {"pass": 0, "fail": EXIT_UNEXPECTED}.get(judgement.status.value, EXIT_INCOMPLETE)
