"""Stacks that people or documents report as working (working_stacks/): does a static check fail one of them?

A stack has versions of axes of the matrix, and of other packages, which are added as requirements. It is
checked as `npu-matrix inspect` checks a list of versions; outcomes are reused from the cache of `inspect`.
Without them, `api` reads the sources of every package of every stack, which takes half an hour.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from benchmarks.figures import ROOT, Figure
from benchmarks.retrodiction import Half
from harness.compat.inspection.stated_packages import Inventory, SourceKind, StatedPackage
from harness.matrix.cells.pins import normal_package
from harness.matrix.model.cell import Cell
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.package import shipped_file
from harness.settings import load_settings
from harness.workspace.inspection.inspect_source import OpenedSource, combination_problems
from harness.workspace.inspection.inspection_report import Problem
from harness.workspace.inspection.stack_checks import CHECKS, CheckedEntry, check_combinations, combination

STACKS = Path(__file__).parent / "working_stacks"


class Stack(BaseModel):
    """A combination of versions, such as one that a document or a person reports as working.

    is_installed: whether it was installed, by whatever means; otherwise pip was asked to install it. locked:
    whether it is what a repository's tests install, by its lock file or pinned requirements.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    source: str
    axes: dict[str, str] = Field(min_length=2)
    is_installed: bool = True
    locked: bool = False

    @property
    def half(self) -> Half:
        """Locked lists are split by the hash of their repository; the others were all looked at."""
        number = hashlib.sha256(self.source.split()[0].encode()).digest()[0]
        return "only counted" if self.locked and not number % 2 else "looked at"


@dataclass(frozen=True, kw_only=True)
class JudgedStack:
    """A stack with its checks and what is wrong with it."""

    stack: Stack
    entries: tuple[CheckedEntry, ...]
    problems: tuple[Problem, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """What makes the answer "no", each with the check that found it."""
        return tuple(f"{one.check}: {one.text}" for one in self.problems if one.fails)

    @property
    def answered(self) -> tuple[str, ...]:
        """The checks with a verdict."""
        verdicts = {Status.PASS, Status.FAIL}
        return tuple(one.check for one in self.entries if one.judgement and one.judgement.status in verdicts)


def read_stacks(folder: Path = STACKS) -> list[Stack]:
    """All stacks that are reported as working; raises if a file is invalid."""
    return [
        Stack.model_validate(yaml.safe_load(file.read_text("utf-8")))
        for file in sorted(folder.glob("*.yaml"))
    ]


def stack_cell(matrix: Matrix, stack: Stack) -> Cell:
    """The cell of a stack."""
    axes = {name: version for name, version in stack.axes.items() if name in matrix.axes}
    others = [
        f"{name.replace('_', '-')}=={version}" for name, version in stack.axes.items() if name not in axes
    ]
    return combination(matrix, axes, others, stack.source)


def inventory(matrix: Matrix, stack: Stack) -> Inventory:
    """The same as a list of versions, as `inspect` reads it."""
    names = {
        axis: matrix.axes[axis].package if axis in matrix.axes else axis.replace("_", "-")
        for axis in stack.axes
    }
    packages = {
        normal_package(name): StatedPackage(
            name=normal_package(name), version=stack.axes[axis].partition("@")[0]
        )
        for axis, name in names.items()
        if name
    }
    return Inventory(
        kind=SourceKind.FREEZE if stack.is_installed else SourceKind.REQUIREMENTS,
        where=stack.source,
        packages=packages,
        python=stack.axes.get("python", ""),
    )


def judge_stacks(stacks: Sequence[Stack], checks: Sequence[str] = CHECKS) -> list[JudgedStack]:
    """Run the static checks on all stacks, and judge them as `npu-matrix inspect` does."""
    matrix = load_matrix(shipped_file("matrix.yaml"))
    cells = [stack_cell(matrix, stack) for stack in stacks]
    settings = load_settings({}, os.environ, ROOT)
    found = check_combinations(settings, cells, checks)
    judged = []
    for stack, cell in zip(stacks, cells, strict=True):
        entries = found.get(cell.id, ())
        opened = OpenedSource(inventory=inventory(matrix, stack))
        problems = combination_problems(settings, matrix, cell, opened, entries, ask_index=False)
        judged.append(JudgedStack(stack=stack, entries=entries, problems=tuple(problems)))
    return judged


def figures() -> Iterator[Figure]:
    stacks = read_stacks()
    groups = {
        "stacks that are reported as working": [one for one in stacks if not one.locked],
        "locked lists that are looked at": [one for one in stacks if one.locked and one.half == "looked at"],
        "locked lists that are only counted": [one for one in stacks if one.half == "only counted"],
    }
    for name, own in groups.items():
        judged = judge_stacks(own)
        claim = f"of {len(judged)} {name}"
        failed = sum(bool(one.failed) for one in judged)
        yield Figure(claim=f"{claim}, failed by a static check", measured=failed, limit=0)
        for check in CHECKS:
            answered = sum(check in one.answered for one in judged)
            yield Figure(claim=f"{claim}, answered by {check}", measured=answered)
