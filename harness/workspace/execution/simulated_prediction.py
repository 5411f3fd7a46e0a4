"""What the simulated device predicts for a check that ran on NPUs, and where the prediction was wrong.

The prediction is made in the environment in which the check ran, with the same packages: only the runtime is
another one. It is never stored as an outcome of the cell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.cell_program.built_environment import (
    ENVIRONMENT_FORMAT,
    EnvironmentBuilt,
    environment_location,
    read_cell_device,
)
from harness.check import CellCommand
from harness.devices.sim.runtime_build.cann_toolkit import write_toolkit
from harness.devices.sim.runtime_build.runtime_library import build_runtime
from harness.devices.sim.start.sim_environment import DEFAULT_CANN
from harness.errors import HarnessError, InfrastructureError
from harness.numerics.calibration.calibration_measurements import DeviceConstant
from harness.numerics.loss.loss_measurements import LOSS_FORMAT, LossMeasured
from harness.outcome import Outcome, State
from harness.package import PACKAGE_ROOT
from harness.plan.tasks.task import Task
from harness.rollout.contact.contact_measurements import (
    COLLECTIVES_FORMAT,
    SAMPLE_FORMAT,
    CollectivesMeasured,
    SampleMeasured,
)
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite
from harness.serialisation import JsonValue
from harness.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One thing that was predicted and measured, in words. right: whether the prediction held."""

    check: str
    what: str
    predicted: str
    measured: str
    right: bool


def predict(settings: Settings, task: Task, built: Outcome, folder: Path) -> Outcome:
    """Run the task's check on the simulated device, in the environment `built`; files go to `folder`.

    InfrastructureError if the environment is in an image, or if the simulated device cannot be built here.
    """
    environment = ENVIRONMENT_FORMAT.read(built.measurements)
    if not isinstance(environment, EnvironmentBuilt) or environment.container is not None:
        raise InfrastructureError(
            "there is no prediction of the simulated device",
            why="the environment is in an image; predictions are made in virtual environments only",
        )
    device = {**task.facets["device"], "kind": "sim"}
    device.pop("rehearsed", None)
    simulated = replace(task, facets={**task.facets, "device": device})
    site = JobSite(
        root=settings.root,
        state=folder,
        cache=settings.cache,
        environ=os.environ,
        cell=_enter(settings, device, _runtime(environment, device, folder)),
    )
    outcome = execute(Job(task=simulated, inputs={"environment": built}), site)
    if outcome.state is not State.COMPLETED:
        failure = outcome.failure
        raise InfrastructureError(
            "there is no prediction of the simulated device",
            why=failure.message if failure else outcome.state.value,
        )
    return outcome


def _runtime(environment: EnvironmentBuilt, device: Mapping[str, JsonValue], folder: Path) -> Path:
    """The simulated runtime for the torch_npu of the environment."""
    if environment.runtime:
        return Path(environment.runtime)
    folder.mkdir(parents=True, exist_ok=True)
    runtime = build_runtime(Path(environment.site_packages), folder)
    write_toolkit(runtime, str(device.get("cann") or DEFAULT_CANN))
    return runtime


def _enter(settings: Settings, device: Mapping[str, JsonValue], runtime: Path) -> CellCommand:
    def enter(
        built: Outcome, module: str, args: Sequence[str], *, on_cpu: bool = False
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        requested = read_cell_device({**device, **({"kind": "cpu"} if on_cpu else {})})
        location = replace(environment_location(built), requested_device=requested, runtime=str(runtime))
        return cell_command(location, make_bundle(PACKAGE_ROOT, settings.cache), module, args)

    return enter


def compare(measured: Outcome, predicted: Outcome) -> tuple[Comparison, ...]:
    """Everything that both measured, in order. Checks without figures to compare give nothing."""
    by_check = {"device-sample": _samples, "collectives": _collectives, "loss": _losses}
    compared = by_check.get(measured.check)
    return tuple(compared(measured, predicted)) if compared else ()


def _samples(measured: Outcome, predicted: Outcome) -> Iterator[Comparison]:
    found, expected = SAMPLE_FORMAT.read(measured.measurements), SAMPLE_FORMAT.read(predicted.measurements)
    if not isinstance(found, SampleMeasured) or not isinstance(expected, SampleMeasured):
        yield _ended(measured, type(found) is type(expected))
        return
    constants = {one.constant: one for one in expected.constants}
    for one in found.constants:
        guess = constants.get(one.constant)
        if guess is not None:
            yield Comparison(
                check=measured.check,
                what=f"{one.constant} (the contract allows {one.contract:g})",
                predicted=_constant(guess),
                measured=_constant(one),
                right=one.holds == guess.holds,
            )
    results = {(group.dtype, one.case): one for group in expected.operators for one in group.operators}
    for group in found.operators:
        for operator in group.operators:
            other = results.get((group.dtype, operator.case))
            if other is None or "absent" in (operator.state, other.state):
                continue
            within = [one.state == "measured" and one.budget <= 1 for one in (operator, other)]
            yield Comparison(
                check=measured.check,
                what=f"{operator.case} in {group.dtype}",
                predicted=other.message or f"{other.budget:.3g} of its tolerance",
                measured=operator.message or f"{operator.budget:.3g} of its tolerance",
                right=within[0] == within[1],
            )


def _constant(constant: DeviceConstant) -> str:
    return "not finite" if constant.measured is None else f"{constant.measured:g}"


def _collectives(measured: Outcome, predicted: Outcome) -> Iterator[Comparison]:
    found = COLLECTIVES_FORMAT.read(measured.measurements)
    expected = COLLECTIVES_FORMAT.read(predicted.measurements)
    if not isinstance(found, CollectivesMeasured) or not isinstance(expected, CollectivesMeasured):
        yield _ended(measured, type(found) is type(expected))
        return
    results = {one.name: one.wrong for one in expected.results}
    for one in found.results:
        if one.name in results:
            yield Comparison(
                check=measured.check,
                what=one.name,
                predicted=results[one.name] or "exact",
                measured=one.wrong or "exact",
                right=bool(one.wrong) == bool(results[one.name]),
            )


def _losses(measured: Outcome, predicted: Outcome) -> Iterator[Comparison]:
    found, expected = LOSS_FORMAT.read(measured.measurements), LOSS_FORMAT.read(predicted.measurements)
    if not isinstance(found, LossMeasured) or not isinstance(expected, LossMeasured):
        yield _ended(measured, type(found) is type(expected))
        return
    cases = {one.name: one for one in expected.cases}
    for one in found.cases:
        other = cases.get(one.name)
        if other is not None:
            yield Comparison(
                check=measured.check,
                what=one.name,
                predicted=f"{other.status.value}, {other.budget:.1%} of its tolerance",
                measured=f"{one.status.value}, {one.budget:.1%} of its tolerance",
                right=one.status is other.status,
            )


def _ended(measured: Outcome, right: bool) -> Comparison:
    text = "ended without figures" if right else "ended differently"
    return Comparison(
        check=measured.check, what="the program", predicted="figures", measured=text, right=right
    )


def why_without_prediction(error: HarnessError) -> str:
    """The reason in one line."""
    problem = error.problems[0]
    return f"{problem.what}: {problem.why}" if problem.why else problem.what
