"""Lock files: every package of an environment with its exact version and the digests of its files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.errors import InputError, Location

HASH = re.compile(r"--hash=(?P<algorithm>[a-z0-9]+):(?P<digest>[0-9a-f]+)")


@dataclass(frozen=True, kw_only=True)
class LockedPackage:
    """One pinned package. `via` names the packages that require it; hashes have the form `sha256:...`."""

    name: str
    version: str
    hashes: tuple[str, ...]
    via: tuple[str, ...] = ()
    line: int = 0

    @property
    def requirement(self) -> str:
        """The package as one line of a requirements file."""
        return " ".join((f"{self.name}=={self.version}", *(f"--hash={digest}" for digest in self.hashes)))


def parse_lock(text: str, file: str = "lock.txt") -> tuple[LockedPackage, ...]:
    """The packages of a lock, sorted by name; InputError for a line without an exact version."""
    packages = [_package(line, block, via, file) for line, block, via in _blocks(text)]
    return tuple(sorted(packages, key=lambda package: package.name))


def normal_name(name: str) -> str:
    """The normalised name of a distribution: lower case, with dashes."""
    return canonicalize_name(name)


def _blocks(text: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    start = 0
    parts: list[str] = []
    comments: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#"):
            comments.append(stripped.lstrip("# "))
            continue
        if not stripped:
            continue
        if not line[0].isspace():
            if parts:
                yield start, " ".join(parts), _via(comments)
            # A comment before the first package is the header of the file.
            start, parts, comments = number, [], []
        parts.append(stripped.removesuffix("\\").strip())
    if parts:
        yield start, " ".join(parts), _via(comments)


def _via(comments: Iterable[str]) -> tuple[str, ...]:
    """The packages in the comments after a package; the first comment starts with `via`."""
    return tuple(name for comment in comments if (name := comment.removeprefix("via").strip()))


def _package(line: int, block: str, via: tuple[str, ...], file: str) -> LockedPackage:
    head = block.split("--hash", 1)[0].strip()
    try:
        requirement = Requirement(head)
    except InvalidRequirement as error:
        raise InputError(
            "this line of a lock file does not name a package", where=Location(file, line), why=str(error)
        ) from error
    pins = [item.version for item in requirement.specifier if item.operator == "=="]
    if len(pins) != 1 or "*" in pins[0]:
        raise InputError(
            f"{requirement.name} is not pinned to one version",
            where=Location(file, line),
            fix="create the lock again with `npu-matrix run --check resolve`",
        )
    hashes = tuple(f"{match['algorithm']}:{match['digest']}" for match in HASH.finditer(block))
    return LockedPackage(
        name=normal_name(requirement.name), version=pins[0], hashes=hashes, via=via, line=line
    )
