"""Major releases of a required package that came out after the release that requires it.

Who writes `transformers>=4.55` cannot know what 5.0 removes. Names that are used at import are compared by
`api`; what is called later on objects of another package is not seen there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from harness.compat.knowledge.pack_file import PackedRelease
from harness.compat.knowledge.surface_pack import SurfacePack
from harness.sources.packages.lockfile import normal_name


@dataclass(frozen=True, kw_only=True)
class NewerMajor:
    """newest: the newest release of the required package when `package` was published."""

    package: str
    version: str
    published: str
    requirement: str
    needs: str
    installed: str
    newest: str

    def __str__(self) -> str:
        return (
            f"{self.needs} {self.installed} is of a major release that did not exist when {self.package} "
            f"{self.version} was published ({self.published}, newest {self.needs} {self.newest}); it "
            f"requires {self.requirement}, and says nothing about later major releases"
        )


def newer_majors(
    pack: SurfacePack, stated: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[NewerMajor]:
    """Every pair of stated packages (normalised name -> version) of which the pack has the dates.

    environment: the marker variables of the target platform. Requirements of extras are left out, and those
    that the stated version does not satisfy.
    """
    for name, version in stated.items():
        own, surface = _release(pack, name, version), pack.release(name, version)
        if own is None or surface is None or not own.uploaded:
            continue
        for requirement in surface.requirements:
            needs = normal_name(requirement.name)
            installed = _parsed(stated.get(needs, ""))
            marker = requirement.marker
            if installed is None or not requirement.specifier.contains(installed, prereleases=True):
                continue
            if marker is not None and not marker.evaluate({**environment, "extra": ""}):
                continue
            newest = newest_until(pack, needs, own.uploaded)
            if newest is not None and newest.major < installed.major:
                yield NewerMajor(
                    package=name,
                    version=version,
                    published=own.uploaded,
                    requirement=f"{requirement.name}{requirement.specifier}",
                    needs=needs,
                    installed=stated[needs],
                    newest=str(newest),
                )


def newest_until(pack: SurfacePack, package: str, date: str) -> Version | None:
    """The newest release of a package that was published until a date."""
    known = [
        release
        for one in pack.releases(package)
        if one.uploaded and one.uploaded <= date and (release := _parsed(one.version))
    ]
    return max(known, default=None)


def published(pack: SurfacePack, package: str, version: str) -> str:
    """When a release was published, "" if the pack does not say so."""
    own = _release(pack, package, version)
    return own.uploaded if own else ""


def _release(pack: SurfacePack, name: str, version: str) -> PackedRelease | None:
    wanted = _parsed(version)
    return next((one for one in pack.releases(name) if wanted and _parsed(one.version) == wanted), None)


def _parsed(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
