"""What a gate can see of a change: which of the changed files a key or the plan reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from harness.ledger.plan_record import PlanRecord
from harness.matrix.version_matrix import Matrix
from harness.package import PACKAGE_ROOT
from harness.patchstack.format.patch_header import FILE_NAME as PATCH_HEADER
from harness.patchstack.stacks.patch_origin import OriginState
from harness.patchstack.stacks.patch_stack import SERIES, imported_origins, upstreams
from harness.plan.change.revision import Revision, changed_files
from harness.plan.keys.code_digests import simulator_modules
from harness.settings import FILE_NAME as SETTINGS_FILE
from harness.settings import Settings

#: The folder with the patch stacks of a checkout.
PATCHES = "patches"


def change_of_checkout(settings: Settings, revision: Revision) -> tuple[str, ...]:
    """The files that differ from the revision, without those that this program writes."""
    root = os.path.realpath(settings.root)
    written = [
        PurePosixPath(os.path.relpath(os.path.realpath(settings.path(name)), root))
        for name in ("state", "reports")
    ]
    return tuple(
        file
        for file in changed_files(settings.root, revision)
        if not any(PurePosixPath(file).is_relative_to(folder) for folder in written)
    )


def unread_files(
    settings: Settings, changed: Collection[str], plans: Collection[PlanRecord]
) -> tuple[str, ...]:
    """Those of the changed files (relative to the checkout) that no key of these plans reads, sorted.

    A deleted patch is read by the plan of the base. Symbolic links are followed, so that the file that has
    the content counts.
    """
    root = Path(os.path.realpath(settings.root))
    read = {_inside(settings.root / file, root) for file in _inputs(settings, plans)}
    return tuple(sorted(file for file in changed if _inside(settings.root / file, root) not in read))


def import_problems(settings: Settings, changed: Collection[str]) -> tuple[str, ...]:
    """Imported patches that differ from their origin, or whose origin the change deletes."""
    return tuple(
        str(found.problem)
        for found in imported_origins(settings.root / PATCHES)
        if found.state is OriginState.CHANGED
        or (found.state is OriginState.MISSING and found.file in changed)
    )


def missing_origins(settings: Settings) -> tuple[str, ...]:
    """A sentence about the imported patches that cannot be compared with their origin."""
    missing = [
        found.file
        for found in imported_origins(settings.root / PATCHES)
        if found.state is OriginState.MISSING
    ]
    if not missing:
        return ()
    return (
        f"not looked at: the origins of {len(missing)} imported patches, not here: {', '.join(missing[:3])}",
    )


def matrix_changes(here: Matrix, base: Matrix, profile: str) -> tuple[str, ...]:
    """Sentences about changes of the matrix that no key shows: other profiles, and expected failures."""
    profiles = _changes(base.profiles, here.profiles)
    expected = _changes(base.expectations, here.expectations)
    return (
        *(
            f"not looked at: the change {verb} profile {name}, which this gate does not plan"
            for name, verb in profiles.items()
            if name != profile
        ),
        *(f"the change {verb} the expected failure {name}" for name, verb in expected.items()),
    )


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, str]:
    """Name -> what happened to the entry of this name; equal entries are left out."""
    names = dict.fromkeys([*before, *after])
    verbs = {
        name: "adds" if name not in before else "removes" if name not in after else "modifies"
        for name in names
    }
    return {name: verb for name, verb in verbs.items() if before.get(name) != after.get(name)}


def _inside(file: Path, root: Path) -> str:
    return os.path.relpath(os.path.realpath(file), root)


def _inputs(settings: Settings, plans: Collection[PlanRecord]) -> Iterator[str]:
    """The files that decide which tasks a plan has, and those whose content is in a key."""
    yield settings["matrix"]
    yield SETTINGS_FILE
    for upstream in upstreams(settings.root / PATCHES):
        yield f"{PATCHES}/{upstream}/{SERIES}"
    for found in imported_origins(settings.root / PATCHES):
        yield found.file
    for plan in plans:
        for task in plan.tasks:
            for facet, value in task.facets.items():
                if facet.startswith("patches[") and isinstance(value, list):
                    for patch in value:
                        file = PurePosixPath(str(patch.get("file", "")))
                        yield str(file)
                        yield str(file.parent / PATCH_HEADER)
        if PACKAGE_ROOT.parent == settings.root:
            yield from map(_file_of_module, (name for name, _digest in plan.code.modules))
    if PACKAGE_ROOT.parent == settings.root:
        yield from map(_file_of_module, simulator_modules(PACKAGE_ROOT, settings.cache))


def _file_of_module(name: str) -> str:
    """The file of a module, or of a data file of the package, as code records name them."""
    package = PACKAGE_ROOT.name
    if name != package and not name.startswith(f"{package}."):
        return f"{package}/{name}"
    path = name.replace(".", "/")
    return f"{path}/__init__.py" if (PACKAGE_ROOT.parent / path).is_dir() else f"{path}.py"
