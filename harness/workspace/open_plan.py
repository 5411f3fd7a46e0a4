"""What most commands start from: settings -> matrix, host, plan."""

from __future__ import annotations

import datetime as dt
import fnmatch
import functools
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import InputError, Location, NothingSelectedError
from harness.settings import Settings
from harness.workspace.selection import no_match

if TYPE_CHECKING:
    from harness.check import Check
    from harness.devices.host.inventory import HostReport
    from harness.matrix.model.cell import Cell
    from harness.matrix.version_matrix import Matrix
    from harness.outcome import Outcome
    from harness.plan.keys.facets import FacetInputs
    from harness.plan.tasks.task import Plan
    from harness.run.jobs.job import CellCommand
    from harness.verdict.verdict import Expected


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A matrix, the host, and the plan of the selection."""

    settings: Settings
    matrix: Matrix
    host: HostReport
    plan: Plan


def open_matrix(settings: Settings) -> Matrix:
    """Load the matrix the settings name."""
    from harness.matrix.reading.load_matrix import load_matrix

    return load_matrix(settings.path("matrix"))


def look_at_host() -> HostReport:
    """What this machine has."""
    from harness.devices.host.inventory import HostView, inspect_host

    return inspect_host(HostView(environ=os.environ))


def host_kind(report: HostReport) -> dict[str, str]:
    """What decides how fast a host is, as runs store it."""
    chips = report.usable_chips
    return {
        "machine": platform.machine(),
        "cpus": str(report.cpus),
        "npu": f"{len(chips)} x {report.soc}" if chips else "none",
    }


def open_bench(
    settings: Settings,
    *,
    only: Sequence[str] = (),
    checks: Sequence[str] = (),
    host: HostReport | None = None,
    package_root: Path | None = None,
    choose: Callable[[Matrix], Sequence[Cell]] | None = None,
    nodes: Sequence[Mapping[str, float]] = (),
) -> Bench:
    """Plan the profile, or the cells (by glob) and checks selected; naming nothing is an error.

    `a,b` names two, as two options do. A glob that matches nothing beside one that does is noticed.
    `host` stands in for what a look at this machine finds, `package_root` for the code whose digests count.
    `choose` names other cells than the profile's.
    `nodes` are the resources of a cluster's nodes, which then run it instead of this host.
    """
    from harness.digest import digest_file
    from harness.package import PACKAGE_ROOT
    from harness.plan.keys.code import code_digests
    from harness.plan.tasks.planner import make_plan
    from harness.workspace.followed_branches import followed

    matrix, moving = followed(open_matrix(settings))
    cells = select_cells(settings, matrix, only, choose)
    wanted = select_checks(checks)
    missed = [glob for glob in each(only) if not any(_selected(cell.id, [glob]) for cell in cells)]
    host = host or look_at_host()
    plan = make_plan(
        cells,
        wanted,
        profile=settings["profile"],
        matrix_digest=digest_file(settings.path("matrix")),
        inputs=facet_inputs(settings, matrix),
        code=code_digests(wanted, package_root or PACKAGE_ROOT),
        host=replace(host_facts(host), nodes=tuple(nodes)),
        notices=(*_expired(matrix), *moving, *(f"no cell matches {glob!r}" for glob in missed)),
        without={} if checks else left_out(settings, matrix),
    )
    return Bench(settings=settings, matrix=matrix, host=host, plan=plan)


def select_cells(
    settings: Settings,
    matrix: Matrix,
    only: Sequence[str] = (),
    choose: Callable[[Matrix], Sequence[Cell]] | None = None,
) -> list[Cell]:
    """The cells of the profile, or of `choose`, that match a glob; none is an error that says why."""
    offered = choose(matrix) if choose else matrix.cells(settings["profile"]).cells
    globs = each(only)
    cells = [cell for cell in offered if _selected(cell.id, globs)]
    if not cells:
        raise _nothing(matrix, settings["profile"], globs, [cell.id for cell in offered])
    return cells


def select_checks(names: Sequence[str] = ()) -> tuple[Check, ...]:
    """The named checks with what they need, or all; an error names the nearest."""
    from harness.plan.tasks.check_registry import all_checks, with_needs

    registered = all_checks()
    known = {check.name for check in registered}
    names = each(names)
    for name in names:
        if name not in known:
            raise no_match("check", name, sorted(known))
    return with_needs(set(names), registered) if names else registered


def left_out(settings: Settings, matrix: Matrix) -> dict[str, str]:
    """Check -> why the profile does not run it; an InputError when it names a check that does not exist."""
    from harness.plan.tasks.check_registry import all_checks

    profile = matrix.profiles.get(settings["profile"])
    if profile is None or not profile.without:
        return {}
    known = sorted(check.name for check in all_checks())
    for one in profile.without:
        if one.check not in known:
            near = no_match("check", one.check, known).problems[0]
            raise InputError(near.what, where=one.where, fix=near.fix)
    return {one.check: f"not in profile {profile.name}: {one.reason}" for one in profile.without}


def _nothing(matrix: Matrix, profile: str, only: Sequence[str], known: list[str]) -> NothingSelectedError:
    """Why no cell is left: a glob that matches none, or rules that together exclude all."""
    from harness.plan.feasibility.exclusion import empty_selection

    if only:
        near = no_match("cell", only[0], known).problems[0]
        return NothingSelectedError(near.what, fix=near.fix)
    rules = [rule for part in matrix.profiles[profile].select for rule in empty_selection(matrix, part)]
    why = "; ".join(
        f"{relative(rule.where, Path(matrix.file).parent)} {rule.rule}: {rule.reason}" for rule in rules
    )
    return NothingSelectedError(
        f"the profile {profile!r} selects no cell",
        why=f"together these rules exclude every combination, and none of them can be left out: {why}"
        if why
        else "",
        fix="loosen one of them, or give the profile other values" if why else "add a selection to it",
    )


def find_cell(matrix: Matrix, profile: str, wanted: str) -> Cell:
    """The cell with this id, of this stack, or whose id begins so; an error names the nearest.

    Cells of the profile come first: an id's beginning that means one of them is clear, whatever others have.
    """
    for cells in (matrix.cells(profile).cells, matrix.all_cells):
        exact = [cell for cell in cells if wanted in {cell.id, cell.stack}]
        matches = exact or [cell for cell in cells if cell.id.startswith(wanted)]
        if matches:
            break
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise no_match(
            "cell", wanted, [word for cell in matrix.all_cells for word in {cell.id, cell.stack} if word]
        )
    raise InputError(
        f"{wanted!r} is the beginning of {len(matches)} cells",
        fix=f"one of: {', '.join(cell.id for cell in matches)}",
    )


def _expired(matrix: Matrix) -> tuple[str, ...]:
    today = dt.datetime.now(tz=dt.UTC).date()
    return tuple(
        f"{Path(found.where.file).name}:{found.where.line}: the expectation {name!r} expired on "
        f"{found.until_date} and no longer excuses anything: mend the cell, or give a new reason and date"
        for name, found in matrix.expectations.items()
        if found.expired(today)
    )


def facet_inputs(settings: Settings, matrix: Matrix) -> FacetInputs:
    """What facets read beyond the cell, gathered once."""
    from harness.patchstack.stacks.patch_stack import selected_patches
    from harness.plan.keys.code import simulator_digest
    from harness.plan.keys.facets import FacetInputs

    @functools.cache
    def patches(upstream: str, version: str) -> tuple[dict[str, Any], ...]:
        return tuple(selected_patches(settings.root, upstream, version))

    return FacetInputs(
        host_python=f"{sys.version_info.major}.{sys.version_info.minor}",
        host_arch=platform.machine(),
        patches=lambda upstream, version: list(patches(upstream, version)),
        recipes=matrix.recipes,
        axes=matrix.axes,
        simulator=simulator_digest(),
        engine=settings.engine,
    )


def cards(bench: Bench) -> dict[str, int]:
    """Cell id -> cards its recipe asks for, on all its nodes."""
    recipes = bench.matrix.recipes
    return {
        cell.id: recipes[cell.recipe].nodes * recipes[cell.recipe].cards
        for cell in bench.plan.cells
        if cell.recipe in recipes
    }


def host_facts(report: HostReport) -> Any:
    """The host as planning sees it."""
    from harness.devices.host.soc import driver_misfit
    from harness.plan.tasks.host_capabilities import HostFacts, NpuFacts

    chips = report.usable_chips
    npu = (
        NpuFacts(cards=len(chips), soc=report.soc, driver=report.npu.version)
        if chips and report.npu
        else None
    )
    return HostFacts(npu=npu, cann_fits=driver_misfit)


def expectations(matrix: Matrix, profile: str) -> Callable[[str, str], Expected | None]:
    """(cell id, check) -> what the matrix expects of it."""
    from harness.verdict.verdict import Expected

    cells = {cell.id: cell for cell in matrix.cells(profile).cells} if profile in matrix.profiles else {}
    today = dt.datetime.now(tz=dt.UTC).date()

    def expected(cell_id: str, check: str) -> Expected | None:
        cell = cells.get(cell_id)
        found = matrix.expectation_for(cell, check) if cell else None
        if found is None or found.expired(today):
            return None
        return Expected(
            state=found.state,
            because=found.because,
            reason=found.reason,
            source=found.source,
            until=str(found.until_date or found.until_version or ""),
            where=f"{Path(found.where.file).name}:{found.where.line}",
        )

    return expected


def cell_entry(cache: Path) -> CellCommand:
    """How a module is started inside a built cell."""
    import harness
    from harness.builds.cell.bundle import make_bundle
    from harness.builds.cell.cell_command import cell_command
    from harness.builds.ownership.cache_use import CacheUse

    # Kept by the function below: `cleanup` leaves alone what a living run may enter.
    use = CacheUse(cache)

    def enter(
        environment: Outcome, module: str, args: Sequence[str]
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        bundle = make_bundle(Path(harness.__file__).parent, use.cache)
        return cell_command(environment.measurements, bundle, module, args)

    return enter


def relative(where: Location, root: Path) -> str:
    """A place with its file named from the checkout."""
    file = Path(where.file)
    named = file.relative_to(root) if file.is_relative_to(root) else file
    return str(Location(named, where.line, where.column))


def each(words: Sequence[str]) -> list[str]:
    """The words, `a,b` taken apart. An empty variable of a script must not select everything."""
    parts = [part for word in words for part in word.split(",") if part]
    if words and not parts:
        raise NothingSelectedError(
            "a selection is given, and it is empty", fix="name something, or leave --only or --check out"
        )
    return parts


def _selected(cell_id: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(cell_id, pattern) for pattern in patterns)
