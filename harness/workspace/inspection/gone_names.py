"""Releases that are newer than a package was written for: whether they lack methods that it calls.

Names whose class is certain are compared by `api`, which tells what cannot be imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.compat.inspection.installed_requirements import COMPILED_AGAINST, Unsatisfied
from harness.compat.inspection.newer_majors import newer_majors
from harness.compat.inspection.removed_names import removed_names
from harness.compat.knowledge.surface_pack import SurfacePack
from harness.compat.resolve.replaced_requirements import target_environment
from harness.compat.resolve.resolve_request import ResolveRequest
from harness.errors import HarnessError
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.inspection.inspection_report import Problem, Stage

_MOST_NAMES = 3


@dataclass(frozen=True, kw_only=True)
class GoneNames:
    """Compares stated releases (package -> version) with earlier ones, beyond what `api` compares."""

    pack: SurfacePack
    stated: Mapping[str, str]
    fetcher: ReleaseFetcher

    def of(self, package: str, needs: str, before: str) -> tuple[str, ...] | None:
        """What `package` uses of `needs`, the release `before` has and the stated one has not, in words.

        None if this is not known, because a release was not read.
        """
        old, new = self.pack.release(needs, before), self.pack.release(needs, self.stated[needs])
        if old is None or new is None:
            return None
        others = [
            surface
            for name, version in self.stated.items()
            if name not in (package, needs) and (surface := self.pack.release(name, version))
        ]
        try:
            sources = self.fetcher.sources(package, self.stated[package]).file
            found = tuple(map(str, removed_names(sources, old, new, others)))
        except HarnessError:
            return None
        shown, more = found[:_MOST_NAMES], len(found) - _MOST_NAMES
        return (*shown, f"{more} more use") if more > 0 else shown

    def of_unsatisfied(self, one: Unsatisfied) -> tuple[str, ...] | None:
        """The same for a requirement that permits earlier releases; None if it permits none, or one only."""
        if one.needs in COMPILED_AGAINST or one.needs not in self.stated or one.package not in self.stated:
            return None
        specifier = SpecifierSet(one.requirement.removeprefix(one.needs))
        try:
            installed = Version(one.installed)
            permitted = [Version(release.version) for release in self.pack.releases(one.needs)]
        except InvalidVersion:
            return None
        earlier = [each for each in permitted if each < installed and specifier.contains(each)]
        if any(clause.operator in {"==", "==="} for clause in specifier) or not earlier:
            return None
        return self.of(one.package, one.needs, str(max(earlier)))

    def of_newer_majors(self, request: ResolveRequest) -> Iterator[Problem]:
        """Requirements that say nothing of the major release that is there: a remark if no name is gone."""
        environment = target_environment(request.python, request.arch, host=request.host)
        for one in newer_majors(self.pack, self.stated, environment):
            gone = self.of(one.package, one.needs, one.newest)
            yield Problem(
                stage=Stage.FIRST_STEP if gone else Stage.LATER,
                fails=bool(gone),
                check="requirements",
                text=f"{one}{said_of(gone)}",
                source="dates of the releases on the package index",
                involved=(one.package, one.needs),
                remedy=f"install {one.needs} {one.newest}, or a later {one.package}",
            )


def said_of(gone: Sequence[str] | None) -> str:
    """The end of a sentence about a release that a package was not written for."""
    if gone is None:
        return "; the names that it uses were not compared"
    return f"; it does not have what {'; '.join(gone)}" if gone else "; no name that it uses is gone"
