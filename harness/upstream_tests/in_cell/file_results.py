"""The test files that a program of a cell is to run, and what it writes about each of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.evidence import DeviceFacts


class Ended(str, enum.Enum):
    """How a test ended.

    `XFAILED`: the upstream itself expects that it fails. `XPASSED`: the upstream expects that, and it passed.
    `CRASHED`: its process ended before the test did. `MEMORY`: its processes exceeded the memory limit.
    `HUNG`: it exceeded the time limit. `NOT_REACHED`: the limits of its file ended before it was started.
    """

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    CRASHED = "crashed"
    MEMORY = "memory"
    HUNG = "hung"
    NOT_REACHED = "not-reached"


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """One test of a file. id: its pytest id, with the path of the file in the upstream's repository.

    message: the exception in one line, or why it was skipped; "" if it passed. detail: the end of its
    traceback, or of the output of a process that ended too early.
    """

    __test__ = False

    id: str
    ended: Ended
    seconds: float = 0.0
    message: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """One test file. path: in the upstream's repository. processes: how many it took.

    uncollected: why pytest could not read the file, or "". log: the name of the file with its output.
    """

    path: str
    tests: tuple[TestResult, ...]
    seconds: float
    processes: int = 1
    uncollected: str = ""
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class FileToRun:
    """A test file. path: in the upstream's repository. key: names its result and its log in the folder `out`.

    left_out: ids of tests that are not run, relative to the file.
    """

    path: str
    key: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileLimits:
    """Limits in seconds for a test and for a file, in bytes for the processes of a file together.

    alone_bytes: the limit for a test that runs alone because it exceeded `memory_bytes`; 0: what the machine
    has left. restarts: how often a file goes on after a test that ended its process.
    """

    test_s: float = 120.0
    file_s: float = 900.0
    memory_bytes: int = 6 << 30
    alone_bytes: int = 0
    restarts: int = 20


@dataclass(frozen=True, kw_only=True)
class FilesToRun:
    """What `run_files` is given, as JSON.

    tree: the folder with the upstream's files, which are not changed: each file runs on a copy. cwd: the
    folder, relative to the tree, in which pytest is started. python_path: relative to the tree. requirements:
    a folder with packages that only the tests need, or "". config: pytest's configuration file, relative to
    the tree, or "". preload: modules that all files import. device: "cpu" or "npu". budget_s: no file is
    started after this time. warm_children: whether processes that tests start by `spawn` are forked from one
    that has imported `preload`, see `warm_children.py`. own_network: whether each file gets a network of its
    own; where that is not allowed, the files run one after another.
    """

    tree: str
    out: str
    files: tuple[FileToRun, ...]
    cwd: str = ""
    python_path: tuple[str, ...] = ()
    requirements: str = ""
    config: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    device: str = "npu"
    workers: int = 1
    budget_s: float = 300.0
    limits: FileLimits = FileLimits()
    warm_children: bool = False
    own_network: bool = False


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What `run_files` writes at its end: the device on which the files ran, and the files that ended."""

    device: DeviceFacts
    finished: tuple[str, ...]


def files_to_run(stored: Mapping[str, Any]) -> FilesToRun:
    """The work list from its JSON, without pydantic, which cells lack."""
    files = tuple(
        FileToRun(path=one["path"], key=one["key"], left_out=tuple(one["left_out"]))
        for one in stored["files"]
    )
    lists = {name: tuple(stored[name]) for name in ("python_path", "preload")}
    return FilesToRun(**{**stored, **lists, "files": files, "limits": FileLimits(**stored["limits"])})
