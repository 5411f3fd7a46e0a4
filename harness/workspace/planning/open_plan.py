"""Opens a plan: loads the matrix, inspects this host and plans. Most commands start here."""

from __future__ import annotations

import datetime as dt
import functools
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.builds.cell.interpreter import find_interpreter
from harness.builds.installed.found_python import FoundPython, found_python, read_found
from harness.devices.host.host_findings import why_no_card
from harness.devices.host.host_inspection import HostReport, HostView, inspect_host
from harness.devices.host.soc import driver_misfit
from harness.digest import digest_file, digest_json
from harness.errors import InputError, Location
from harness.ledger.plan_record import PlanEntry, PlannedExpectation
from harness.matrix.model.cell import Cell
from harness.matrix.model.definitions import Axis
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.package import PACKAGE_ROOT, shipped_file, shipped_root
from harness.patchstack.stacks.patch_origin import OriginState
from harness.patchstack.stacks.patch_sources import PatchSources, UnusedPatch
from harness.patchstack.stacks.patch_stack import imported_origins
from harness.plan.keys.code_digests import code_of_checks, record_code, simulator_digest
from harness.plan.keys.facets import FacetInputs
from harness.plan.tasks.host_capabilities import HostFacts, NpuFacts
from harness.plan.tasks.planner import make_plan
from harness.plan.tasks.task import Plan
from harness.settings import FOUND, MATRIX_FILE, Settings
from harness.sources.git.checkout import GitCheckout
from harness.upstream_tests.suite_check import SUITE_CHECK_NAMES
from harness.verdict.suite_known_failures import FOLDER as KNOWN_FAILURES
from harness.verdict.suite_known_failures import KnownFailures, expected_tests, read_known_failures
from harness.verdict.verdict import ExpectedFailure
from harness.workspace.planning.followed_branches import follow_branches
from harness.workspace.planning.found_cell import AS_FOUND, left_out_as_found, with_found_stack
from harness.workspace.planning.plan_selection import (
    checks_left_out,
    select_cells,
    select_checks,
    selection_options,
    split_names,
    unmatched,
)

#: The minor versions of Python 3 that cells can have.
_OLDEST_MINOR, _NEWEST_MINOR = 9, 14


@dataclass(frozen=True, kw_only=True)
class PlanContext:
    """A plan with the settings, the matrix and the host that it was made from."""

    settings: Settings
    matrix: Matrix
    host: HostReport
    plan: Plan


def open_matrix(settings: Settings) -> Matrix:
    """Load the matrix file that the settings name; InputError if there is none."""
    if settings.lacks_matrix:
        raise InputError(
            "there is no matrix.yaml in this folder or above it",
            where=Location(settings.path("matrix")),
            fix="npu-matrix init writes one for a repository; npu-matrix demo runs the shipped one",
        )
    return load_matrix(settings.path("matrix"))


def inspect_this_host() -> HostReport:
    """Inspect this machine: CPUs, cards, CANN."""
    return inspect_host(HostView(environ=os.environ))


def installed_as_found(settings: Settings) -> FoundPython | None:
    """What the environment of the engine `found` has installed; None with any other engine."""
    return read_found(found_python(os.environ)) if settings["engine"] == FOUND else None


def _offered_as_found(matrix: Matrix, *, named: bool) -> tuple[Cell, ...]:
    """Without --only the environment is a cell of its own; with it, a row to compare it with."""
    own = matrix.stack_cell(AS_FOUND)
    return (own, *(cell for cell in matrix.all_cells if cell != own)) if named else (own,)


def host_kind(report: HostReport) -> dict[str, str]:
    """The properties of a host that determine its speed, as runs store them."""
    chips = report.usable_chips
    return {
        "machine": platform.machine(),
        "cpus": str(report.cpus),
        "npu": f"{len(chips)} x {report.soc}" if chips else "none",
    }


