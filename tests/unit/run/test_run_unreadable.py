"""Error messages and names that are not UTF-8 are stored with escapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from run_fakes import make_check, make_task

from harness.check import TaskContext
from harness.errors import InputError
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Measured, Outcome, State
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite


@pytest.fixture
def site(tmp_path: Path) -> JobSite:
    return JobSite(root=tmp_path / "checkout", state=tmp_path / "state", cache=tmp_path / "cache", environ={})


def outcome_of(run: Callable[[TaskContext], Measured], site: JobSite) -> Outcome:
    return execute(Job(task=make_task(make_check("probe", run=run)), inputs={}, run_id="r1"), site)


def raises(error: Exception) -> Callable[[TaskContext], Measured]:
    def run(_ctx: TaskContext) -> Measured:
        raise error

    return run


def log_of(site: JobSite, outcome: Outcome) -> str:
    assert outcome.log is not None
    return site.artifacts.get(outcome.log).read_text()


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise TypeError("nothing can be said of it")


def test_an_error_that_cannot_even_be_told_becomes_an_outcome(site: JobSite) -> None:
    outcome = outcome_of(raises(UnspeakableError()), site)
    assert outcome.state is State.ERROR
    assert outcome.failure is not None
    assert outcome.failure.kind == "UnspeakableError"
    assert "UnspeakableError" in log_of(site, outcome)


@pytest.mark.parametrize(
    "error", [ValueError("no patch a\udcff.py"), InputError("no patch a\udcff.py", fix="a\udcff.py")]
)
def test_a_name_that_is_not_utf_8_in_an_error(site: JobSite, tmp_path: Path, error: Exception) -> None:
    outcome = outcome_of(raises(error), site)
    assert outcome.failure is not None
    assert outcome.failure.message == "no patch a\\udcff.py"
    assert "no patch a\\udcff.py" in log_of(site, outcome)
    with Ledger.open(tmp_path / "ledger") as ledger:
        ledger.record(outcome)


def test_a_name_that_is_not_utf_8_in_what_is_measured_and_logged(site: JobSite, tmp_path: Path) -> None:
    def run(ctx: TaskContext) -> Measured:
        ctx.log("reading a\udcff.py")
        (ctx.workdir / "lock").write_text("")
        measurements = {"ok": True, "a\udcff.py": [("a\udcff.py", 1)]}
        return Measured(measurements=measurements, evidence=Evidence.STATIC, artifacts={"a\udcff": "lock"})

    outcome = outcome_of(run, site)
    assert outcome.state is State.COMPLETED
    assert outcome.measurements == {"ok": True, "a\\udcff.py": [["a\\udcff.py", 1]]}
    assert "reading a\\udcff.py" in log_of(site, outcome)
    with Ledger.open(tmp_path / "ledger") as ledger:
        recorded = ledger.record(outcome)
        assert ledger.get(outcome.key) == recorded
