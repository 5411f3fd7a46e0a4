"""Compares installed files with the RECORD of their packages: altered, missing and overwritten files.

RECORD: https://packaging.python.org/en/latest/specifications/recording-installed-packages/. Symbolic links
are followed only inside the environment, and no path of a RECORD leaves it.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compat.inspection.distributions import Distribution, Installation
from harness.sources.packages.wheel_record import ALGORITHMS, COMPILED, MAX_RECORD_BYTES, recorded_files

CHUNK = 1 << 20
#: Files without which an import fails.
CODE = (".py", ".so", ".pyd")


class FaultKind(str, enum.Enum):
    """What is wrong with a file. OVERWRITTEN: it is the file of another package with the same path."""

    MISSING = "missing"
    ALTERED = "altered"
    OVERWRITTEN = "overwritten"
    OUTSIDE = "outside"


@dataclass(frozen=True, kw_only=True)
class FileFault:
    """A file that is not as its package installed it. by: the package that overwrote it, or ""."""

    kind: FaultKind
    package: str
    version: str
    path: str
    by: str = ""

    @property
    def is_code(self) -> bool:
        """Whether it is a module or a shared library."""
        return self.path.endswith(CODE) or ".so." in self.path


@dataclass(frozen=True, kw_only=True)
class ComparedFiles:
    """faults: in the order of packages. compared: how many were read. unread: packages without RECORD."""

    faults: tuple[FileFault, ...]
    compared: int
    unread: tuple[str, ...]


def compare_files(installation: Installation, distributions: Sequence[Distribution]) -> ComparedFiles:
    """Read every recorded file of the packages and compare its digest (SHA-256, SHA-384 or SHA-512)."""
    records: dict[Distribution, dict[str, tuple[str, str]]] = {}
    unread: list[str] = []
    for one in distributions:
        record = _record(one)
        if record is None:
            unread.append(f"{one.name} {one.version} has no RECORD that can be read")
        else:
            records[one] = record
    owners: dict[Path, list[tuple[Distribution, str]]] = {}
    for one, record in records.items():
        for path, (digest, _size) in record.items():
            owners.setdefault(_place(one, path), []).append((one, digest))
    found: list[FileFault] = []
    compared = 0
    for one, record in records.items():
        for path, (digest, _size) in sorted(record.items()):
            if path.endswith(COMPILED) or not digest:
                continue
            place = _place(one, path)
            kind, by = _state(place, digest, installation, owners[place])
            compared += kind is not FaultKind.OUTSIDE
            if kind is not None:
                found.append(FileFault(kind=kind, package=one.name, version=one.version, path=path, by=by))
    return ComparedFiles(faults=tuple(found), compared=compared, unread=tuple(unread))


def recorded_names(distributions: Sequence[Distribution]) -> Iterator[tuple[str, Distribution]]:
    """The name of each recorded file, without its folder, with its package."""
    for one in distributions:
        for path in _record(one) or {}:
            yield path.rpartition("/")[2], one


def _record(one: Distribution) -> dict[str, tuple[str, str]] | None:
    try:
        with (one.folder / "RECORD").open("rb") as stream:
            return recorded_files(stream.read(MAX_RECORD_BYTES))
    except (OSError, ValueError):
        return None


def _place(one: Distribution, path: str) -> Path:
    return Path(os.path.normpath(one.site / path))


def _state(
    place: Path, digest: str, installation: Installation, owners: Sequence[tuple[Distribution, str]]
) -> tuple[FaultKind | None, str]:
    """What is wrong with a file, and the package that overwrote it."""
    if not _is_inside(place, installation):
        return FaultKind.OUTSIDE, ""
    algorithm, _, expected = digest.partition("=")
    if algorithm not in ALGORITHMS:
        return None, ""
    try:
        found = _digest(place, algorithm)
    except (FileNotFoundError, NotADirectoryError):
        return FaultKind.MISSING, ""
    except OSError:
        return FaultKind.ALTERED, ""
    if found == expected.rstrip("="):
        return None, ""
    for other, theirs in owners:
        name, _, value = theirs.partition("=")
        if theirs != digest and name in ALGORITHMS and _digest(place, name) == value.rstrip("="):
            return FaultKind.OVERWRITTEN, f"{other.name} {other.version}"
    return FaultKind.ALTERED, ""


def _is_inside(place: Path, installation: Installation) -> bool:
    """Whether a path, with the links on its way, is below the prefix of one of the site-packages."""
    real = Path(os.path.realpath(place))
    for site in installation.sites:
        resolved = Path(os.path.realpath(site))
        # lib/python3.11/site-packages: scripts and data files are up to three folders above.
        above = resolved.parents[2] if len(resolved.parents) > 3 else resolved
        named = resolved.parent.name.startswith("python3") and resolved.parent.parent.name.startswith("lib")
        if real.is_relative_to(above if named else resolved):
            return True
    return False


def _digest(place: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm)
    with place.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
