"""A program in a cell: its exit status, its stacks at the time limit, its memory limit, and its log.

Here the cell is a Python environment of this host. tests/containers/test_containers_tasks.py tests the same
with a container engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_fakes import LeapingClock, make_check, make_task, outcome_of

from harness.check import TaskContext
from harness.devices.cards.card_leases import CardLeases
from harness.outcome import Evidence, Measured, Outcome, State, Tier
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite

REPOSITORY = Path(__file__).parents[3]
HANG = """
import pathlib, time
def stuck_in_a_collective():
    pathlib.Path({mark!r}).touch()
    time.sleep(600)
stuck_in_a_collective()
"""
GREEDY = "import time\nheld = bytearray(300 << 20)\nprint('held', flush=True)\ntime.sleep(600)"

# A run with one task, whose program leaves a temporary folder behind when it is killed.
DRIVER = """
import sys
from pathlib import Path
from run_fakes import make_check, make_task, outcome_of
from harness.outcome import Evidence, Measured, Tier
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite

trainer = '''
import pathlib, tempfile, time
(pathlib.Path(tempfile.mkdtemp(prefix="npm-")) / "session").mkdir()
time.sleep(600)
'''

def check(ctx):
    ctx.in_cell("a.module")
    return Measured(measurements={}, evidence=Evidence.CPU)

root = Path(sys.argv[1])
site = JobSite(root=root, state=root / "killed", cache=root / "cache", environ={"PATH": "/usr/bin:/bin"},
            cell=lambda *_, **__: ([sys.executable, "-c", trainer], {}))
task = make_task(make_check("a", Tier.NUMERICS, run=check, timeout_s=600.0))
execute(Job(task=task, inputs={"environment": outcome_of(make_task(make_check("environment")))}), site)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., Outcome]:
    """Runs the source of a program in a cell; returns the outcome and the text of its log."""

    def go(
        text: str,
        *,
        timeout: float = 60.0,
        environ: dict[str, str] | None = None,
        added: dict[str, str] | None = None,
    ) -> Any:
        built = outcome_of(make_task(make_check("environment")))

        def check(ctx: TaskContext) -> Measured:
            done = ctx.in_cell("a.module")
            return Measured(measurements={"code": done.returncode, "tail": done.tail}, evidence=Evidence.CPU)

        site = JobSite(
            root=tmp_path,
            state=tmp_path / "state",
            cache=tmp_path / "cache",
            environ={"PATH": "/usr/bin:/bin", **(environ or {})},
            cell=lambda *_, **__: ([sys.executable, "-c", text], added or {}),
        )
        task = make_task(make_check("a", Tier.NUMERICS, run=check, timeout_s=timeout))
        outcome = execute(Job(task=task, inputs={"environment": built}), site)
        return outcome, site.artifacts.get(outcome.log).read_text() if outcome.log else ""

    return go


def test_a_hang_says_where_it_is_when_its_time_is_up(runs, tmp_path, monkeypatch):
    LeapingClock(tmp_path / "stuck").install(monkeypatch)
    outcome, log = runs(HANG.format(mark=str(tmp_path / "stuck")), timeout=600.0)
    assert outcome.state is State.TIMEOUT
    assert "stuck_in_a_collective" in log


def test_a_crash_in_a_library_says_where(runs):
    outcome, log = runs("import ctypes\ndef in_an_operator(): ctypes.string_at(0)\nin_an_operator()")
    assert outcome.measurements["code"] == -11
    assert "in_an_operator" in log


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="not run: this kernel does not say what a process holds",
)
def test_a_memory_limit_ends_the_program_and_is_no_failure_of_the_cell(runs):
    outcome, log = runs(GREEDY, environ={"NPU_MATRIX_CELL_MEMORY": "100m"})
    assert outcome.state is State.ERROR
    assert outcome.failure.kind == "InfrastructureError"
    assert "exceeded its memory limit (the program was killed for its memory limit of 0.1 GiB)" in (
        outcome.failure.message
    )
    assert "NPU_MATRIX_CELL_MEMORY" in outcome.failure.fix
    assert "memory limit" in log


def test_within_its_limit_a_program_runs_on(runs):
    outcome, _log = runs("print('fine')", environ={"NPU_MATRIX_CELL_MEMORY": "1g"})
    assert outcome.measurements == {"code": 0, "tail": "fine\n"}


