"""The files of a revision, and the settings with which they are planned and run.

A revision from before a repository adopted npu-matrix has no matrix.yaml. It is then judged with the one of
the checkout, so that the change that adopts npu-matrix has a base: what failed before is not its fault.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from harness.errors import InputError, Location
from harness.matrix.reading.load_matrix import load_matrix
from harness.plan.change.revision import Revision, extract_revision
from harness.settings import FILE_NAME, MATRIX_FILE, Settings, load_settings


def settings_of_revision(settings: Settings, revision: Revision, place: Path) -> Settings:
    """Write the files of a revision into `place`; the settings that it has there.

    InputError if the revision has no matrix where it is expected, but elsewhere:
    it could have been moved, and its expected failures with it.
    """
    there = settings_at(settings, extract_revision(settings.root, revision, place))
    if there.path("matrix").is_file():
        return there
    if not is_adopted_here(settings, place / "tree"):
        raise InputError(
            f"there is no {there['matrix']} at {revision}",
            where=Location(there["matrix"]),
            fix="compare with a later revision",
        )
    root = Path(os.path.realpath(settings.root))
    for file in _own_files(settings):
        if file.is_file() and file.is_relative_to(root):
            target = there.root / file.relative_to(root)
            inside = Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(there.root))
            if inside and not os.path.lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    return settings_at(settings, there.root)


def is_adopted_here(settings: Settings, tree: Path) -> bool:
    """Whether no file of a revision belongs to npu-matrix, and no option names a file."""
    names = {MATRIX_FILE, FILE_NAME}
    return not settings.is_explicit("matrix") and not any(
        names & set(files) for _folder, _folders, files in os.walk(tree)
    )


def _own_files(settings: Settings) -> Iterable[Path]:
    matrix = load_matrix(settings.path("matrix"))
    for file in (settings.path("matrix"), *matrix.included_files, settings.root / FILE_NAME):
        yield Path(os.path.realpath(file.parent)) / file.name


def settings_at(settings: Settings, folder: Path) -> Settings:
    """The settings of a revision that was written into `folder`: its own file, and explicit options.

    A change of the settings file can select another profile or matrix; the base keeps its own. The variables
    of this process are not read, because the command line has set them to the values of this checkout.
    """
    explicit = {name: settings[name] for name in settings.values if settings.is_explicit(name)}
    if "matrix" in explicit:
        explicit["matrix"] = _inside(settings)
    return load_settings(explicit, {}, folder)


def _inside(settings: Settings) -> str:
    """The path of matrix.yaml in the checkout; InputError if it is elsewhere and so has no revisions."""
    file = settings.path("matrix")
    folder = os.path.relpath(os.path.realpath(file.parent), os.path.realpath(settings.root))
    name = Path(folder) / file.name
    if name.parts[0] == os.pardir:
        raise InputError(
            "the matrix lies outside of this checkout, so it has no revision here",
            where=Location(file),
            fix="select a file in the checkout with --matrix, or the checkout of this file with --root",
        )
    return str(name)
