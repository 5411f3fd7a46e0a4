"""The problems of installed files: altered, missing and overwritten ones, libraries, and requirements."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

from harness.compat.inspection.distributions import Distribution, Installation, leftovers
from harness.compat.inspection.file_faults import ComparedFiles, FaultKind, FileFault, compare_files
from harness.compat.inspection.installed_requirements import (
    Unsatisfied,
    unsatisfied_requirements,
    wrong_platforms,
)
from harness.compat.inspection.library_faults import ComparedLibraries, LibraryFault, compare_libraries
from harness.compat.resolve.resolve_request import ResolveRequest
from harness.errors import HarnessError
from harness.sources.packages.index_lookup import FINAL_IF_POSSIBLE, PackageIndex
from harness.sources.packages.index_settings import index_environment
from harness.workspace.downloads import run_quietly
from harness.workspace.inspection.gone_names import said_of
from harness.workspace.inspection.inspection_report import Change, Move, Problem, Stage

MOST_SHOWN = 5
#: What is said of a requirement that installed versions do not satisfy and that does not say that they fail.
INSTALLED_OVER = (
    "; pip refuses to install both together, so it was installed over it; the names that are used of it are "
    "compared instead"
)


def file_problems(compared: ComparedFiles, patched: Collection[str]) -> Iterator[Problem]:
    """The problems of files by package. patched: packages whose files were altered on purpose."""
    groups: dict[tuple[str, FaultKind, bool, str], list[FileFault]] = {}
    for one in compared.faults:
        groups.setdefault((one.package, one.kind, one.is_code, one.by), []).append(one)
    for (package, kind, is_code, by), faults in groups.items():
        version = faults[0].version
        names = _shown([fault.path for fault in faults])
        known = kind is FaultKind.ALTERED and package in patched
        reinstall = f"pip install --force-reinstall --no-deps {package}=={version}"
        if kind is FaultKind.MISSING:
            text, stage = f"files of {package} {version} are missing: {names}", Stage.IMPORT
        elif kind is FaultKind.OVERWRITTEN:
            text, stage = f"files of {package} {version} were overwritten by {by}: {names}", Stage.IMPORT
            reinstall = f"pip uninstall {by.partition(' ')[0]}, then {reinstall}"
        elif kind is FaultKind.OUTSIDE:
            text, stage = f"{package} {version} claims files outside of its environment: {names}", Stage.LATER
        else:
            text = f"files of {package} {version} are not those of its release: {names}"
            stage = Stage.NUMBERS
            reinstall += f"; if they were patched on purpose: --patched {package}"
        yield Problem(
            stage=stage if is_code else Stage.LATER,
            fails=is_code and not known and kind is not FaultKind.OUTSIDE,
            check="files",
            text=text + (" (patched on purpose)" if known else ""),
            source="RECORD of the package",
            remedy=reinstall,
        )


def library_problems(compared: ComparedLibraries) -> Iterator[Problem]:
    """The problems of shared libraries; those that are not certain to be loaded, one for each package."""
    open_faults: dict[str, list[LibraryFault]] = {}
    for one in compared.faults:
        if not one.certain:
            open_faults.setdefault(one.package, []).append(one)
            continue
        yield Problem(
            stage=Stage.IMPORT,
            fails=True,
            check="libraries",
            text=f"{one} ({one.package} {one.version})",
            involved=tuple(filter(None, (one.package, one.of))),
            remedy=_library_remedy(one),
        )
    for package, faults in open_faults.items():
        names = _shown(sorted({one.library or ", ".join(one.symbols) for one in faults}))
        yield Problem(
            stage=Stage.LATER,
            fails=False,
            check="libraries",
            text=f"modules of {package} that may never be imported need {names}, which nobody gives",
        )


def _library_remedy(one: LibraryFault) -> str:
    if one.needs_version:
        newer = (
            "a system with a newer C library" if "GLIBC_" in one.needs_version else f"a newer {one.library}"
        )
        return f"use {newer}, or a build of {one.package} for this system"
    if one.of:
        return f"install a {one.package} that was built for this {one.of}, or the {one.of} it was built for"
    return (
        f"install {one.package} {one.version} again, or the package that has {one.library or 'the symbols'}"
    )


def requirement_problems(
    distributions: Sequence[Distribution],
    request: ResolveRequest,
    *,
    ask_index: bool,
    movable: Collection[str] = (),
    installed: bool = True,
    compared: Callable[[Unsatisfied], Sequence[str] | None] | None = None,
) -> Iterator[Problem]:
    """Requirements that these versions do not satisfy, each with the version that does.

    movable: packages for whose requirements the smallest change of the whole combination is searched later.
    installed: whether they are installed; then one that names a release beside the installed one is a remark.
    compared: the names in use that an installed later release lacks; if it lacks none, that is a remark, too.
    """
    found = list(unsatisfied_requirements(distributions, request))
    changes: dict[str, Change | None] = {}
    for one in found:
        if ask_index and one.package not in movable and one.needs not in changes:
            changes[one.needs] = _satisfying(one, found, distributions, request)
        is_near = installed and one.is_near
        gone = compared(one) if compared and not is_near else None
        is_remark = is_near or (gone is not None and not gone)
        stage = Stage.INSTALL if one.installed else Stage.IMPORT
        yield Problem(
            stage=Stage.LATER if is_remark else stage,
            fails=not is_remark,
            check="requirements",
            text=f"{one}{INSTALLED_OVER if is_near else said_of(gone) if gone is not None else ''}",
            source=f"metadata of {one.package} {one.version}",
            involved=(one.package, one.needs),
            change=None if one.package in movable else changes.get(one.needs),
        )
    for sentence in wrong_platforms(distributions, request.python, request.arch):
        yield Problem(
            stage=Stage.IMPORT,
            fails=True,
            check="requirements",
            text=sentence,
            remedy="install the package again with this interpreter",
        )


def _satisfying(
    one: Unsatisfied,
    found: Sequence[Unsatisfied],
    distributions: Sequence[Distribution],
    request: ResolveRequest,
) -> Change | None:
    """The newest release that satisfies what all packages require of it, if its own requirements are met."""
    from dataclasses import replace

    wanted = sorted({other.requirement for other in found if other.needs == one.needs})
    index = PackageIndex(settings=index_environment(os.environ), command=run_quietly)
    try:
        version = index.files(wanted, request.platform, FINAL_IF_POSSIBLE)[0].version
    except (HarnessError, IndexError):
        return None
    known = next((item for item in distributions if item.name == one.needs), None)
    moved = [item for item in distributions if item.name != one.needs]
    present = known or Distribution(name=one.needs, version=version, folder=distributions[0].folder)
    after = [*moved, replace(present, version=version, requires=())]
    left = {(item.package, item.needs) for item in unsatisfied_requirements(after, request)}
    before = {(item.package, item.needs) for item in found}
    if left - before or (one.package, one.needs) in left:
        return None
    move = Move(package=one.needs, before=one.installed, after=version)
    return Change(moves=(move,), passed=("requirements of all installed packages",), open=("its own ones",))


def environment_problems(
    installation: Installation, distributions: Sequence[Distribution], patched: Collection[str]
) -> tuple[list[Problem], list[str], list[str]]:
    """Problems of files and libraries, what was looked at, and what was not."""
    files = compare_files(installation, distributions)
    libraries = compare_libraries(installation, distributions)
    problems = [*file_problems(files, patched), *library_problems(libraries)]
    problems += [
        Problem(
            stage=Stage.LATER,
            fails=False,
            check="files",
            text=f"{path.name} is left from a package that pip did not remove completely",
            remedy=f"delete {path}",
        )
        for path in leftovers(installation.sites)
    ]
    looked = [f"{files.compared} files against RECORD", f"{libraries.compared} shared libraries"]
    return problems, looked, [*files.unread[:MOST_SHOWN], *libraries.unread]


def _shown(names: Sequence[str]) -> str:
    more = len(names) - MOST_SHOWN
    return ", ".join(names[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
