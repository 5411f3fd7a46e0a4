"""The archives of releases: how they are identified, and for which platform they are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

#: The glibc of openEuler 22.03, the oldest system that CANN images are built on.
CROSS_PLATFORM = "manylinux_2_34"


@dataclass(frozen=True, kw_only=True)
class ReleaseArchive:
    """One archive of a release: a wheel or an sdist.

    file: its file name. sha256: the digest that the index or the lock states, as 64 hex digits.
    in_part: only some members were fetched and verified, against the wheel's RECORD. The digest of the whole
    archive was not verified then.
    """

    package: str
    version: str
    file: str
    sha256: str
    in_part: bool = False

    def __str__(self) -> str:
        return f"{self.file} (sha256 {self.sha256[:12]}{', read in part' if self.in_part else ''})"


@runtime_checkable
class ReadsReleases(Protocol):
    """Measurements of a check that reads releases. They are reused while the index has these archives."""

    @property
    def archives_read(self) -> tuple[ReleaseArchive, ...]:
        """What was read."""


@dataclass(frozen=True, kw_only=True)
class TargetPlatform:
    """The platform for which an archive of a release is chosen. host: whether it is this machine."""

    python: str
    arch: str = ""
    host: bool = False

    def arguments(self) -> list[str]:
        """uv's arguments for this platform."""
        platform = [] if self.host else ["--python-platform", f"{self.arch}-{CROSS_PLATFORM}"]
        return ["--python-version", self.python, *platform]


def installer_rank(name: str) -> tuple[bool, bool, bool, bool, str]:
    """Sort key for the files that fit a platform: an installer uses the greatest.

    A wheel for this platform comes before other wheels, and wheels before the sdist. Of several such wheels,
    the one for the most specific Python and the newest system wins.
    """
    python, abi, platform = ([""] * 3 + name.removesuffix(".whl").split("-"))[-3:]
    return (
        name.endswith(".whl"),
        platform != "any",
        abi not in {"none", "abi3"},
        abi != "none",
        platform + python,
    )
