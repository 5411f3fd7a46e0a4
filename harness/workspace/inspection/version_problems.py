"""The problems of a combination of versions: what the static checks and the matrix say about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from harness.compat.api.api_measurements import ApiMeasured
from harness.compat.inspection.installed_requirements import is_near
from harness.compat.inspection.stated_packages import Inventory
from harness.compat.operators.operator_measurements import OperatorsMeasured
from harness.compat.table_drift import find_drift
from harness.matrix.cells.pins import normal_package
from harness.matrix.model.cell import Cell
from harness.matrix.model.constraints import TableRequirement, ViolationKind
from harness.matrix.model.environment_facets import ConstraintsFacet
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.sources.packages.resolve_measurements import ResolveMeasured, ResolveProblem
from harness.sources.packages.uv_errors import UvFailureKind
from harness.workspace.inspection.file_problems import INSTALLED_OVER
from harness.workspace.inspection.inspection_report import Problem, Stage
from harness.workspace.inspection.stack_checks import CheckedEntry

_UNANSWERED = frozenset({Status.NOT_RUN, Status.ERROR, Status.INCONCLUSIVE, Status.STALE, Status.BLOCKED})
_MOST_LATER = 5


#: A package, and one that it requires.
Requiring = tuple[str, str]


def check_problems(
    entries: Sequence[CheckedEntry],
    inventory: Inventory,
    matrix: Matrix,
    cell: Cell,
    known: Collection[Requiring] = (),
) -> Iterator[Problem]:
    """The problems that the checks found. known: whose unsatisfied requirements were told before."""
    for entry in entries:
        if entry.task is None or entry.outcome is None or entry.judgement is None:
            continue
        if entry.judgement.status in {Status.ERROR, Status.STALE}:
            continue
        measured = entry.task.check.read(entry.outcome)
        if isinstance(measured, ConstraintsFacet):
            yield from _constraints(measured, inventory, matrix, cell)
        elif isinstance(measured, ResolveMeasured):
            yield from _resolution(measured, inventory, matrix, known)
            if not inventory.kind.is_installed:
                yield from _refused_by_pip(measured)
            if not inventory.kind.has_files:
                yield from _archives(measured, entry)
        elif isinstance(measured, OperatorsMeasured):
            yield from _operators(measured)
        elif isinstance(measured, ApiMeasured):
            yield from _names(measured)


def not_answered(entries: Sequence[CheckedEntry]) -> Iterator[str]:
    """A sentence for each check without a verdict."""
    for entry in entries:
        if entry.judgement is None:
            if entry.skipped and "neither" not in entry.skipped and "no torch_npu" not in entry.skipped:
                yield f"{entry.check}: {entry.skipped}"
        elif entry.judgement.status in _UNANSWERED:
            yield f"{entry.check}: {entry.judgement.reasons[0] if entry.judgement.reasons else 'no answer'}"


def answered(entries: Sequence[CheckedEntry]) -> Iterator[str]:
    """The checks with a verdict."""
    for entry in entries:
        if entry.judgement and entry.judgement.status in {Status.PASS, Status.FAIL}:
            yield entry.check


def _constraints(
    measured: ConstraintsFacet, inventory: Inventory, matrix: Matrix, cell: Cell
) -> Iterator[Problem]:
    for rule in measured.violated:
        is_over = inventory.kind.is_installed and is_beside(rule.rule, rule.kind, matrix, cell.axes)
        is_open = rule.kind == ViolationKind.UNLISTED.value or bool(rule.override) or is_over
        stage = Stage.INSTALL if rule.kind == ViolationKind.REQUIREMENT.value else Stage.IMPORT
        permitted = f" Permitted: {rule.override}." if rule.override else ""
        yield Problem(
            stage=Stage.LATER if is_open else stage,
            fails=not is_open,
            check="constraints",
            text=f"{rule.what}: {rule.reason}.{permitted}",
            source=f"{rule.source} ({rule.rule} in matrix.yaml)",
            involved=(rule.rule,),
        )


def is_beside(rule: str, kind: str, matrix: Matrix, axes: Mapping[str, str]) -> bool:
    """Whether a requirement of a published table is violated by a release beside the one that it names."""
    if kind != ViolationKind.REQUIREMENT.value:
        return False
    versions = matrix.versions(axes)
    tables = (one for one in matrix.constraints[rule].require if isinstance(one, TableRequirement))
    violated = [one for one in tables if one.holds(versions) is False]
    return bool(violated) and all(
        any(
            is_near(normal_package(matrix.axes[one.axis].package), str(listed), versions[one.axis].nominal)
            for listed in one.allowed_for(versions)
        )
        for one in violated
    )


def _resolution(
    measured: ResolveMeasured, inventory: Inventory, matrix: Matrix, known: Collection[Requiring]
) -> Iterator[Problem]:
    """Conflicts, and packages that no index has. What is installed already need not be on an index."""
    if measured.timed_out:
        return
    for problem in measured.problems:
        is_conflict = problem.kind is UvFailureKind.CONFLICT
        fails, remark = not inventory.kind.is_installed, ""
        if inventory.kind.has_files and not is_conflict:
            continue
        if inventory.kind.is_installed:
            if problem.undecided:
                continue
            violated = _violated(problem, inventory, matrix) if is_conflict else {}
            if violated and violated.keys() <= set(known):
                continue
            fails = not all(violated.values()) and not inventory.kind.has_files
            remark = "" if fails or not is_conflict else INSTALLED_OVER
        yield Problem(
            stage=Stage.INSTALL if fails else Stage.LATER,
            fails=fails,
            check="resolve",
            text=f"{problem.text.rstrip('.')}{remark}" if remark else problem.text,
            involved=(*problem.contested, *problem.blamed, problem.subject),
            remedy=problem.remedy,
        )


def _violated(problem: ResolveProblem, inventory: Inventory, matrix: Matrix) -> dict[Requiring, bool]:
    """The stated packages whose requirements stated versions do not satisfy -> whether that is a remark.

    What else conflicts is about packages whose version the list does not state. Of packages that are no axis,
    only requirements of one release count, as in `released_distributions`.
    """
    axes = {normal_package(axis.package) for axis in matrix.axes.values() if axis.package}
    found = {}
    for one in problem.dependencies:
        stated = inventory.packages.get(one.needs)
        if stated is None or one.package not in inventory.packages:
            continue
        try:
            if not SpecifierSet(one.needed_versions).contains(stated.version, prereleases=True):
                is_built_for = one.package in axes or one.needed_versions.startswith("==")
                near = is_near(one.needs, one.needed_versions, stated.version)
                found[one.package, one.needs] = near or not is_built_for
        except InvalidSpecifier:  # a range in words of uv
            found[one.package, one.needs] = False
    return found


def _refused_by_pip(measured: ResolveMeasured) -> Iterator[Problem]:
    """What the matrix solves with overrides and additional indexes, which pip does not know."""
    for one in measured.hidden:
        yield Problem(
            stage=Stage.INSTALL,
            fails=True,
            check="resolve",
            text=f"pip refuses to install these together: {one.of} {one.version} requires {one.requirement}, "
            f"and the other packages {one.locked or 'another version'}",
            source=one.source,
            remedy=f"install {one.of} so that the requirement is not in force: {one.reason.rstrip('.')}",
        )
    if measured.indexes and measured.resolved:
        yield Problem(
            stage=Stage.INSTALL,
            fails=True,
            check="resolve",
            text=f"the configured package indexes lack a package that {', '.join(measured.indexes)} has",
            remedy=f"pip install --extra-index-url {measured.indexes[0]}",
        )


def _archives(measured: ResolveMeasured, entry: CheckedEntry) -> Iterator[Problem]:
    judgement = entry.judgement
    for text in (*measured.unusable, *measured.refusals):
        remedy = judgement.remedies[0] if judgement and judgement.remedies else ""
        yield Problem(stage=Stage.INSTALL, fails=True, check="resolve", text=text, remedy=remedy)


def _operators(measured: OperatorsMeasured) -> Iterator[Problem]:
    version = f"torch_npu {measured.torch_npu.version}"
    for use in measured.uses:
        if not use.guarded:
            own = "; the torch_npu that it pins does not support it either" if use.own else ""
            yield Problem(
                stage=Stage.LATER if use.own else Stage.FIRST_STEP,
                fails=not use.own,
                check="npu-ops",
                text=f"{use} ({use.consumer} with {version}){own}",
                involved=("torch-npu", use.consumer),
            )
    for change in measured.silent:
        yield Problem(
            stage=Stage.NUMBERS,
            fails=True,
            check="npu-ops",
            text=f"{change} ({change.consumer} with {version})",
            involved=("torch-npu", change.consumer),
        )


def _names(measured: ApiMeasured) -> Iterator[Problem]:
    later = 0
    for finding in measured.findings:
        if finding.fails:
            remedy = f"{finding.provider.partition(' ')[0]} {finding.last} had it" if finding.last else ""
            yield Problem(
                stage=Stage.IMPORT,
                fails=True,
                check="api",
                text=str(finding),
                involved=(finding.provider.partition(" ")[0], finding.consumer),
                remedy=remedy,
            )
        elif finding.breaks and not finding.guarded:
            later += 1
            if later <= _MOST_LATER:
                text = f"breaks if it is called: {finding}"
                yield Problem(stage=Stage.LATER, fails=False, check="api", text=text)
    if later > _MOST_LATER:
        text = f"{later - _MOST_LATER} more uses break if they are called: npu-matrix api check lists them"
        yield Problem(stage=Stage.LATER, fails=False, check="api", text=text)


def known_problems(matrix: Matrix, cell: Cell) -> Iterator[Problem]:
    """Failures that the matrix expects of these versions, and contradictions of the tables about them."""
    versions = matrix.versions(cell.axes)
    for expectation in matrix.expectations.values():
        if expectation.conditions and not expectation.cells and expectation.covers(cell, versions):
            yield Problem(
                stage=Stage.LATER,
                fails=False,
                check=expectation.check,
                text=f"known: {expectation.check} ends as {expectation.state}: {expectation.reason}",
                source=expectation.source,
            )
    rows = _row_names(matrix, cell.axes)
    for one in find_drift(matrix):
        if one.left.row in rows and (one.kind == "not-listed" or one.right.row in rows):
            yield Problem(
                stage=Stage.LATER,
                fails=False,
                check="drift",
                text=f"published tables contradict each other: {str(one).splitlines()[0]}",
                source=f"{one.left.source}; {one.right.source}",
            )


def _row_names(matrix: Matrix, axes: Mapping[str, str]) -> frozenset[str]:
    tables = matrix.published.values()
    return frozenset(f"{table.name} {axes[table.key]}" for table in tables if table.key in axes)


def involved_axes(matrix: Matrix, problem: Problem) -> tuple[str, ...]:
    """The axes whose versions could be moved to solve a problem."""
    packages = {normal_package(axis.package): name for name, axis in matrix.axes.items() if axis.package}
    found: dict[str, None] = {}
    for name in problem.involved:
        if name in matrix.constraints:
            found |= dict.fromkeys(matrix.constraints[name].axes)
        elif normal_package(name.partition("=")[0]) in packages:
            found[packages[normal_package(name.partition("=")[0])]] = None
    return tuple(found)
