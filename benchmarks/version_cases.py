"""Failure reports that state versions: how many combinations a static check fails, with the thread's cause.

Every report about packages that states the versions of two or more is checked as `npu-matrix inspect` checks
a list of versions, without its error text. It is predicted if a check fails and its reasons name a package of
the case. The halves are those of `retrodiction`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.figures import Figure
from benchmarks.reported_stacks import JudgedStack, Stack, judge_stacks, stack_cell
from benchmarks.retrodiction import Case, read_cases
from harness.errors import HarnessError
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.package import shipped_file

#: Categories of reports whose cause is the versions of packages.
ABOUT_VERSIONS = frozenset({"api", "import", "library", "version", "dependency"})


def is_expressed(matrix: Matrix, case: Case) -> bool:
    """Whether the versions of a report can be stated as a combination."""
    try:
        stack_cell(matrix, _stack(case))
    except (HarnessError, ValueError):
        return False
    return True


def is_predicted(case: Case, judged: JudgedStack) -> bool:
    """Whether a check fails it with a reason that names a package of the case."""
    reasons = " ".join(
        reason
        for one in judged.entries
        if one.judgement and one.judgement.status is Status.FAIL
        for reason in one.judgement.reasons
    )
    text = reasons.casefold().replace("-", "_")
    return any(name.casefold().replace("-", "_") in text for name in case.names)


def figures() -> Iterator[Figure]:
    matrix = load_matrix(shipped_file("matrix.yaml"))
    cases = [one for one in read_cases() if one.category in ABOUT_VERSIONS and len(one.versions) > 1]
    expressed = [one for one in cases if is_expressed(matrix, one)]
    judged = judge_stacks([_stack(one) for one in expressed])
    for half in ("looked at", "only counted"):
        own: Sequence[Case] = [one for one in cases if one.half == half]
        pairs = [(one, of) for one, of in zip(expressed, judged, strict=True) if one.half == half]
        claim = f"of {len(own)} failure reports with versions of packages that are {half}"
        share = 100 / max(1, len(own))
        yield Figure(claim=f"{claim}, expressed", measured=len(pairs) * share, unit="%")
        claim = f"of {len(pairs)} combinations that failed and are {half}"
        failed = sum(bool(of.failed) for _one, of in pairs)
        predicted = sum(is_predicted(one, of) for one, of in pairs)
        share = 100 / max(1, len(pairs))
        yield Figure(claim=f"{claim}, failed by a static check", measured=failed * share, unit="%")
        yield Figure(claim=f"{claim}, with a package of the cause", measured=predicted * share, unit="%")


def _stack(case: Case) -> Stack:
    return Stack(source=case.source, axes=dict(case.versions))
