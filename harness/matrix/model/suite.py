"""The test suites of upstreams that the check `upstream-tests` runs: the section `suites` of matrix.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import Location
from harness.matrix.model.cell import Cell
from harness.matrix.model.constraints import Condition
from harness.matrix.model.versions import Version


@dataclass(frozen=True, kw_only=True)
class LeftOutTest:
    """A file or test of a suite that is not run, and why. test: a path, or a path with `::` and a name."""

    test: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One test suite of an upstream.

    upstream: the axis whose repository has the tests; only cells with this axis have the suite.
    conditions: what else a cell needs. repositories: addresses of the repository with the tests.
    revision: how the commit is found, the first that succeeds: `cell` (the commit of the cell's value),
    `package` (the commit that the installed package names), else a pattern of tags with `{version}`.
    submodule: path of the submodule in which the tests are, with `submodule_repositories`; else "".
    tree: the folders and files that the tests need. paths: files and folders with tests, or glob patterns.
    device: `npu` (the device of the cell) or `cpu`. requirements: packages of the tests alone.
    preload: modules that all files import, imported once. cards: of the simulated device. disabled: a list of
    tests that the upstream itself does not run, relative to the repository, or "".
    """

    name: str
    title: str
    upstream: str
    source: str
    revision: tuple[str, ...]
    repositories: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    submodule: str = ""
    submodule_repositories: tuple[str, ...] = ()
    tree: tuple[str, ...]
    paths: tuple[str, ...]
    device: str = "npu"
    cwd: str = ""
    python_path: tuple[str, ...] = ()
    config: str = ""
    env: Mapping[str, str]
    preload: tuple[str, ...] = ()
    cards: int = 1
    requirements: tuple[str, ...] = ()
    left_out: tuple[LeftOutTest, ...] = ()
    test_seconds: int = 120
    file_seconds: int = 900
    memory_mib: int = 6144
    disabled: str = ""
    where: Location

    def covers(self, cell: Cell, versions: Mapping[str, Version]) -> bool:
        """Whether a cell with these versions has the suite."""
        return self.upstream in cell.axes and all(condition.holds(versions) for condition in self.conditions)
