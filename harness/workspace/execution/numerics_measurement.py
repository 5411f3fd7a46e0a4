"""Runs a numerics check on one target without a plan: a built cell, or a Python environment of the user."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.cell_program.built_environment import (
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
from harness.serialisation import json_object
from harness.settings import Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import open_plan
from harness.workspace.planning.plan_selection import unknown_name


def calibration_file_name(record: CalibrationRecord, evidence: Evidence) -> str:
    """A file name made of the SoC, the evidence and the versions of torch and verl."""
    device = record.device
    name = f"{device.soc or device.kind or 'device'}-{evidence.value}-torch-{device.torch}-verl-{record.verl}"
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name) + ".json"


def measure_numerics(
    settings: Settings, check: Check, options: Mapping[str, Any]
) -> tuple[Outcome, Judgement]:
    """Run the check on the target in a temporary folder; nothing is stored in the ledger."""
    if options["seed"] is not None:
        check = replace(check, params={**check.params, "seed": options["seed"]})
    job, enter = (
        _own_environment(settings, check, options)
        if options["interpreter"]
        else _cell(settings, check, options)
    )
    keep: Path | None = options["keep"]
    with temporary_folder() as place:
        site = JobSite(
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
    wanted, device = _version(options["target"]), options["device"]
    plan = open_plan(settings).plan
    cells = [cell for cell in plan.cells if _names(cell.axes.get("verl", ""), wanted)]
    if not cells:
        raise unknown_name(
            "cell with verl", wanted, sorted({cell.axes.get("verl", "") for cell in plan.cells})
        )
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
        f"no environment with verl {wanted} is built here",
        fix=f"npu-matrix run --only {fitting[0].id} --check environment",
    )


def _own_environment(settings: Settings, check: Check, options: Mapping[str, Any]) -> tuple[Job, CellCommand]:
    """The job in a Python environment of the user."""
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


def _enter(settings: Settings, device: Mapping[str, Any]) -> CellCommand:
    def enter(built: Outcome, module: str, args: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        bundle = make_bundle(PACKAGE_ROOT, settings.cache)
        environment = environment_location(built)
        if device["kind"] == "cpu":
            environment = replace(environment, requested_device=read_cell_device(device))
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
    """Whether `wanted` is the verl version of a cell, with or without `@commit`."""
    return wanted in {axis, axis.partition("@")[0]}
