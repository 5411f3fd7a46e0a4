"""Run test files of an upstream, each in a process of its own, within limits.

    python -m harness.upstream_tests.in_cell.run_files --work files.json --report report.json

Runs inside the cell. torch, and on a device torch_npu, are imported once; then each file gets a forked
process, in which the device is not initialised yet. A test that crashes, hangs or exceeds the memory limit
ends its process. The failure is recorded with this test, and another process goes on with the next test of
the file. A test that exceeds the memory limit while other files may run, runs again alone, with the memory
that the machine has left. The result of a file is written when the file ends, so that an interrupted run
loses only the files that were running. Exit code 0 whatever fails.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cell_program.torch_device import device_facts
from harness.evidence import DeviceFacts, read_device_facts
from harness.serialisation import to_json
from harness.upstream_tests.in_cell import warm_children
from harness.upstream_tests.in_cell.file_results import (
    Ended,
    FileLimits,
    FileResult,
    FilesToRun,
    FileToRun,
    RunReport,
    TestResult,
    files_to_run,
)
from harness.upstream_tests.in_cell.own_network import leave_network, may_leave_network
from harness.upstream_tests.in_cell.process_tree import end_session, memory_left, memory_of_session
from harness.upstream_tests.in_cell.record_plugin import MOST_DETAIL, RecordPlugin

POLL_S = 0.05
#: The memory of a file is looked at every few polls, because it reads /proc of each process.
POLLS_PER_MEMORY = 10
#: After the signal that makes Python print its stack, before the file is killed.
STACK_S = 2.0
#: How long a process may take to end after its last test.
ENDING_S = 30.0
_PARENT_DEATH = 1


@dataclass
class RunningFile:
    """A file and the process that runs it now. record: the events of this process.

    large: tests that exceeded the memory limit and are to run again. alone: the limit of memory when no other
    file runs, 0 before that.
    """

    file: FileToRun
    folder: Path
    started: float
    record: Path
    process: int = 0
    processes: int = 0
    left: list[str] | None = None
    collected: list[str] = field(default_factory=list)
    results: dict[str, TestResult] = field(default_factory=dict)
    uncollected: str = ""
    read: int = 0
    current: str = ""
    since: float = 0.0
    finished: bool = False
    ending: Ended | None = None
    aborted: float = 0.0
    large: list[str] = field(default_factory=list)
    alone: int = 0


class FileRuns:
    """Runs the files of one work list, some at a time."""

    def __init__(self, work: FilesToRun) -> None:
        self.work = work
        self.out = Path(work.out)
        self.running: list[RunningFile] = []
        self.large: list[RunningFile] = []
        self.finished: list[str] = []
        self.polls = 0
        # Files that share the ports of this machine run one after another.
        alone = work.own_network and not may_leave_network()
        self.workers = 1 if alone else work.workers

    def run(self) -> None:
        """Run the files until all have ended, or the time for starting files is over."""
        queue = list(self.work.files)
        deadline = time.monotonic() + self.work.budget_s
        while queue or self.running or self.large:
            if self.large and not self.running:
                self._run_alone(self.large.pop())
            while (
                queue
                and not self.large
                and not any(one.alone for one in self.running)
                and len(self.running) < self.workers
                and time.monotonic() < deadline
            ):
                self.running.append(self._begin(queue.pop(0)))
            if not self.running:
                return
            time.sleep(POLL_S)
            self.polls += 1
            for one in [*self.running]:
                self._advance(one)

    def _begin(self, file: FileToRun) -> RunningFile:
        folder = self.out / f"{file.key}.copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.work.tree, folder, symlinks=True)
        record = self.out / f"{file.key}.events"
        self._log_of(file).unlink(missing_ok=True)
        one = RunningFile(file=file, folder=folder, started=time.monotonic(), record=record)
        self._start_process(one)
        return one

    def _run_alone(self, one: RunningFile) -> None:
        """Run the tests of a file that exceeded the limit; no other file runs now."""
        one.left, one.large, one.started = one.large, [], time.monotonic()
        one.alone = max(self.work.limits.alone_bytes or memory_left(), self.work.limits.memory_bytes)
        self.running.append(one)
        self._start_process(one)

    def _log_of(self, file: FileToRun) -> Path:
        return self.out / f"{file.key}.log"

    def _start_process(self, one: RunningFile) -> None:
        one.record.unlink(missing_ok=True)
        one.read, one.current, one.finished, one.ending, one.aborted = 0, "", False, None, 0.0
        one.since = time.monotonic()
        one.processes += 1
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            _run_in_child(self.work, one, self._log_of(one.file))
        one.process = process

    def _advance(self, one: RunningFile) -> None:
        self._read_events(one)
        ended, status = os.waitpid(one.process, os.WNOHANG)
        if not ended:
            self._apply_limits(one)
            return
        end_session(one.process)
        self._read_events(one)
        self._process_ended(one, status)

    def _read_events(self, one: RunningFile) -> None:
        try:
            with one.record.open("rb") as stream:
                stream.seek(one.read)
                data = stream.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        one.read += len(whole)
        for line in whole.splitlines():
            _take_event(one, json.loads(line))

    def _apply_limits(self, one: RunningFile) -> None:
        now, limits = time.monotonic(), self.work.limits
        if one.aborted:
            if now > one.aborted + STACK_S:
                end_session(one.process)
            return
        if one.finished and not one.current and now - one.since > ENDING_S:
            # All tests have ended, but a thread or a process of theirs has not.
            end_session(one.process)
            return
        # Reading a file can take longer than a test: it imports what the tests need.
        over_test = bool(one.collected) and now - one.since > limits.test_s
        if over_test or now - one.started > limits.file_s:
            one.ending, one.aborted = Ended.HUNG, now
            # Python prints the stack of each thread, which names the line that hangs.
            with contextlib.suppress(OSError):
                os.kill(one.process, signal.SIGABRT)
        elif self.polls % POLLS_PER_MEMORY == 0 and memory_of_session(one.process) > _memory_of(one, limits):
            one.ending = Ended.MEMORY
            end_session(one.process)

    def _process_ended(self, one: RunningFile, status: int) -> None:
        if one.finished and not one.current:
            self._file_ended(one)
            return
        why = _why_ended(one, status, self.work)
        ended = one.ending or Ended.CRASHED
        detail = _tail(self._log_of(one.file))
        left = [
            name for name in one.left or one.collected if name not in one.results and name not in one.large
        ]
        if one.current and ended is Ended.MEMORY and not one.alone:
            one.large.append(one.current)
            left = [name for name in left if name != one.current]
        elif one.current:
            seconds = time.monotonic() - one.since
            one.results[one.current] = TestResult(
                id=one.current, ended=ended, seconds=seconds, message=why, detail=detail
            )
            left = [name for name in left if name != one.current]
        elif not one.collected:
            one.uncollected = one.uncollected or why
            left = []
        over = time.monotonic() - one.started > self.work.limits.file_s
        # Without a test that runs, the process would end at the same place again.
        may_go_on = bool(one.current) and one.processes <= self.work.limits.restarts and not over
        if left and may_go_on:
            one.left = left
            self._start_process(one)
            return
        for name in left:
            one.results[name] = TestResult(
                id=name, ended=Ended.NOT_REACHED, message=f"the file was ended before this test: {why}"
            )
        self._file_ended(one)

    def _file_ended(self, one: RunningFile) -> None:
        self.running.remove(one)
        if one.large:
            self.large.append(one)
            return
        shutil.rmtree(one.folder, ignore_errors=True)
        one.record.unlink(missing_ok=True)
        lost = [name for name in one.collected if name not in one.results]
        for name in lost:
            one.results[name] = TestResult(
                id=name, ended=Ended.NOT_REACHED, message="pytest ended without running this test"
            )
        result = FileResult(
            path=one.file.path,
            tests=tuple(one.results[name] for name in dict.fromkeys([*one.collected, *one.results])),
            seconds=round(time.monotonic() - one.started, 2),
            processes=one.processes,
            uncollected=one.uncollected,
            log=self._log_of(one.file).name,
        )
        target = self.out / f"{one.file.key}.json"
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps(to_json(result)), encoding="utf-8")
        partial.replace(target)
        self.finished.append(one.file.key)
        bad = sum(test.ended not in _GOOD for test in result.tests)
        print(
            f"{one.file.path}: {len(result.tests)} tests, {bad} not passed, {result.seconds:.1f} s",
            flush=True,
        )


_GOOD = {Ended.PASSED, Ended.SKIPPED, Ended.XFAILED}


def _take_event(one: RunningFile, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "collected":
        one.collected = event["ids"]
    elif kind in {"uncollected", "file-skipped"}:
        one.uncollected = f"{'skipped: ' if kind == 'file-skipped' else ''}{event['message']}"
    elif kind == "start":
        one.current, one.since = event["id"], time.monotonic()
    elif kind == "end":
        one.current, one.since = "", time.monotonic()
        one.results[event["id"]] = TestResult(
            id=event["id"],
            ended=Ended(event["ended"]),
            seconds=round(event["seconds"], 3),
            message=event["message"],
            detail=event["detail"],
        )
    elif kind == "finished":
        one.finished, one.since = True, time.monotonic()


def _memory_of(one: RunningFile, limits: FileLimits) -> int:
    return one.alone or limits.memory_bytes


def _why_ended(one: RunningFile, status: int, work: FilesToRun) -> str:
    if one.ending is Ended.MEMORY:
        return f"its processes exceeded the memory limit of {_memory_of(one, work.limits) >> 20} MiB"
    if one.ending is Ended.HUNG:
        over_file = time.monotonic() - one.started > work.limits.file_s
        limit = work.limits.file_s if over_file else work.limits.test_s
        return f"the {'file' if over_file else 'test'} exceeded its time limit of {limit:g} s"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return "its process was killed (SIGKILL), usually by the kernel because memory was exhausted"
        return f"its process was ended by {signal.Signals(number).name}"
    return f"its process ended with exit code {os.WEXITSTATUS(status)} before the test did"


def _tail(log: Path) -> str:
    try:
        data = log.read_bytes()
    except OSError:
        return ""
    return data[-MOST_DETAIL:].decode("utf-8", "replace")


def _run_in_child(work: FilesToRun, one: RunningFile, log: Path) -> None:
    """Run pytest on the file in this forked process, and end the process."""
    code = 70
    try:
        os.setsid()
        # If the supervising process is killed, its files must not go on.
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
        _redirect_output(log)
        if work.own_network:
            leave_network()
        _set_up_process(work, one)
        if work.warm_children:
            warm_children.install()
        import pytest

        plugin = RecordPlugin(
            one.record, only=None if one.left is None else set(one.left), left_out=one.file.left_out
        )
        code = int(pytest.main(_pytest_arguments(work, one), plugins=[plugin]))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - the process must end here, never go on as the supervising one
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect_output(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable(file=2)


def _set_up_process(work: FilesToRun, one: RunningFile) -> None:
    folder = one.folder
    os.environ.update(work.env)
    # Tests start `python`, `torchrun` and `pytest` by name.
    programs = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    cwd = folder / work.cwd
    os.chdir(cwd)
    paths = [str(folder / entry) for entry in work.python_path]
    sys.path[:0] = paths
    later = [work.requirements] if work.requirements else []
    # Some upstreams run their files as programs, which import modules beside them. Last, it hides nothing.
    sys.path += [*later, str((folder / one.file.path).parent)]
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *inherited, *later])
    random.seed(0)


def _pytest_arguments(work: FilesToRun, one: RunningFile) -> list[str]:
    path = str(one.folder / one.file.path)
    # Some upstream modules parse the command line when they are imported.
    sys.argv[:] = [path]
    config = str(one.folder / work.config) if work.config else os.devnull
    return [
        path,
        f"--rootdir={one.folder}",
        f"--config-file={config}",
        *("-p", "no:cacheprovider", "-q", "-rN", "--tb=short", "--color=no"),
    ]


def preload(work: FilesToRun) -> None:
    """Import what every file needs. The device must not be initialised, because processes are forked."""
    device = ("torch_npu",) if work.device == "npu" else ()
    for name in ("pytest", "torch", *device, *work.preload):
        _import_if_possible(name)


def _import_if_possible(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - the files that need it fail with their own error
        print(f"{name} cannot be imported: {error!r}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the files; the exit code is 0 unless the work list cannot be read."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    given = parser.parse_args(arguments)
    work = files_to_run(json.loads(given.work.read_bytes()))
    if work.requirements:
        sys.path.append(work.requirements)
    # Some modules parse the command line when they are imported.
    sys.argv[1:] = []
    preload(work)
    runs = FileRuns(work)
    runs.run()
    report = RunReport(device=_facts_in_child(work, Path(work.out)), finished=tuple(runs.finished))
    given.report.write_text(json.dumps(to_json(report)), encoding="utf-8")
    return 0


def _facts_in_child(work: FilesToRun, out: Path) -> DeviceFacts:
    """The facts about the device, from a forked process: asking for them initialises the device."""
    target = out / "device.json"
    process = os.fork()
    if process == 0:
        code = 1
        try:
            facts = device_facts("cpu" if work.device == "cpu" else "npu:0")
            target.write_text(json.dumps(to_json(facts)), encoding="utf-8")
            code = 0
        except BaseException:  # noqa: BLE001 - see `_run_in_child`
            traceback.print_exc()
        finally:
            os._exit(code)
    os.waitpid(process, 0)
    if not target.is_file():
        return DeviceFacts(device=work.device, available=False)
    return read_device_facts(json.loads(target.read_bytes()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
