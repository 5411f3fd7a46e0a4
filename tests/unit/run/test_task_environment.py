"""Tasks that change the environment they run in, or that find it changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from environments import environment_built
from run_fakes import make_check, make_task, outcome_of

from harness.builds.cell.environment_files import store_manifest
from harness.builds.installed.file_manifest import WatchedFolder, classify_changes, make_manifest, read_states
from harness.builds.installed.found_python import read_found
from harness.cell_program.built_environment import ENVIRONMENT_FORMAT
from harness.check import TaskContext
from harness.errors import InfrastructureError
from harness.outcome import Evidence, Measured, Outcome, State, Tier
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite
from harness.run.jobs.task_context import TaskTimeoutError

ENVIRONMENT = make_task(make_check("environment", Tier.BUILD))


@pytest.fixture
def site(tmp_path: Path) -> JobSite:
    return JobSite(root=tmp_path, state=tmp_path / "state", cache=tmp_path / "cache", environ={})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a package in a built environment."""
    package = tmp_path / "cells/c/venv/verl"
    package.mkdir(parents=True)
    (package / "core.py").write_text("ANSWER = 1\n")
    return package


@pytest.fixture
def environment(folder: Path) -> Outcome:
    """The outcome of the check `environment`."""
    prefix = folder.parent
    files = store_manifest(make_manifest([WatchedFolder(path=str(prefix))]), prefix.parent)
    built = environment_built(prefix=str(prefix), runtime="", files=files)
    return outcome_of(ENVIRONMENT, measurements=ENVIRONMENT_FORMAT.write(built))


def job(run: Callable[[TaskContext], Measured], environment: Outcome) -> Job:
    check = make_check("loss", Tier.NUMERICS, run=run, needs=("environment",))
    return Job(task=make_task(check, needs=[ENVIRONMENT]), inputs={"environment": environment})


def passing(act: Callable[[], object]) -> Callable[[TaskContext], Measured]:
    def run(_ctx: TaskContext) -> Measured:
        act()
        return Measured(measurements={"ok": True}, evidence=Evidence.CPU)

    return run


def edit_and_restore(folder: Path) -> None:
    """The content and the time of the file are the same before and after."""
    target = folder / "core.py"
    times, text = target.stat(), target.read_text()
    target.write_text("ANSWER = 7\n")
    target.write_text(text)
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def add_and_remove(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("")
    (folder / "sitecustomize.py").unlink()


WRITES: tuple[Callable[[Path], object], ...] = (
    lambda folder: (folder / "core.py").write_text("ANSWER = 7\n"),
    lambda folder: (folder / "new.pth").write_text("import os\n"),
    lambda folder: (folder / "core.py").unlink(),
    lambda folder: (folder / "core.py").chmod(0o777),
    edit_and_restore,
    add_and_remove,
)


def test_a_task_that_only_reads_its_environment_has_an_outcome(
    site: JobSite, folder: Path, environment: Outcome
) -> None:
    outcome = execute(job(passing((folder / "core.py").read_text), environment), site)
    assert outcome.state is State.COMPLETED


@pytest.mark.parametrize("write", WRITES)
def test_a_task_that_writes_to_its_environment_has_no_outcome(
    site: JobSite, folder: Path, environment: Outcome, write: Callable[[Path], object]
) -> None:
    outcome = execute(job(passing(lambda: write(folder)), environment), site)
    assert outcome.state is State.ERROR
    assert outcome.measurements == {}
    assert outcome.failure is not None
    assert outcome.failure.kind == InfrastructureError.__name__
    assert "the environment changed while the task ran" in outcome.failure.message
    assert str(folder) in outcome.failure.message


def test_a_task_that_fails_or_hangs_after_it_wrote_has_no_outcome_of_its_own(
    site: JobSite, folder: Path, environment: Outcome
) -> None:
    def run(_ctx: TaskContext) -> Measured:
        (folder / "core.py").write_text("ANSWER = 7\n")
        raise TaskTimeoutError

    outcome = execute(job(run, environment), site)
    assert outcome.state is State.ERROR
    assert "core.py" in (outcome.failure.message if outcome.failure else "")


def test_a_task_does_not_start_in_an_environment_that_has_changed(
    site: JobSite, folder: Path, environment: Outcome
) -> None:
    (folder / "core.py").write_text("ANSWER = 7\n")
    started: list[str] = []
    outcome = execute(job(passing(lambda: started.append("it")), environment), site)
    assert outcome.state is State.ERROR
    assert "has changed since it was built" in (outcome.failure.message if outcome.failure else "")
    assert not started


def test_of_two_tasks_at_the_same_time_neither_has_an_outcome(
    site: JobSite, folder: Path, environment: Outcome
) -> None:
    together = Barrier(2)

    def writes() -> None:
        together.wait(30)
        (folder / "core.py").write_text("ANSWER = 7\n")
        together.wait(30)

    def reads() -> None:
        together.wait(30)
        together.wait(30)

    other = make_task(make_check("actor", Tier.NUMERICS, run=passing(reads)), needs=[ENVIRONMENT])
    jobs = (job(passing(writes), environment), Job(task=other, inputs={"environment": environment}))
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda one: execute(one, site), jobs))
    assert [outcome.state for outcome in outcomes] == [State.ERROR, State.ERROR]


