"""What the checks of upstreams' test suites measure: how every test of every suite ended."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from harness.evidence import DeviceFacts
from harness.measurements import measurement_format
from harness.upstream_tests.in_cell.file_results import Ended

#: Ends that are no failure.
GOOD = frozenset({Ended.PASSED, Ended.SKIPPED, Ended.XFAILED, Ended.XPASSED})


class FailureClass(str, enum.Enum):
    """Why a test failed, as far as its message tells.

    `NOT_SIMULATED`: an operator or call that the simulated device lacks. `WRONG`: a comparison of values
    failed. `ENVIRONMENT`: the test needs a package, file, network or tool that the cell does not have.
    `REFUSED`: the device or torch_npu refused a call. `ERROR`: any other exception.
    The classes `NOT_SIMULATABLE` and `UPSTREAM` (the test itself is wrong) are given by people only.
    """

    NOT_SIMULATED = "not-simulated"
    NOT_SIMULATABLE = "not-simulatable"
    WRONG = "wrong"
    ENVIRONMENT = "environment"
    REFUSED = "refused"
    CRASH = "crash"
    HANG = "hang"
    MEMORY = "memory"
    NOT_REACHED = "not-reached"
    COLLECTION = "collection"
    ERROR = "error"
    UPSTREAM = "upstream"


@dataclass(frozen=True, kw_only=True)
class MeasuredTest:
    """One test. name: its pytest id without the path of the file. kind, message: why it failed, or "".

    disabled: what the upstream's own list says of the test, "" if it is not on it.
    """

    name: str
    ended: Ended
    seconds: float = 0.0
    kind: FailureClass | None = None
    message: str = ""
    disabled: str = ""


@dataclass(frozen=True, kw_only=True)
class MeasuredFile:
    """One test file. uncollected: why pytest could not read it, or "". reused: it was not run again."""

    path: str
    tests: tuple[MeasuredTest, ...]
    seconds: float = 0.0
    processes: int = 1
    uncollected: str = ""
    kind: FailureClass | None = None
    reused: bool = False


@dataclass(frozen=True, kw_only=True)
class Tag:
    """A tag of the upstream, and the commit that it named."""

    repository: str
    name: str
    commit: str


@dataclass(frozen=True, kw_only=True)
class MeasuredSuite:
    """One suite. commit: of the tests; rule: how it was found; exact: whether it is the cell's own revision.

    not_run, fix: why the suite was not run, and what to do. left_out: tests that the suite does not run, with
    the reasons.
    """

    name: str
    commit: str = ""
    rule: str = ""
    exact: bool = True
    tag: Tag | None = None
    files: tuple[MeasuredFile, ...] = ()
    left_out: tuple[str, ...] = ()
    not_run: str = ""
    fix: str = ""
    device: DeviceFacts | None = None

    def ids(self) -> Iterator[tuple[str, MeasuredTest]]:
        """The full id of each test, with the test."""
        for file in self.files:
            for test in file.tests:
                yield f"{file.path}::{test.name}", test


@dataclass(frozen=True, kw_only=True)
class SuitesMeasured:
    """All suites of a cell."""

    suites: tuple[MeasuredSuite, ...]


SUITES_FORMAT = measurement_format(SuitesMeasured, version=1)