def test_what_programs_on_the_simulated_device_call_permissively_is_stored(runs):
    text = """
import os, pathlib
if "NPU_SIM_REPORT" in os.environ:
    pathlib.Path(os.environ["NPU_SIM_REPORT"]).write_text('{"permissive": ["npu::b", "aten::a"]}')
"""
    simulated, _log = runs(text, added={"NPU_SIM_SOC": "Ascend910B3"})
    assert simulated.environment["permissive"] == {"operators": ["aten::a", "npu::b"], "any": False}
    elsewhere, _log = runs(text)
    assert elsewhere.environment == {}


def test_a_limit_that_is_no_size_is_named(runs):
    outcome, _log = runs("print('fine')", environ={"NPU_MATRIX_CELL_MEMORY": "plenty"})
    assert outcome.state is State.ERROR
    assert "NPU_MATRIX_CELL_MEMORY is 'plenty'" in outcome.failure.message


def test_what_the_kernel_kills_is_no_failure_of_the_cell(runs):
    outcome, _log = runs("import os; os.kill(os.getpid(), 9)")
    assert outcome.state is State.ERROR
    assert outcome.failure.kind == "InfrastructureError"
    assert "a program of the cell was killed" in outcome.failure.message
    assert "dmesg" in outcome.failure.fix


def test_a_test_that_fails_is_a_measurement(runs):
    outcome, _log = runs("raise SystemExit(1)")
    assert (outcome.state, outcome.measurements["code"]) == (State.COMPLETED, 1)


def test_a_ray_of_the_cell_has_a_folder_of_its_own_that_is_gone_afterwards(runs):
    text = "import os; print(os.environ['RAY_TMPDIR'], os.listdir(os.environ['RAY_TMPDIR']))"
    first, second = (runs(text)[0].measurements["tail"] for _ in range(2))
    assert first != second
    folder, _, found = first.strip().rpartition(" ")
    assert found == "[]"
    # The path of a socket has at most 107 characters, of which Ray adds about 60.
    assert len(str(Path(folder).relative_to(tempfile.gettempdir()))) < 40
    assert not Path(folder).exists()


def test_what_programs_of_the_cell_leave_among_temporary_files_is_gone_afterwards(runs):
    text = "import tempfile; print(tempfile.mkdtemp(prefix='left-'))"
    folder = Path(runs(text)[0].measurements["tail"].strip())
    assert folder.name.startswith("left-")
    assert not folder.exists()
    assert not folder.parent.exists()
    # If the path of this folder is longer than 40 characters, the trainer uses another one; `/tmp` is usual.
    assert len(str(folder.parent.relative_to(tempfile.gettempdir()))) < 35


def test_code_of_models_that_other_programs_left_is_not_imported(runs):
    text = "import os; print(os.environ['HF_MODULES_CACHE'])"
    folder = Path(runs(text, environ={"HF_MODULES_CACHE": "/else"})[0].measurements["tail"].strip())
    assert folder.is_relative_to(tempfile.gettempdir())
    assert not folder.parent.exists()


def test_cards_are_leased_where_all_of_the_host_look(runs):
    text = "import os; print(os.environ['NPU_MATRIX_LEASES'])"
    said = runs(text)[0].measurements["tail"].strip()
    assert said == str(CardLeases.of_host({}).folder)
    assert runs(text, environ={"NPU_MATRIX_LEASES": "/else"})[0].measurements["tail"].strip() == "/else"


def test_the_folder_a_killed_run_left_goes_with_the_next_task(runs, tmp_path, monkeypatch):
    """The driver of a trainer is killed with SIGKILL while the trainer runs, so that it cannot clean up."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(Path(__file__).parent)},
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    # A folder that the trainer creates, with a file in it, as verl does.
    made = "npmx-*/t/npm-*/session"
    while not (left := list((tmp_path / "tmp").glob(made))):
        assert driver.poll() is None
        time.sleep(0.05)
    runs("print('fine')")
    assert left[0].is_dir()
    driver.kill()
    driver.wait()
    runs("print('fine')")
    assert not list((tmp_path / "tmp").iterdir())


def test_colours_and_secrets_stay_out_of_log_and_tail(runs):
    text = "print('\\x1b[31mred\\x1b[0m http://user:pw@mirror.example/simple s3cr3t-value')"
    outcome, log = runs(text, environ={"MIRROR_TOKEN": "s3cr3t-value"})
    for shown in (log, outcome.measurements["tail"]):
        assert "red http://***@mirror.example/simple ***" in shown
        assert "\x1b" not in shown
