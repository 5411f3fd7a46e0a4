"""`npu-matrix inspect`: judges the versions that an environment, an image or a list has."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.compat.api.consumers import CONSUMERS
from harness.compat.inspection.distributions import Distribution, Installation
from harness.compat.inspection.environments import (
    default_interpreter,
    folder_installation,
    installed_inventory,
    interpreter_installation,
)
from harness.compat.inspection.image_archive import image_installation, read_image
from harness.compat.inspection.package_lists import MAX_BYTES, read_list
from harness.compat.inspection.stated_packages import Inventory, SourceKind, StatedPackage, public_version
from harness.compat.knowledge.pack_at_hand import shipped_pack
from harness.compat.knowledge.surface_pack import SurfacePack
from harness.compat.resolve.resolve_request import ResolveRequest
from harness.devices.host.soc import driver_misfit
from harness.errors import HarnessError, InputError, Location, NothingSelectedError
from harness.matrix.cells.pins import normal_package, pins_facet, required_package
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.settings import Settings
from harness.sources.packages.release_archive import TargetPlatform
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import run_quietly
from harness.workspace.inspection.file_problems import environment_problems, requirement_problems
from harness.workspace.inspection.gone_names import GoneNames
from harness.workspace.inspection.inspection_report import Inspection, Problem, Stage
from harness.workspace.inspection.related_packages import RelatedPackages, related_packages
from harness.workspace.inspection.smallest_change import FIXED, find_change
from harness.workspace.inspection.stack_checks import CheckedEntry, check_combinations, combination
from harness.workspace.inspection.unstated_limits import extra_problems, key_problems, numpy_problems
from harness.workspace.inspection.version_problems import (
    answered,
    check_problems,
    involved_axes,
    known_problems,
    not_answered,
)
from harness.workspace.planning.open_plan import inspect_this_host, patch_sources

MOST_UNREAD = 5
#: The label of a build. The pack has the metadata of one wheel of a release, and those of others name others.
_LOCAL = re.compile(r"(?<=\d)\+[\w.]+")


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """What to look at. given: axis -> value. patched: packages whose files were altered on purpose."""

    given: Mapping[str, str] = field(default_factory=dict)
    files: bool = True
    change: bool = True
    patched: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """An inventory, with the environment itself if its files can be read."""

    inventory: Inventory
    installation: Installation | None = None
    distributions: tuple[Distribution, ...] = ()

    def to_install(self) -> OpenedSource:
        """The same list as one that pip is to install; InputError for an environment or an image."""
        if self.inventory.kind.has_files:
            raise InputError("an environment is installed already", fix="pass a list, or omit --to-install")
        return replace(self, inventory=replace(self.inventory, kind=SourceKind.REQUIREMENTS))

    def moved(self, cell: Cell, matrix: Matrix) -> OpenedSource:
        """The same with the versions of another cell. What their releases require is read from the pack."""
        names = {axis: normal_package(matrix.axes[axis].package) for axis in cell.axes}
        packages = dict(self.inventory.packages)
        for axis, name in names.items():
            known, version = packages.get(name), cell.axes[axis].partition("@")[0]
            if known and public_version(known.version) != version:
                packages[name] = StatedPackage(name=name, version=version, where="a candidate")
        inventory = replace(self.inventory, packages=packages)
        new = {name: one for name, one in packages.items() if one != self.inventory.packages[name]}
        released = released_distributions(
            shipped_pack().pack, replace(inventory, kind=SourceKind.FREEZE), matrix
        )
        distributions = [one for one in self.distributions if one.name not in new]
        distributions += [one for one in released if one.name in new] if self.distributions else []
        return replace(self, inventory=inventory, distributions=tuple(distributions))


def open_environment(interpreter: Path | None) -> OpenedSource:
    """The environment of an interpreter, by default the activated one, with CANN and cards of this host."""
    installation = interpreter_installation(interpreter or default_interpreter(os.environ))
    inventory, distributions = installed_inventory(installation, SourceKind.ENVIRONMENT)
    host = inspect_this_host()
    inventory = replace(inventory, cann=host.cann, driver=host.driver, soc=host.soc)
    return OpenedSource(inventory=inventory, installation=installation, distributions=distributions)


def open_folder(folder: Path) -> OpenedSource:
    """The environment in a folder; nothing of it is run."""
    installation = folder_installation(folder)
    inventory, distributions = installed_inventory(installation, SourceKind.ENVIRONMENT)
    return OpenedSource(inventory=inventory, installation=installation, distributions=distributions)


def open_image(file: Path, folder: Path) -> OpenedSource:
    """The environment in a saved container image. folder: an empty one for copies of its files."""
    image = read_image(file, folder)
    installation = image_installation(image, str(file))
    inventory, distributions = installed_inventory(installation, SourceKind.IMAGE)
    inventory = replace(inventory, cann=image.cann, unread=(*inventory.unread, *image.unread[:MOST_UNREAD]))
    return OpenedSource(inventory=inventory, installation=installation, distributions=distributions)


def open_text(data: bytes, where: str) -> OpenedSource:
    """A list of packages; InputError if it is none."""
    inventory = read_list(data[: MAX_BYTES + 1], where)
    if not inventory.packages and not inventory.ranges:
        raise InputError(
            "no package with a version was found",
            where=Location(where),
            why=inventory.unread[0] if inventory.unread else "it is empty",
            fix="pass the output of pip freeze, pip list or collect_env, or a requirements file",
        )
    return OpenedSource(inventory=inventory)


def inspect_source(
    settings: Settings, matrix: Matrix, opened: OpenedSource, options: InspectOptions
) -> Inspection:
    """Judge a source; NothingSelectedError if it has no package of the matrix."""
    inventory = opened.inventory
    axes, refused = inventory.axes(matrix.axes)
    axes = {**axes, **options.given}
    if not any(matrix.axes[axis].package for axis in axes):
        raise NothingSelectedError(
            "none of the packages is one that the matrix knows",
            why=f"{len(inventory.packages)} packages in {inventory.where}",
            fix="npu-matrix advise shows which packages belong together",
        )
    related = _related(settings, matrix, opened)
    cell = combination(matrix, axes, _others(inventory, matrix, related.names), inventory.where)
    problems = _ranges(inventory, matrix)
    looked, left = [f"{len(inventory.packages)} packages"], [*refused, *inventory.unread, *related.left_out]
    if opened.distributions:
        looked.append("requirements of all packages")
    if opened.installation is not None and options.files:
        found, seen, unseen = environment_problems(opened.installation, opened.distributions, options.patched)
        problems, looked, left = [*problems, *found], [*looked, *seen], [*left, *unseen]
    elif opened.installation is not None:
        left.append("files and shared libraries (--no-files)")
    else:
        left.append("files and shared libraries: a list of versions has none")
    try:
        entries = check_combinations(settings, [cell])[cell.id]
    except HarnessError as error:
        entries = ()
        left.append(f"resolve, npu-ops and api: {error.problems[0].what}")
    problems += combination_problems(settings, matrix, cell, opened, entries, ask_index=options.change)
    problems += _patches(settings, matrix, axes)
    looked += [f"check {name}" for name in answered(entries)]
    left += [*not_answered(entries), *(f"{a}: not known" for a in ("cann", "python") if a not in axes)]
    inspection = Inspection(
        inventory=inventory,
        axes={name: axes[name] for name in matrix.axes if name in axes},
        problems=tuple(problems),
        looked_at=tuple(looked),
        not_looked_at=tuple(dict.fromkeys(left)),
        unanswered=tuple(not_answered(entries)) if entries else ("all checks",),
    ).sorted()
    return _with_change(settings, matrix, inspection, cell, opened) if options.change else inspection


def combination_problems(
    settings: Settings,
    matrix: Matrix,
    cell: Cell,
    opened: OpenedSource,
    entries: Sequence[CheckedEntry],
    *,
    ask_index: bool,
) -> list[Problem]:
    """What is wrong with the versions: what packages require of each other, and what the checks found.

    ask_index: whether an index is asked for releases that satisfy a requirement.
    """
    inventory, pack = opened.inventory, shipped_pack().pack
    stated = opened.distributions or released_distributions(pack, inventory, matrix)
    request, installed = _request(matrix, cell, inventory), inventory.kind.is_installed
    axes = {normal_package(axis.package) for axis in matrix.axes.values() if axis.package}
    movable = () if opened.distributions else axes
    versions = {name: public_version(one.version) for name, one in inventory.packages.items()}
    fetcher = _fetcher(settings, inventory)
    gone = GoneNames(pack=pack, stated=versions, fetcher=fetcher) if pack else None
    required = list(
        requirement_problems(
            stated,
            request,
            ask_index=ask_index,
            movable=movable,
            installed=installed,
            compared=gone.of_unsatisfied if gone and installed else None,
        )
    )
    known = [(one.involved[0], one.involved[1]) for one in required if len(one.involved) == 2]
    return [
        *_host_problems(cell.axes),
        *required,
        *(gone.of_newer_majors(request) if gone else ()),
        *(extra_problems(pack, versions, request) if pack else ()),
        *(numpy_problems(pack, versions, matrix, cell.axes.get("cann", "")) if pack else ()),
        *(key_problems(pack, versions, fetcher) if pack else ()),
        *check_problems(entries, inventory, matrix, cell, known),
        *known_problems(matrix, cell),
    ]


def _with_change(
    settings: Settings, matrix: Matrix, inspection: Inspection, cell: Cell, opened: OpenedSource
) -> Inspection:
    """The inspection with the smallest change of the versions for all problems that versions solve."""
    solvable = [
        one
        for one in inspection.failing
        if one.change is None and one.check in {"constraints", "resolve", "npu-ops", "api", "requirements"}
    ]
    involved = dict.fromkeys(axis for one in solvable for axis in involved_axes(matrix, one))
    movable = [axis for axis in involved if axis in cell.axes and axis not in FIXED]
    if not movable:
        return inspection
    others = [pin.requirement for pin in cell.pins if pin.reason == "found there"]
    left = {one.text for one in inspection.failing if one not in solvable}

    def is_fine(candidate: Cell, entries: Sequence[CheckedEntry]) -> bool:
        moved = opened.moved(candidate, matrix)
        found = combination_problems(settings, matrix, candidate, moved, entries, ask_index=False)
        return not any(one.fails and one.text not in left for one in found)

    try:
        installed = opened.inventory.kind.is_installed
        change = find_change(settings, matrix, cell.axes, movable, others, is_fine, installed=installed)
    except HarnessError:
        return inspection
    if change is None:
        return inspection
    problems = [
        replace(one, change=change) if one in solvable and involved_axes(matrix, one) else one
        for one in inspection.problems
    ]
    return replace(inspection, problems=tuple(problems))


def _related(settings: Settings, matrix: Matrix, opened: OpenedSource) -> RelatedPackages:
    inventory = opened.inventory
    return related_packages(
        inventory,
        opened.distributions,
        shipped_pack().pack,
        {normal_package(axis.package) for axis in matrix.axes.values() if axis.package},
        _fetcher(settings, inventory),
    )


def _fetcher(settings: Settings, inventory: Inventory) -> ReleaseFetcher:
    target = TargetPlatform(
        python=inventory.python or "3.11", arch=inventory.arch or platform.machine(), host=False
    )
    return ReleaseFetcher(cache=settings.cache, command=run_quietly, target=target)


def _others(inventory: Inventory, matrix: Matrix, related: Sequence[str]) -> list[str]:
    """The requirements of packages that are no axis and whose names are compared."""
    provided = {name for consumer in CONSUMERS for name in (*consumer.ranged, *consumer.providers)}
    known = {normal_package(axis.package) for axis in matrix.axes.values() if axis.package}
    return [
        inventory.packages[name].requirement
        for name in sorted({*provided, *related} - known)
        if name in inventory.packages
    ]


def released_distributions(
    pack: SurfacePack | None, inventory: Inventory, matrix: Matrix
) -> list[Distribution]:
    """The packages of a list, with what their releases in the pack require.

    Of packages that are no axis, only requirements of one release (`torchvision` of its `torch`) count,
    because such packages were built for it; of the others a list does not tell what is yielded. Those of the
    axes are compared if they are installed, otherwise by `resolve`. What the list lacks is not missing.
    """
    axes = {normal_package(axis.package) for axis in matrix.axes.values() if axis.package}
    resolved = frozenset() if inventory.kind.is_installed else axes
    found = []
    for name, one in inventory.packages.items():
        release = pack.release(name, public_version(one.version)) if pack and name not in resolved else None
        requires = tuple(
            _LOCAL.sub("", str(requirement))
            for requirement in (release.requirements if release else ())
            if normal_package(requirement.name) in inventory.packages
            and (name in axes or str(requirement.specifier).startswith("=="))
        )
        found.append(Distribution(name=name, version=one.version, folder=Path(), requires=requires))
    return found


def _request(matrix: Matrix, cell: Cell, inventory: Inventory) -> ResolveRequest:
    host = inventory.kind is SourceKind.ENVIRONMENT
    facts: dict[str, object] = {"python": inventory.python or "3.11", "host": host}
    facts["arch"] = inventory.arch or (platform.machine() if host else "aarch64")
    return ResolveRequest.from_facets(pins_facet(cell, matrix.axes), facts)


def _host_problems(axes: Mapping[str, str]) -> list[Problem]:
    misfit = driver_misfit(axes["cann"], axes["driver"]) if {"cann", "driver"} <= axes.keys() else ""
    remedy = "update driver and firmware, or choose an older CANN"
    return (
        [Problem(stage=Stage.FIRST_STEP, fails=True, check="driver", text=misfit, remedy=remedy)]
        if misfit
        else []
    )


def _ranges(inventory: Inventory, matrix: Matrix) -> list[Problem]:
    """Requirements that leave a version of the stack open."""
    packages = {normal_package(axis.package) for axis in matrix.axes.values() if axis.package}
    return [
        Problem(
            stage=Stage.LATER,
            fails=False,
            check="requirements",
            text=f"{text} leaves the version open, so it was not compared",
            remedy="state one version with ==",
        )
        for text in inventory.ranges
        if required_package(text) in packages
    ]


def _patches(settings: Settings, matrix: Matrix, axes: Mapping[str, str]) -> list[Problem]:
    """Faults of these releases that patches of npu-matrix mend."""
    sources = patch_sources(settings, matrix)
    problems = []
    for upstream in (one for one in sources.upstreams if one in axes):
        selected = [patch for patch in sources.select(upstream, axes) if not patch.unread]
        if selected:
            names = ", ".join(patch.id for patch in selected)
            problems.append(
                Problem(
                    stage=Stage.LATER,
                    fails=False,
                    check="patches",
                    text=f"{upstream} {axes[upstream]} has {len(selected)} faults that patches mend: {names}",
                    remedy="npu-matrix patches apply",
                )
            )
    return problems
