"""Tasks whose programs run in containers; tests/unit/run/test_run_in_cell.py tests virtual environments."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, base_name

from harness.builds.engines.container_command import contained_command
from harness.builds.engines.image_build import find_base_image
from harness.cell_program.built_environment import CellContainer
from harness.check import Check, TaskContext
from harness.outcome import Evidence, Judgement, Measured, Outcome, State, Status, Tier
from harness.plan.tasks.task import Task
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite

HANG = "import time\ndef stuck_in_a_collective(): time.sleep(600)\nstuck_in_a_collective()"
Run = Callable[..., tuple[Outcome, str, JobSite]]


def judge(_measurements: Any, _params: Any) -> Judgement:
    return Judgement(status=Status.PASS)


def task(name: str, run: Any, timeout: float) -> Task:
    check = Check(
        name=name,
        run=run,
        judge=judge,
        tier=Tier.NUMERICS,
        question="?",
        facets=(),
        timeout_s=timeout,
    )
    return Task(key=name, check=check, facets={}, facet_digests={}, code_digest="c", needs=(), expected_s=1.0)


@pytest.fixture
def runs(engine: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run a Python program in a container, like a check runs a module in its cell."""
    image = find_base_image(engine, base_name(engine), "x86_64").id
    (tmp_path / "bytecode").mkdir()
    if engine.name == "podman":
        reach = request.getfixturevalue("podman_environ")
    else:
        reach = {"DOCKER_HOST": request.getfixturevalue("docker_host")}

    def go(text: str, *, timeout: float = 120.0, more: dict[str, str] | None = None) -> Any:
        environ = {**os.environ, **reach, "PYTHONPATH": str(REPOSITORY), **(more or {})}

        def cell(*_: Any, **__: Any) -> tuple[list[str], dict[str, str]]:
            container = CellContainer(
                engine=engine.name, image=image, cell="a-cell", bytecode=str(tmp_path / "bytecode")
            )
            return contained_command(
                container, ["python3", "-c", text], {}, needed=(), has_npu=False, environ=environ
            )

        def run(context: TaskContext) -> Measured:
            done = context.in_cell("a.module")
            files = {"out.txt": "out.txt"} if (context.workdir / "out.txt").exists() else {}
            return Measured(
                measurements={"code": done.returncode, "tail": done.tail},
                evidence=Evidence.CPU,
                artifacts=files,
            )

        site = JobSite(
            root=REPOSITORY, state=tmp_path / "state", cache=tmp_path / "cache", environ=environ, cell=cell
        )
        built = execute(
            Job(task=task("environment", lambda _: Measured(measurements={}, evidence=Evidence.CPU), 60)),
            site,
        )
        outcome = execute(Job(task=task("a", run, timeout), inputs={"environment": built}), site)
        assert not [thing for thing in engine.resources() if thing.kind == "container"]
        return outcome, site.artifacts.get(outcome.log).read_text() if outcome.log else "", site

    return go


def test_an_artifact_comes_out_and_a_failing_test_is_a_measurement(runs: Run) -> None:
    outcome, log, site = runs("open('out.txt', 'w').write('made inside'); print('said'); raise SystemExit(1)")
    assert (outcome.state, outcome.measurements["code"]) == (State.COMPLETED, 1), log
    stored = outcome.artifact("out.txt")
    assert stored is not None
    assert site.artifacts.get(stored).read_text() == "made inside"
    assert "said" in log


def test_a_hang_says_where_it_is_when_its_time_is_up(runs: Run) -> None:
    outcome, log, _ = runs(HANG, timeout=20.0)
    assert outcome.state is State.TIMEOUT
    assert "stuck_in_a_collective" in log


def test_a_memory_limit_ends_the_program_and_is_no_failure_of_the_cell(runs: Run) -> None:
    outcome, log, _ = runs("bytearray(1 << 30)", more={"NPU_MATRIX_CELL_MEMORY": "64m"})
    assert outcome.state is State.ERROR, log
    assert outcome.failure is not None
    assert outcome.failure.kind == "InfrastructureError"
    assert "exceeded its memory limit" in outcome.failure.message
    assert "NPU_MATRIX_CELL_MEMORY" in outcome.failure.fix


def test_shared_memory_is_as_large_as_was_asked_for(runs: Run) -> None:
    text = "import os; s = os.statvfs('/dev/shm'); print('shm', s.f_blocks * s.f_frsize)"
    assert "shm 67108864" in runs(text, more={"NPU_MATRIX_CELL_SHM": "64m"})[1]


def test_colours_and_secrets_stay_out_of_the_log(runs: Run) -> None:
    text = "print('\\x1b[31mred\\x1b[0m http://user:pw@mirror.example/simple s3cr3t-value')"
    outcome, log, _ = runs(text, more={"MIRROR_TOKEN": "s3cr3t-value"})
    assert "red http://***@mirror.example/simple ***" in log
    assert "s3cr3t-value" not in log
    assert "\x1b" not in log
    assert "s3cr3t-value" not in outcome.measurements["tail"]


def test_a_flood_is_cut_and_its_end_is_there(runs: Run, engine: Any) -> None:
    # Podman passes on a tenth of the output per second that Docker does, so the test prints less.
    lines = 20_000 if engine.name == "podman" else 250_000
    text = f"import sys\nfor n in range({lines}): sys.stdout.write('noise ' * 20 + '\\n')\nprint('the end')"
    outcome, log, site = runs(text)
    assert outcome.state is State.COMPLETED
    assert "the end" in log.splitlines()[-1]
    assert outcome.log is not None
    whole = site.artifacts.get(outcome.log)
    assert whole.stat().st_size < 24 << 20
    cut = b"bytes of output are left out here" in whole.read_bytes()
    assert cut == (engine.name == "docker")
