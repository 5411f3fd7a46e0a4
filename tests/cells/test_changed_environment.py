"""A real environment is built, attacked and used. It has a cache of its own, because other tests use the others."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from altered_files import ALTERED, OF_THE_HOST
from conftest import REPOSITORY, BuiltCell, not_built

from harness.builds.cell.cell_command import cell_launcher
from harness.cell_program.built_environment import EnvironmentBuilt
from harness.check import TaskContext
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Measured, Outcome, State
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite

CORE = "verl/trainer/ppo/core_algos.py"


@pytest.fixture(scope="module")
def site(built_cells: list[BuiltCell], tmp_path_factory: pytest.TempPathFactory) -> JobSite:
    folder = tmp_path_factory.mktemp("site")
    state = built_cells[0].settings.path("state")
    cache = folder / "cache"
    site = JobSite(root=REPOSITORY, state=folder, cache=cache, environ=os.environ, cell=cell_launcher(cache))
    (folder / "artifacts").symlink_to(state / "artifacts")
    return site


@pytest.fixture(scope="module")
def build(built_cells: list[BuiltCell]) -> Job:
    """The job that builds the environment of a cell whose verl is patched."""
    cell = built_cells[0]
    task = cell.tasks["environment"]
    with Ledger.open(cell.settings.path("state")) as ledger:
        inputs = {name: ledger.get(cell.tasks[name].key) for name in task.check.needs}
    found = {name: outcome for name, outcome in inputs.items() if outcome is not None}
    if len(found) < len(inputs):
        not_built("no locked cell is")
    return Job(task=task, inputs=found)


@pytest.fixture(scope="module")
def earlier() -> list[Outcome]:
    """The outcomes of the builds so far. A build verifies and probes the environment, which takes long."""
    return []


@pytest.fixture
def environment(site: JobSite, build: Job, earlier: list[Outcome]) -> Outcome:
    """An environment without changes: the one of the test before, if it is unchanged."""
    if not earlier or build.task.check.outdated(earlier[-1]):
        outcome = execute(build, site)
        assert outcome.state is State.COMPLETED, outcome.failure
        earlier.append(outcome)
    return earlier[-1]


def built(outcome: Outcome, build: Job) -> EnvironmentBuilt:
    measured = build.task.check.read(outcome)
    assert isinstance(measured, EnvironmentBuilt), measured
    return measured


def altered(outcome: Outcome, build: Job) -> str:
    check = build.task.check
    assert check.altered is not None
    return check.altered(check.read(outcome), outcome)


def test_an_edit_of_the_patched_verl_is_found_and_built_again(
    site: JobSite, build: Job, environment: Outcome, earlier: list[Outcome]
) -> None:
    assert (altered(environment, build), build.task.check.outdated(environment)) == ("", "")
    target = Path(built(environment, build).site_packages) / CORE
    times, content = target.stat(), target.read_bytes()
    target.write_bytes(content.replace(b"return", b"Return", 1))
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert CORE in altered(environment, build)
    again = execute(build, site)
    assert not built(again, build).reused
    assert target.read_bytes() == content
    assert altered(again, build) == ""
    earlier.append(again)


@pytest.mark.parametrize("name", [name for name in ALTERED if name not in OF_THE_HOST])
def test_every_kind_of_altered_file_is_found(build: Job, environment: Outcome, name: str) -> None:
    with ALTERED[name].made(built(environment, build)) as path:
        assert path.name in altered(environment, build)
    assert altered(environment, build) == ""


def test_a_task_that_edits_verl_while_it_runs_has_no_outcome(
    site: JobSite, build: Job, environment: Outcome, built_cells: list[BuiltCell]
) -> None:
    target = Path(built(environment, build).site_packages) / CORE

    def run(ctx: TaskContext) -> Measured:
        ctx.in_cell("harness.fixtures.environment_probe", "--help")
        content = target.read_bytes()
        target.write_bytes(content + b"\n")
        target.write_bytes(content)
        return Measured(measurements={}, evidence=Evidence.CPU)

    loss = built_cells[0].tasks["loss"]
    check = replace(loss.check, run=run, measurements=None)
    outcome = execute(Job(task=replace(loss, check=check), inputs={"environment": environment}), site)
    assert outcome.state is State.ERROR
    assert CORE in (outcome.failure.message if outcome.failure else "")


def test_a_real_task_leaves_its_environment_unchanged(
    site: JobSite, environment: Outcome, built_cells: list[BuiltCell]
) -> None:
    outcome = execute(Job(task=built_cells[0].tasks["loss"], inputs={"environment": environment}), site)
    assert outcome.state is State.COMPLETED, outcome.failure
