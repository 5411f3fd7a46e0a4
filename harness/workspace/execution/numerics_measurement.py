"""Runs a numerics check on one target without a plan: a built cell, or a Python environment of the user."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.cell_program.built_environment import (
    CellDevice,
    EnvironmentLocation,
    environment_location,
    is_built,
    read_cell_device,
)
from harness.check import CellCommand, Check
from harness.digest import digest_json
from harness.errors import InfrastructureError, InputError
from harness.numerics.calibration.calibration_measurements import CalibrationRecord
from harness.outcome import Evidence, Judgement, Outcome, State, Tier
from harness.package import PACKAGE_ROOT
from harness.plan.tasks.task import Task
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite
from harness.serialisation import JsonValue, json_object
from harness.settings import Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import open_plan
from harness.workspace.planning.plan_selection import unknown_name


@dataclass(frozen=True, kw_only=True)
class NumericsTarget:
    """What to measure: a verl version on a device, in a built cell or in a Python environment of the user.

    target: `verl==VERSION`. interpreter: the Python of the user's environment. seed: of the test battery.
    keep: a folder for all intermediate files.
    """

    target: str | None
    device: str
    interpreter: Path | None = None
    seed: int | None = None
    keep: Path | None = None


def calibration_file_name(record: CalibrationRecord, evidence: Evidence) -> str:
    """A file name made of the SoC, the evidence and the versions of torch and verl."""
    device = record.device
    name = f"{device.soc or device.kind or 'device'}-{evidence.value}-torch-{device.torch}-verl-{record.verl}"
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name) + ".json"


def measure_numerics(settings: Settings, check: Check, target: NumericsTarget) -> tuple[Outcome, Judgement]:
    """Run the check on the target in a temporary folder; nothing is stored in the ledger."""
    if target.seed is not None:
        check = replace(check, params={**check.params, "seed": target.seed})
    if target.interpreter:
        job, enter = _own_environment(settings, check, target, target.interpreter.absolute())
    else:
        job, enter = _cell(settings, check, target)
    with temporary_folder() as folder:
        site = JobSite(
            root=settings.root,
            state=(target.keep or folder).absolute(),
            cache=settings.cache,
            environ=os.environ,
            cell=enter,
            keep=target.keep is not None,
        )
        outcome = execute(job, site)
    if outcome.state is not State.COMPLETED:
        failure = outcome.failure
        raise InfrastructureError(
            f"the battery could not be measured: {failure.message if failure else outcome.state.value}",
            fix=failure.fix if failure else "run the command again with --keep FOLDER and read the log there",
        )
    return outcome, judge_outcome(check, outcome)


def _cell(settings: Settings, check: Check, target: NumericsTarget) -> tuple[Job, CellCommand]:
    """The job in the environment of a built cell; InfrastructureError names the command that builds it."""
    version, device = _version(target.target), target.device
    plan = open_plan(settings).plan
    cells = [cell for cell in plan.cells if _names(cell.axes.get("verl", ""), version)]
    if not cells:
        raise unknown_name(
            "cell with verl", version, sorted({cell.axes.get("verl", "") for cell in plan.cells})
        )
    # A CPU can use the packages of any cell; cells with a simulated device can be built on every host.
    fitting = [cell for cell in cells if cell.device == device or (device == "cpu" and cell.device == "sim")]
    if not fitting:
        devices = sorted({cell.device for cell in cells})
        raise InputError(
            f"no cell of the profile {settings['profile']!r} has verl {version} on {device}",
            why=f"its cells with this version are on {', '.join(devices)}",
            fix="choose one of these devices, another profile, or your own environment with --python",
        )
    with open_ledger(settings) as ledger:
        for cell in fitting:
            keys = {
                entry.check: entry.key for entry in plan.entries if entry.cell_id == cell.id and entry.key
            }
            built = ledger.get(keys["environment"]) if "environment" in keys else None
            if built is None or not is_built(built):
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
        f"no environment with verl {version} is built here",
        fix=f"npu-matrix run --only {fitting[0].id} --check environment",
    )


def _own_environment(
    settings: Settings, check: Check, target: NumericsTarget, python: Path
) -> tuple[Job, CellCommand]:
    """The job in a Python environment of the user."""
    device: dict[str, JsonValue] = {"kind": target.device}
    if target.device == "sim":
        raise InputError(
            "--python needs --device npu or cpu",
            why="the simulated device belongs to cells that npu-matrix builds",
            fix="use --target verl==VERSION --device sim",
        )
    facets: dict[str, JsonValue] = {"device": device}
    if target.target:
        facets["verl_tree"] = {"version": _version(target.target)}
    built = Outcome(
        key="",
        check="environment",
        tier=Tier.BUILD,
        state=State.COMPLETED,
        evidence=Evidence.CPU,
        facets={},
        measurements=json_object(
            EnvironmentLocation(
                requested_device=read_cell_device(device),
                python=str(python),
                prefix=str(python.parent.parent),
            )
        ),
    )
    key = digest_json({"python": str(python), **facets})
    task = Task(key=key, check=check, facets=facets, facet_digests={}, code_digest="")
    return Job(task=task, inputs={"environment": built}), _enter(settings, device)


def _enter(settings: Settings, device: Mapping[str, JsonValue]) -> CellCommand:
    def enter(
        built: Outcome, module: str, args: Sequence[str], *, on_cpu: bool = False
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        bundle = make_bundle(PACKAGE_ROOT, settings.cache)
        environment = environment_location(built)
        if on_cpu or device["kind"] == "cpu":
            environment = replace(environment, requested_device=CellDevice(kind="cpu"))
        return cell_command(environment, bundle, module, args)

    return enter


def _version(target: str | None) -> str:
    name, separator, version = (target or "").partition("==")
    if name.strip() != "verl" or not separator or not version.strip():
        raise InputError(
            f"{target!r} is not a target" if target else "no target is given",
            fix="--target verl==0.9.1, or --python for an environment of your own",
        )
    return version.strip()


def _names(axis: str, version: str) -> bool:
    """Whether `version` is the verl version of a cell, with or without `@commit`."""
    return version in {axis, axis.partition("@")[0]}
