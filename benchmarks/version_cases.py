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
from harness.compat.resolve.resolve_request import ResolveRequest
from harness.errors import HarnessError
from harness.matrix.cells.pins import pins_facet
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.package import shipped_file

#: Categories of reports whose cause is the versions of packages.
ABOUT_VERSIONS = frozenset({"api", "import", "library", "version", "dependency"})
ANY_HOST = {"python": "3.11", "arch": "aarch64"}


def is_expressed(matrix: Matrix, case: Case) -> bool:
    """Whether the versions of a report can be stated as a combination."""
    try:
        ResolveRequest.from_facets(pins_facet(stack_cell(matrix, _stack(case)), matrix.axes), ANY_HOST)
    except (HarnessError, ValueError):
        return False
    return True


def is_predicted(case: Case, judged: JudgedStack) -> bool:
    """Whether it fails with a problem that names a package of the case."""
    text = " ".join(judged.failed).casefold().replace("-", "_")
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
    is_installed = case.category != "dependency"
    return Stack(source=case.source, axes=dict(case.versions), is_installed=is_installed)