def test_a_task_whose_environment_was_built_again_has_no_outcome(
    site: JobSite, folder: Path, environment: Outcome
) -> None:
    def build_again() -> None:
        home = folder.parents[1]
        home.rename(home.with_suffix(".changed"))
        folder.mkdir(parents=True)
        (folder / "core.py").write_text("ANSWER = 1\n")

    outcome = execute(job(passing(build_again), environment), site)
    assert "removed or built again" in (outcome.failure.message if outcome.failure else "")


@pytest.fixture
def found(tmp_path: Path) -> tuple[Path, Outcome]:
    """A file in an environment that somebody made, and the outcome of `environment` with the engine `found`."""
    prefix = tmp_path / "theirs"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    read = read_found(str(prefix / "bin" / "python"))
    core = Path(read.site_packages) / "core.py"
    core.write_text("ANSWER = 1\n")
    read = read_found(read.python)
    built = replace(
        environment_built(prefix=str(prefix), runtime="", files=None),
        python=read.python,
        digest=read.identity,
        differences=(),
        deviations=read.deviations,
    )
    return core, outcome_of(ENVIRONMENT, measurements=ENVIRONMENT_FORMAT.write(built))


def test_a_task_does_not_start_in_a_found_environment_that_was_edited(
    site: JobSite, found: tuple[Path, Outcome]
) -> None:
    core, environment = found
    started: list[str] = []
    assert execute(job(passing(lambda: started.append("it")), environment), site).state is State.COMPLETED
    core.write_text("ANSWER = 7\n")
    outcome = execute(job(passing(lambda: started.append("again")), environment), site)
    assert started == ["it"]
    assert outcome.failure is not None
    assert str(core) in outcome.failure.message
    assert "run again" in outcome.failure.fix


def test_an_edit_of_a_found_environment_while_a_task_runs_is_told(
    site: JobSite, found: tuple[Path, Outcome]
) -> None:
    core, environment = found
    outcome = execute(job(passing(lambda: core.write_text("ANSWER = 7\n")), environment), site)
    assert outcome.state is State.ERROR
    assert outcome.failure is not None
    assert "changed while the task ran" in outcome.failure.message
    assert str(core) in outcome.failure.message


def test_what_others_store_next_to_the_standard_library_does_not_matter(tmp_path: Path) -> None:
    package = tmp_path / "json"
    (package / "__pycache__").mkdir(parents=True)
    (tmp_path / "xml").mkdir()
    (package / "decoder.py").write_text("")
    (package / "__pycache__/decoder.pyc").write_text("")
    folders = (
        WatchedFolder(path=str(tmp_path), without=("__pycache__", "site-packages")),
        WatchedFolder(path=str(tmp_path), only=("json/__pycache__/decoder.pyc", "python311.zip")),
    )
    before = read_states(folders)
    (tmp_path / "xml/__pycache__").mkdir()
    (package / "__pycache__/encoder.pyc").write_text("")
    (tmp_path / "site-packages").mkdir()
    assert read_states(folders) == before
    manifest = make_manifest(folders)
    (package / "__pycache__/decoder.pyc").write_text("forged")
    for name in ("python311.zip", "os.py"):
        (tmp_path / name).write_text("forged")
    changes = classify_changes(manifest, read_states(folders))
    assert [Path(path).name for path in (*changes.edited, *changes.added)] == [
        "decoder.pyc",
        "os.py",
        "python311.zip",
    ]
