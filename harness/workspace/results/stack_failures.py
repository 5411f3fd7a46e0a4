"""Whether triage explains the failures that users of a stack see, as matrix.yaml lists them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.compat.knowledge.pack_at_hand import PackAtHand
from harness.matrix.model.definitions import Stack
from harness.matrix.version_matrix import Matrix
from harness.verdict.triage.catalogue import Catalogue
from harness.verdict.triage.diagnosis import triage_text
from harness.workspace.planning.plan_selection import unknown_name


@dataclass(frozen=True, kw_only=True)
class TriagedFailure:
    """One wording of a failure.

    expected: the cause that matrix.yaml states. found: the one that triage names. why, remedy: of the cause
    that was found; "" if none was.
    """

    log: str
    expected: str
    found: str
    why: str
    remedy: str
    source: str

    @property
    def agrees(self) -> bool:
        """Whether triage names the stated cause."""
        return self.found == self.expected


def triage_stack(stack: Stack, catalogue: Catalogue, surfaces: PackAtHand) -> Iterator[TriagedFailure]:
    """The failures of a stack in each wording. A mere symptom or a warning is no cause."""
    for failure in stack.failures:
        for log in failure.logs:
            diagnosis = triage_text(log.encode(), catalogue, versions=stack.axes, surfaces=surfaces)
            root = diagnosis.root if diagnosis.known else None
            known = root.signature if root else None
            yield TriagedFailure(
                log=log,
                expected=failure.cause,
                found=known.id if known else "",
                why=known.cause if known else "",
                remedy=known.remedy if known else "",
                source=failure.source,
            )


def named_stack(matrix: Matrix, name: str) -> Stack:
    """The stack of this name; InputError if there is none."""
    if name not in matrix.stacks:
        raise unknown_name("stack", name, list(matrix.stacks))
    return matrix.stacks[name]


def failure_lines(failures: list[TriagedFailure]) -> Iterator[str]:
    """What triage says of each failure, as text."""
    for failure in failures:
        yield f"{'pass' if failure.agrees else 'fail'}  {failure.log.strip().splitlines()[-1].strip()}"
        if failure.found:
            yield f"  cause: {failure.found}: {failure.why}"
            yield f"  do:    {failure.remedy}"
        if not failure.agrees:
            yield f"  expected: {failure.expected}; found: {failure.found or 'no cause'}"
        yield f"  from:  {failure.source}"
    wrong = sum(not failure.agrees for failure in failures)
    yield f"{len(failures) - wrong} of {len(failures)} failures are explained by the stated cause"
