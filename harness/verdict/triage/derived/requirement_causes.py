"""Derives a cause from the metadata of a package: it requires another version of the other package.

The requirements of a release stand in the surface pack. Only a requirement between the two packages of the
failed use counts: an environment often breaks other requirements and works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from harness.compat.knowledge.surface_pack import SurfacePack
from harness.sources.packages.lockfile import normal_name
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.logged_versions import LoggedVersion
from harness.verdict.triage.derived.published_pairs import PublishedPairs

#: A plugin replaces the compiled operators of vllm, and is released for another torch than vllm requires.
REPLACED_BY = {"vllm": "vllm-ascend"}


@dataclass(frozen=True, kw_only=True)
class RequirementCauses:
    """Derives causes from the requirements of the releases that a log shows."""

    pack: SurfacePack
    versions: Mapping[str, LoggedVersion]
    pairs: PublishedPairs

    def causes(self, requirer: str, others: tuple[str, ...]) -> Iterator[DerivedCause]:
        """Every requirement of `requirer` on one of `others` that the versions in the log break."""
        shown = self.versions.get(requirer)
        release = self.pack.release(requirer, _plain(shown.version)) if shown else None
        if release is None or shown is None or REPLACED_BY.get(requirer) in self.versions:
            return
        for requirement in release.requirements:
            name = normal_name(requirement.name)
            installed = self.versions.get(name)
            if name not in others or installed is None or not _is_broken(requirement, installed.version):
                continue
            who = f"{requirer} {shown.version}"
            wanted = f"{name}{requirement.specifier}"
            yield DerivedCause(
                degree=Degree.PROVEN,
                sentence=f"{who} requires {wanted}, and {name} {installed.version} is installed",
                proof=(f"metadata of {release.label} (surface pack {self.pack.digest[-12:]})",),
                packages=(name, requirer),
                remedy=f"install {wanted}, or a {requirer} that was built for your {name}",
                stacks=self.pairs.nearest_stacks(
                    {one.package: one.version for one in self.versions.values()}
                ),
            )


def _is_broken(requirement: Requirement, installed: str) -> bool:
    marker = requirement.marker
    if marker is not None and ("extra" in str(marker) or not marker.evaluate()):
        return False
    try:
        version = Version(_plain(installed))
    except InvalidVersion:
        return False
    return bool(requirement.specifier) and not requirement.specifier.contains(version, prereleases=True)


def _plain(version: str) -> str:
    """Without the local part: `2.7.1+cpu` is 2.7.1."""
    return version.partition("+")[0]
