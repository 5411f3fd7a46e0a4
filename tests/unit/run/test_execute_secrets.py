"""A task whose programs print and store every secret of the machine, in many forms: nothing of it is stored."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from canaries import ProcessWatch, Search, plain_token, plant
from run_fakes import make_check, make_task

from harness.check import TaskContext
from harness.digest import canonical_json
from harness.errors import InfrastructureError
from harness.ledger.outcome_record import outcome_body
from harness.outcome import Evidence, Measured, Outcome, State
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite

# Prints all variables and all files below HOME as tools do: plain, as JSON, in URLs, as headers, wrapped.
TELLS_ALL = r"""
import base64, gzip, json, os, pathlib, shlex, sys, textwrap, urllib.parse
files = {str(path): path.read_text() for path in pathlib.Path(os.environ["HOME"]).rglob("*") if path.is_file()}
values = [*os.environ.values(), *(line for text in files.values() for line in text.splitlines())]
shown = [json.dumps(dict(os.environ)), repr(files), json.dumps(json.dumps(files))]
for value in values:
    data = value.encode()
    shown += [value, urllib.parse.quote(value, safe=""), shlex.quote(value), data.hex()]
    shown += [base64.b64encode(b"x" * n + data).decode() for n in range(3)]
    shown += ["Authorization: Basic " + base64.b64encode(b"user:" + data).decode()]
    shown += textwrap.wrap(value, 20) + textwrap.wrap(base64.b64encode(data).decode(), 30, initial_indent="  ")
text = "\n".join(shown)
for part in (text[n : n + 997] for n in range(0, len(text), 997)):
    sys.stdout.write(part)
    sys.stdout.flush()
pathlib.Path("kept.txt").write_text(text)
pathlib.Path("sub").mkdir()
pathlib.Path("sub/kept.bin").write_bytes(b"\0" + text.encode())
pathlib.Path("sub/kept.gz").write_bytes(gzip.compress(text.encode()))
print("\nit is done")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSite:
    environ = plant(tmp_path / "home", "index.example")
    monkeypatch.chdir(tmp_path / "home")
    return JobSite(
        root=tmp_path,
        state=tmp_path / "state",
        cache=tmp_path / "cache",
        environ={**environ, "PATH": os.environ["PATH"]},
    )


def told(context: TaskContext) -> str:
    environ = context.site.environ  # type: ignore[attr-defined]
    return context.command([sys.executable, "-c", TELLS_ALL], env=environ, timeout=60).tail


def unmasked(context: TaskContext) -> str:
    told(context)
    return canonical_json(dict(context.site.environ))  # type: ignore[attr-defined]


def completes(context: TaskContext) -> Measured[Mapping[str, object]]:
    text = unmasked(context)
    (context.workdir / "artifact.txt").write_text(text)
    return Measured(
        measurements={"ok": True, "text": text, "by name": {text: [text]}},
        evidence=Evidence.STATIC,
        artifacts={"artifact": "artifact.txt"},
        environment=dict(context.site.environ),  # type: ignore[attr-defined]
    )


def raises(context: TaskContext) -> Measured[Mapping[str, object]]:
    raise ValueError(unmasked(context))


def fails(context: TaskContext) -> Measured[Mapping[str, object]]:
    text = unmasked(context)
    raise InfrastructureError(f"not {text}", why=text, fix=text)


def stores_bytes(context: TaskContext) -> Measured[Mapping[str, object]]:
    told(context)
    return Measured(measurements={"ok": True}, evidence=Evidence.STATIC, artifacts={"archive": "sub/kept.gz"})


CHECKS = {
    completes: State.COMPLETED,
    raises: State.ERROR,
    fails: State.ERROR,
    stores_bytes: State.ERROR,
}


def run(site: JobSite, check: Callable[[TaskContext], Measured[Mapping[str, object]]]) -> Outcome:
    return execute(Job(task=make_task(make_check("tells", run=check))), site)


@pytest.mark.parametrize("check", CHECKS)
def test_no_secret_reaches_an_outcome_or_a_file(
    site: JobSite, check: Callable[[TaskContext], Measured[Mapping[str, object]]]
) -> None:
    outcome = run(site, check)
    assert outcome.state is CHECKS[check]
    search = Search()
    assert search.in_data(outcome_body(outcome).encode()) == set()
    assert search.below(site.state) == {}
    assert outcome.log is not None
    log = site.artifacts.get(outcome.log).read_text()
    assert log.count("***") > 500
    assert "it is done" in log
    # What is no secret stays readable.
    assert "http://***@index.example/named/simple" in log
    if outcome.state is State.ERROR:
        assert (site.work / f"{outcome.key[:16]}-1" / "kept.txt").is_file()


def test_the_watch_sees_the_arguments_of_a_process() -> None:
    wait = "import sys; sys.stdin.read()"
    with (
        ProcessWatch() as watch,
        subprocess.Popen(
            [sys.executable, "-c", wait, plain_token("PIP_PROXY1")], stdin=subprocess.PIPE
        ) as process,
    ):
        deadline = time.monotonic() + 60
        while not watch.found and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert {"PIP_PROXY"} in watch.found.values()


def test_the_search_finds_what_is_there(site: JobSite, tmp_path: Path) -> None:
    found = Search().below(tmp_path)
    assert "home/.netrc" in found
    assert len(found) >= 20
