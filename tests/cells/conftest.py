"""Tests in the cells that the main job built. They need its ledger and environments, and take minutes.

`nox -s cells` runs them after `nox -s npu_e2e`. Tests whose cell is not built are skipped; in CI they fail.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import harness
from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.cell_program.built_environment import CellDevice, environment_location
from harness.check import Completed
from harness.ledger.store import Ledger
from harness.outcome import Outcome
from harness.plan.tasks.task import Task
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite
from harness.settings import Settings, load_settings
from harness.workspace.planning.open_plan import open_plan

REPOSITORY = Path(__file__).parents[2]
Faults = Sequence[Mapping[str, Any]]
ENGINE, EXPERTS = "0.18.0", "0.23.0"
BUILD_ENGINE = {
    ENGINE: "`npu-matrix --profile full run --only verl-0-7-1-sim-4b15a92bd487 --check environment`",
    EXPERTS: "`npu-matrix --profile full run --only verl-0-9-1-sim-c3585b007787 --check environment`",
}


@dataclass(frozen=True, kw_only=True)
class BuiltCell:
    """A simulated cell with its environment, and its tasks by check."""

    axes: Mapping[str, str]
    tasks: Mapping[str, Task]
    environment: Outcome
    settings: Settings

    @property
    def verl(self) -> str:
        return self.axes["verl"]

    def command(
        self, module: str, *args: str, faults: Faults = (), on_cpu: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        bundle = make_bundle(Path(harness.__file__).parent, self.settings.cache)
        location = environment_location(self.environment)
        if on_cpu:
            location = replace(location, requested_device=CellDevice(kind="cpu"))
        return cell_command(location, bundle, module, args, faults)

    def run(
        self,
        folder: Path,
        module: str,
        *args: str,
        faults: Faults = (),
        python_path: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a module in the cell, in `folder`. The modules in `python_path` hide those of the cell."""
        argv, variables = self.command(module, *args, faults=faults)
        variables["PYTHONPATH"] = os.pathsep.join([*map(str, python_path), variables["PYTHONPATH"]])
        done = subprocess.run(
            argv,
            env={**os.environ, **variables, **(env or {})},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return Completed(argv=tuple(argv), returncode=0, tail=done.stdout, seconds=0.0)

    def execute(
        self, check: str, folder: Path, faults: Faults = (), python_path: Sequence[Path] = ()
    ) -> Outcome:
        """Run the task of `check` with these faults of the device; its state folder is private to the test.
        The modules in `python_path` hide those of the cell."""

        def enter(
            _outcome: Outcome, module: str, args: Sequence[str], *, on_cpu: bool = False
        ) -> tuple[list[str], dict[str, str]]:
            argv, variables = self.command(module, *args, faults=faults, on_cpu=on_cpu)
            variables["PYTHONPATH"] = os.pathsep.join([*map(str, python_path), variables["PYTHONPATH"]])
            return argv, variables

        site = JobSite(
            root=REPOSITORY, state=folder, cache=self.settings.cache, environ=os.environ, cell=enter
        )
        return execute(Job(task=self.tasks[check], inputs={"environment": self.environment}), site)


def not_built(what: str) -> NoReturn:
    """Fail in CI, where the main job has run; skip the test elsewhere."""
    message = f"{what} built here: run `nox -s npu_e2e` first"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def built_in(settings: Settings) -> list[BuiltCell]:
    """The simulated cells of a profile whose environments are built."""
    if not (settings.path("state") / "ledger.sqlite3").is_file():
        return []
    plan = open_plan(settings).plan
    cells = []
    with Ledger.open(settings.path("state")) as ledger:
        for cell in plan.cells:
            keys = {
                entry.check: entry.key for entry in plan.entries if entry.cell_id == cell.id and entry.key
            }
            outcome = ledger.get(keys["environment"]) if cell.device == "sim" else None
            if outcome is None or not outcome.measurements.get("built"):
                continue
            if plan.tasks[outcome.key].check.outdated(outcome):
                continue
            cells.append(
                BuiltCell(
                    axes=cell.axes,
                    tasks={check: plan.tasks[key] for check, key in keys.items()},
                    environment=outcome,
                    settings=settings,
                )
            )
    return cells


@pytest.fixture(scope="session")
def built_cells() -> list[BuiltCell]:
    cells = built_in(load_settings({}, os.environ, REPOSITORY))
    if not cells:
        not_built("no cells are")
    return cells


@pytest.fixture(scope="session")
def engine_cells() -> list[BuiltCell]:
    """The cells with vllm-ascend whose environments are built. The main job builds none of them."""
    cells = built_in(load_settings({"profile": "full"}, os.environ, REPOSITORY))
    return [cell for cell in cells if cell.axes.get("vllm_ascend")]


def with_engine(cells: list[BuiltCell], version: str) -> BuiltCell:
    """The cell with this vllm-ascend. The test is skipped if it is not built."""
    found = next((cell for cell in cells if cell.axes["vllm_ascend"] == version), None)
    if found is None:
        pytest.skip(f"no cell with vllm-ascend {version} is built here: {BUILD_ENGINE[version]} builds it")
    return found


@pytest.fixture(scope="session")
def engine_cell(engine_cells: list[BuiltCell]) -> BuiltCell:
    """The cell with vllm-ascend that CI builds."""
    return with_engine(engine_cells, ENGINE)


@pytest.fixture(scope="session")
def experts_cell(engine_cells: list[BuiltCell]) -> BuiltCell:
    """A cell that computes MoE models correctly, also gpt-oss, which 0.18.0 computes wrongly."""
    return with_engine(engine_cells, EXPERTS)


@pytest.fixture(scope="session")
def twin_cells() -> list[BuiltCell]:
    """The cells of the stacks' own verl on the simulated device. The main job in CI builds none of them."""
    return built_in(load_settings({"profile": "twins"}, os.environ, REPOSITORY))


@pytest.fixture(params=["0.6.1", "0.9.1"])
def cell(request: pytest.FixtureRequest, built_cells: list[BuiltCell]) -> BuiltCell:
    found = next((cell for cell in built_cells if cell.verl == request.param), None)
    if found is None:
        not_built(f"no cell of verl {request.param} is")
    return found
