"""Stacks that people or documents report as working (working_stacks/): does a static check fail one of them?

A stack has versions of axes of the matrix, and of other packages, which are added as requirements. It is
checked as `npu-matrix inspect` checks a list of versions; outcomes are reused from the cache of `inspect`.
Without them, `api` reads the sources of every package of every stack, which takes half an hour.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from benchmarks.figures import ROOT, Figure
from harness.matrix.model.cell import Cell
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.package import shipped_file
from harness.settings import load_settings
from harness.workspace.inspection.stack_checks import CHECKS, CheckedEntry, check_combinations, combination

STACKS = Path(__file__).parent / "working_stacks"


class Stack(BaseModel):
    """A combination of versions that a document or a person reports as working."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    source: str
    axes: dict[str, str] = Field(min_length=2)


@dataclass(frozen=True, kw_only=True)
class JudgedStack:
    """A stack with its checks."""

    stack: Stack
    entries: tuple[CheckedEntry, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks that fail it, each with its first reason."""
        return tuple(
            f"{one.check}: {one.judgement.reasons[0] if one.judgement.reasons else ''}"
            for one in self.entries
            if one.judgement and one.judgement.status is Status.FAIL
        )

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


def judge_stacks(stacks: Sequence[Stack], checks: Sequence[str] = CHECKS) -> list[JudgedStack]:
    """Run the static checks on all stacks."""
    matrix = load_matrix(shipped_file("matrix.yaml"))
    cells = [stack_cell(matrix, stack) for stack in stacks]
    found = check_combinations(load_settings({}, os.environ, ROOT), cells, checks)
    return [
        JudgedStack(stack=stack, entries=found.get(cell.id, ()))
        for stack, cell in zip(stacks, cells, strict=True)
    ]


def figures() -> Iterator[Figure]:
    judged = judge_stacks(read_stacks())
    claim = f"of {len(judged)} stacks that are reported as working"
    yield Figure(claim=f"{claim}, failed by a static check", measured=sum(bool(one.failed) for one in judged))
    for check in CHECKS:
        answered = sum(check in one.answered for one in judged)
        yield Figure(claim=f"{claim}, answered by {check}", measured=answered)
