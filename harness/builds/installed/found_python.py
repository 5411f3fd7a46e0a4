"""An environment that exists: what an interpreter has installed, and how that differs from a cell."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from harness.builds.installed.file_manifest import path_list
from harness.cell_program.found_packages import ANSWER, CHANGED
from harness.digest import digest_json
from harness.errors import InfrastructureError, InputError
from harness.matrix.cells.pins import required_package
from harness.matrix.model.environment_facets import PinnedSource, PinsFacet, PlatformFacet
from harness.measurements import read_shape
from harness.package import data_file
from harness.sources.git.mirrors import short_revision
from harness.sources.packages.lockfile import normal_name

#: Its setting: the interpreter of the environment. Empty means `python3` of PATH.
PYTHON_VARIABLE = "NPU_MATRIX_FOUND_PYTHON"
READ_SECONDS, VERIFY_SECONDS = 120.0, 900.0


@dataclass(frozen=True, kw_only=True)
class FoundPackage:
    """An installed package. commit: of its repository, "" if nothing states it. folder: of an editable one.

    record: digest of its RECORD. others: versions that further metadata of it in the same folder names.
    changed: its files that neither its RECORD nor its commit describes.
    """

    version: str
    record: str
    commit: str = ""
    folder: str = ""
    others: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def why_unidentified(self) -> str:
        """Why its version and commit do not tell what is installed, or ""."""
        if self.folder and not self.commit:
            return f"is installed from the folder {self.folder}, of which nothing states the commit"
        if self.changed:
            files = path_list([path.rpartition("-packages/")[2] for path in self.changed])
            return f"has files that neither its RECORD nor its commit describes: {files}"
        return ""


@dataclass(frozen=True, kw_only=True)
class FoundPython:
    """An interpreter with what it has installed, by normalised names.

    elsewhere: name -> folder of PYTHONPATH or of the user's site, from which checks import nothing.
    deviations: path -> SHA-256 of each file that neither a RECORD nor a commit describes; "" if missing.
    """

    python: str
    version: str
    prefix: str
    site_packages: str
    packages: Mapping[str, FoundPackage]
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    deviations: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Digest of the packages and their files, part of the keys of cells that are used as found."""
        deviations = dict(self.deviations)
        return digest_json(
            {"version": self.version, "packages": dict(self.packages), "deviations": deviations}
        )


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """The output of `found_packages`."""

    version: str
    prefix: str
    site_packages: str
    packages: Mapping[str, FoundPackage]
    elsewhere: Mapping[str, str]
    deviations: Mapping[str, str]


def found_python(environ: Mapping[str, str]) -> str:
    """The interpreter that the setting names, else that of PATH; InputError if there is none."""
    named = environ.get(PYTHON_VARIABLE) or "python3"
    python = shutil.which(named, path=environ.get("PATH"))
    if python is None:
        raise InputError(
            f"there is no Python {named!r} to use as found",
            fix="name the interpreter that has the packages: --found-python PATH",
        )
    # Not resolved: a virtual environment's interpreter is a link.
    return str(Path(python).absolute())


def read_found(python: str) -> FoundPython:
    """What an interpreter has installed; InfrastructureError if it cannot be asked."""
    facts = read_shape(_Facts, json.loads(_ask(python, (), READ_SECONDS)))
    return FoundPython(
        python=python,
        version=facts.version,
        prefix=facts.prefix,
        site_packages=facts.site_packages,
        packages=facts.packages,
        elsewhere=facts.elsewhere,
        deviations=facts.deviations,
    )


def why_other(found: FoundPython, identity: str, deviations: Mapping[str, str]) -> str:
    """How an environment differs from the one that had this identity and these deviations, or ""."""
    if found.identity == identity:
        return ""
    now = found.deviations
    edited = sorted(path for path in now.keys() | deviations if now.get(path) != deviations.get(path))
    if not edited:
        return "other packages are installed now"
    return f"these files were edited, added or removed since it was read: {path_list(edited)}"


def changed_files(found: FoundPython, names: Sequence[str]) -> list[str]:
    """How the files of these packages differ from their RECORD, one sentence for each package."""
    return list(json.loads(_ask(found.python, ("--verify", ",".join(names)), VERIFY_SECONDS)))


def compared(found: FoundPython, pins: PinsFacet, platform: PlatformFacet) -> Iterator[str]:
    """How the interpreter and its packages differ from those of the cell, one sentence for each."""
    if found.version != platform.python and not found.version.startswith(f"{platform.python}."):
        yield f"Python is {found.version}; the cell has {platform.python}."
    for text in pins.requirements:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            yield f"The requirement {text} cannot be compared."
            continue
        package = found.packages.get(normal_name(wanted.name))
        if package is None:
            yield f"{text} is not installed."
        elif not wanted.specifier.contains(package.version, prereleases=True):
            yield f"{wanted.name} {package.version} is installed; the cell has {text}."
        elif package.folder:
            yield f"{wanted.name} is installed from the folder {package.folder}, not from its release."
    for source in pins.from_source:
        if difference := _source_difference(found.packages.get(normal_name(source.package)), source):
            yield difference
    yield from _ambiguous(found, named_packages(pins))


def _ambiguous(found: FoundPython, names: Sequence[str]) -> Iterator[str]:
    """Packages of which nobody can say which one a program imports."""
    for name in names:
        package = found.packages.get(name)
        if package is not None and package.others:
            versions = ", ".join((package.version, *package.others))
            yield f"{name} has the metadata of several versions ({versions}): remove it, and install one."
        if name in found.elsewhere:
            yield (
                f"{name} is also in {found.elsewhere[name]} (PYTHONPATH, or packages of this user), from "
                "which checks import nothing: `pip install --no-deps -e` it, or take the folder away."
            )


def _source_difference(package: FoundPackage | None, source: PinnedSource) -> str:
    if package is None:
        return f"{source.package} is not installed."
    if not package.commit:
        return (
            f"{source.package} {package.version} is installed, and nothing states its commit; the cell has "
            f"{short_revision(source.commit)}."
        )
    if not package.commit.startswith(source.commit) or package.commit.endswith(CHANGED):
        return f"{source.package} is installed from {package.commit}; the cell has {source.commit}."
    return ""


def named_packages(pins: PinsFacet) -> list[str]:
    """The normalised names of the packages that the cell pins."""
    names = (required_package(text) for text in pins.requirements)
    return [*filter(None, names), *(normal_name(one.package) for one in pins.from_source)]


def _ask(python: str, arguments: tuple[str, ...], seconds: float) -> str:
    program = str(data_file("cell_program/found_packages.py"))
    try:
        done = subprocess.run(
            # Isolated, so that a folder of modules beside the program is not on the path.
            [python, "-I", program, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise InfrastructureError(
            f"{python} cannot be asked for its packages", why=str(said).strip()[-300:]
        ) from error
    answer = done.stdout.rpartition(f"\n{ANSWER}")[2]
    return answer.partition("\n")[0]