def open_plan(
    settings: Settings,
    *,
    only: Sequence[str] = (),
    checks: Sequence[str] = (),
    host: HostReport | None = None,
    package_root: Path | None = None,
    choose: Callable[[Matrix], Sequence[Cell]] | None = None,
    nodes: Sequence[Mapping[str, float]] = (),
    elsewhere: bool = False,
) -> PlanContext:
    """Plan the cells of the profile, or the selected cells (globs) and checks; an empty selection is an
    error.

    only, checks: names, several of them also separated by commas. A glob without a match gives a notice if
    another glob matches. host: used instead of inspecting this machine. package_root: the code that keys are
    computed from. choose: selects the cells instead of the profile. nodes: the resources of each cluster
    node, if the plan runs on a cluster. elsewhere: the plan runs on hosts that have the devices of the cells.
    """
    matrix, moving = follow_branches(open_matrix(settings))
    host = host or inspect_this_host()
    found = installed_as_found(settings)
    if found is not None:
        matrix = with_found_stack(matrix, found, host)
        choose = choose or (lambda whole: _offered_as_found(whole, named=bool(only)))
    cells = select_cells(settings, matrix, only, choose)
    if settings["rehearsal"]:
        cells = [matrix.rehearsed(cell) if cell.device == "npu" else cell for cell in cells]
    selected = select_checks(checks, as_they_are=found is not None)
    without = {} if checks else checks_left_out(settings, matrix)
    if found is not None and any(cell.stack == AS_FOUND for cell in cells):
        without |= left_out_as_found(matrix, found, selected)
    code = code_of_checks(selected, package_root or PACKAGE_ROOT, settings.cache)
    plan = make_plan(
        cells,
        selected,
        profile=settings["profile"],
        matrix_digest=_matrix_digest(settings, matrix),
        inputs=facet_inputs(settings, matrix, package_root or PACKAGE_ROOT),
        code={name: one.digest for name, one in code.items()},
        code_record=record_code(code.values()),
        host=replace(host_facts(host), nodes=tuple(nodes), elsewhere=elsewhere),
        notices=(
            *_expired(matrix),
            *_stale_imports(settings),
            *_unused_patches(settings, matrix),
            *moving,
            *(f"no cell matches {glob!r}" for glob in unmatched(split_names(only), cells)),
        ),
        without=without,
    )
    selection = selection_options(only, checks)
    plan = replace(plan, selection=selection, expected=_planned_expectations(matrix, cells, plan.entries))
    return PlanContext(settings=settings, matrix=matrix, host=host, plan=plan)


def _planned_expectations(
    matrix: Matrix, cells: Iterable[Cell], entries: Iterable[PlanEntry]
) -> tuple[PlannedExpectation, ...]:
    """The expected failures that cover entries of a plan, also expired ones, with the cells of the plan."""
    by_id = {cell.id: cell for cell in cells}
    covered: dict[str, list[str]] = {}
    for entry in entries:
        found = matrix.expectation_for(by_id[entry.cell_id], entry.check)
        if found is not None:
            covered.setdefault(found.id, []).append(entry.cell_id)
    return tuple(
        PlannedExpectation(
            id=name,
            check=expectation.check,
            state=expectation.state,
            because=expectation.because,
            reason=expectation.reason,
            source=expectation.source,
            owner=expectation.owner,
            until=str(expectation.until_date or expectation.until_version or ""),
            cells=tuple(covered[name]),
        )
        for name, expectation in matrix.expectations.items()
        if name in covered
    )


def _expired(matrix: Matrix) -> tuple[str, ...]:
    today = dt.datetime.now(tz=dt.UTC).date()
    return tuple(
        f"{Path(found.where.file).name}:{found.where.line}: the expectation {name!r} expired on "
        f"{found.until_date} and no longer applies: fix the failure, or give a new reason and date"
        for name, found in matrix.expectations.items()
        if found.expired(today)
    )


def _matrix_digest(settings: Settings, matrix: Matrix) -> str:
    """The digest of matrix.yaml, with that of the files it includes."""
    own = settings.path("matrix")
    shipped = (shipped_file(MATRIX_FILE),) if matrix.includes_shipped else ()
    included = (*matrix.included_files, *shipped)
    return digest_json([digest_file(file) for file in (own, *included)]) if included else digest_file(own)


def patch_sources(settings: Settings, matrix: Matrix) -> PatchSources:
    """Where the patches of this checkout come from."""
    ships = matrix.includes_shipped or settings.uses_shipped_matrix
    return PatchSources(
        root=settings.root,
        shipped=shipped_root() if ships else None,
        places=matrix.patch_places,
        axes=matrix.axes,
    )


def unused_patches(
    settings: Settings, matrix: Matrix, *, in_repositories: bool = True
) -> tuple[UnusedPatch, ...]:
    """The patch files that no cell of any profile has: of the section `patches`, and those it does not name.

    The latter only where the checkout uses the shipped matrix: npu-matrix itself has patches to test it with.
    """
    cells = [cell.axes for cell in matrix.all_cells] if matrix.patch_places else []
    sources = patch_sources(settings, matrix)
    unnamed = sources.unnamed(GitCheckout(settings.root).files()) if matrix.includes_shipped else ()
    return (*sources.unused(cells, in_repositories=in_repositories), *unnamed)


def _unused_patches(settings: Settings, matrix: Matrix) -> tuple[str, ...]:
    """A notice if patch files of this checkout are in no cell."""
    unused = [one for one in unused_patches(settings, matrix, in_repositories=False) if not one.is_stated]
    if not unused:
        return ()
    more = f", and {len(unused) - 1} more" if len(unused) > 1 else ""
    return (f"{unused[0].sentence}{more}: npu-matrix patches list",)


