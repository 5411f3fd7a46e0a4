"""Lower bounds of optional requirements, for packages that are there.

A package names an extra after another one (`torch>=2.4; extra == "torch"`) to state with which releases it
can be used at all. transformers switches PyTorch off below that bound, and its trainer refuses an older
accelerate. Upper bounds and exact versions say what was tested: verl 0.8.0 says vllm<=0.12.0, and its guide
installs 0.18.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.compat.knowledge.surface_pack import SurfacePack
from harness.sources.packages.lockfile import normal_name

_FLOORS = frozenset({">=", ">"})


@dataclass(frozen=True, kw_only=True)
class BelowFloor:
    """A stated release that is below the lower bound of an optional requirement of another one."""

    package: str
    version: str
    needs: str
    floor: str
    stated: str

    def __str__(self) -> str:
        return (
            f"{self.package} {self.version} can be used with {self.needs}{self.floor} (its extra "
            f"{self.needs!r}), but {self.needs} {self.stated} is stated"
        )


def below_floors(
    pack: SurfacePack, stated: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[BelowFloor]:
    """Those of the stated packages (normalised name -> version). environment: the marker variables."""
    for package, version in stated.items():
        release = pack.release(package, version)
        for requirement in release.requirements if release else ():
            needs = normal_name(requirement.name)
            found = _parsed(stated.get(needs, ""))
            floor = _floor(requirement, needs, environment)
            # A development build of a release has what that release has.
            if floor and found is not None and not floor.contains(found.base_version):
                yield BelowFloor(
                    package=package, version=version, needs=needs, floor=str(floor), stated=stated[needs]
                )


def _floor(requirement: Requirement, needs: str, environment: Mapping[str, str]) -> SpecifierSet | None:
    """The lower bounds of a requirement that is in force with the extra of its name, and not without."""
    marker = requirement.marker
    if marker is None or "extra" not in str(marker) or marker.evaluate({**environment, "extra": ""}):
        return None
    if not any(marker.evaluate({**environment, "extra": name}) for name in (needs, requirement.name)):
        return None
    clauses = [str(one) for one in requirement.specifier if one.operator in _FLOORS]
    return SpecifierSet(",".join(clauses)) if clauses else None


def _parsed(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