def _stale_imports(settings: Settings) -> tuple[str, ...]:
    """A notice for each imported patch whose origin has changed, also if no cell of the plan uses it."""
    return tuple(
        found.problem.what
        for found in imported_origins(settings.patches)
        if found.state is OriginState.CHANGED
    )


def host_python(axis: Axis | None, environ: Mapping[str, str]) -> str:
    """The Python of cells with `python: host`, such as 3.11.

    It is the version that runs npu-matrix. If the matrix does not allow it, it is the newest allowed version
    that this machine has; if it has none, the newest known one, which is fetched for the environment.
    """
    own = sys.version_info.minor
    candidates = [f"3.{minor}" for minor in (own, *range(_NEWEST_MINOR, _OLDEST_MINOR - 1, -1))]
    if axis is None or axis.host is None:
        return candidates[0]
    allowed = [one for one in candidates if axis.host.holds({axis.name: axis.parse(one)})]
    if not allowed or allowed[0] == candidates[0]:
        return candidates[0]
    return next((one for one in allowed if find_interpreter(one, environ)), allowed[0])


def facet_inputs(settings: Settings, matrix: Matrix, package_root: Path = PACKAGE_ROOT) -> FacetInputs:
    """The inputs of facets in addition to the cell."""

    sources = patch_sources(settings, matrix)
    found = installed_as_found(settings)

    known: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def patches(upstream: str, versions: Mapping[str, str]) -> list[dict[str, Any]]:
        if found is not None:
            # What is installed is compared with the releases and commits of the cell.
            return []
        key = (upstream, *(versions.get(axis, "") for axis in (upstream, *sources.repositories)))
        if key not in known:
            known[key] = [*sources.facet(upstream, versions)]
        return list(known[key])

    return FacetInputs(
        host_python=host_python(matrix.axes.get("python"), os.environ),
        host_arch=platform.machine(),
        patches=patches,
        recipes=matrix.recipes,
        axes=matrix.axes,
        patched=sources.upstreams,
        patch_repositories=sources.repositories,
        simulator=simulator_digest(package_root, settings.cache),
        engine=settings.engine if found is None else {"engine": FOUND, "found": found.identity},
        rehearsed=bool(settings["rehearsal"]),
        violations=matrix.violations,
        suites=matrix.suites,
    )


def known_failures_of(matrix: Matrix) -> tuple[KnownFailures, ...]:
    """The known failures of upstreams' tests: those next to the matrix, and the shipped ones it includes."""
    own = read_known_failures(Path(matrix.file).parent / KNOWN_FAILURES)
    shipped = read_known_failures(shipped_root() / KNOWN_FAILURES) if matrix.includes_shipped else ()
    named = {(one.suite, tuple(one.axes.items())) for one in own}
    return (*own, *(one for one in shipped if (one.suite, tuple(one.axes.items())) not in named))


def cards_by_cell(context: PlanContext) -> dict[str, int]:
    """Cell id -> number of cards of its recipe, on all nodes."""
    recipes = context.matrix.recipes
    return {
        cell.id: recipes[cell.recipe].nodes * recipes[cell.recipe].cards
        for cell in context.plan.cells
        if cell.recipe in recipes
    }


def host_facts(report: HostReport) -> Any:
    """The facts about the host that planning uses."""
    chips = report.usable_chips
    npu = NpuFacts(cards=len(chips), soc=report.soc, driver=report.driver) if chips else None
    return HostFacts(npu=npu, no_card=why_no_card(report), arch=report.machine, cann_misfit=driver_misfit)


def expectations(matrix: Matrix, profile: str) -> Callable[[str, str], ExpectedFailure | None]:
    """A function that returns the expected failure of a cell id and a check according to the matrix, or
    None."""
    cells = {cell.id: cell for cell in matrix.cells(profile).cells} if profile in matrix.profiles else {}
    today = dt.datetime.now(tz=dt.UTC).date()
    # Read only if a cell has suites: the files have thousands of lines.
    known_failures = functools.cache(lambda: known_failures_of(matrix))

    def expected(cell_id: str, check: str) -> ExpectedFailure | None:
        cell = cells.get(cell_id)
        if cell is not None and check in SUITE_CHECK_NAMES and matrix.suites:
            tests = expected_tests(known_failures(), cell.axes, today)
            if tests is not None:
                return tests
        found = matrix.expectation_for(cell, check) if cell else None
        if found is None or found.expired(today):
            return None
        return ExpectedFailure(
            id=found.id,
            owner=found.owner,
            state=found.state,
            because=found.because,
            reason=found.reason,
            source=found.source,
            until=str(found.until_date or found.until_version or ""),
            where=f"{Path(found.where.file).name}:{found.where.line}",
        )

    return expected
