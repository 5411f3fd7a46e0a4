"""What the check `resolve` measures. The check `environment` reads it too, so it lies below both packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.measurements import measurement_format
from harness.sources.packages.release_archive import ReleaseArchive
from harness.sources.packages.uv_errors import UvDependency, UvDerivation, UvFailureKind
from harness.sources.redact import redact_url


@dataclass(frozen=True, kw_only=True)
class SourcePackage:
    """A package that is built from a repository. `commit` is a commit or a tag, "" when neither is known."""

    package: str
    version: str = ""
    commit: str = ""
    repository: str = ""


@dataclass(frozen=True, kw_only=True)
class RequirementOverride:
    """A requirement that replaces what the package `of` requires, and why. `of` is "" in older outcomes."""

    requirement: str
    of: str = ""
    reason: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class HiddenRequirement:
    """A requirement of the release `of` that the lock violates, and the override that allows this.

    locked: the version in the lock, "" if the lock does not have the package.
    """

    of: str
    version: str
    requirement: str
    locked: str
    reason: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ResolvedPackage:
    """A package of the lock. `via`: the packages that require it.

    file, sha256: the archive that is installed on the target platform; "" in outcomes of older versions.
    """

    name: str
    version: str
    via: tuple[str, ...] = ()
    file: str = ""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class ResolveProblem:
    """One reason why there is no lock.

    subject: the package that cannot be had, with its version range; "" for a conflict.
    blamed: the packages involved, most specific first. contested: packages required in incompatible versions.
    chain: uv's derivation of the conflict. text: the problem as a sentence. remedy: "" when none is known.
    undecided: whether an index that may have the package did not respond.
    """

    kind: UvFailureKind
    text: str
    remedy: str
    subject: str = ""
    blamed: tuple[str, ...] = ()
    contested: tuple[str, ...] = ()
    chain: tuple[UvDerivation, ...] = ()
    dependencies: tuple[UvDependency, ...] = ()
    hints: tuple[str, ...] = ()
    undecided: bool = False


@dataclass(frozen=True, kw_only=True)
class ResolveMeasured:
    """The result of resolving a cell's pins.

    target: the platform in words. host: whether the target is this machine.
    unreachable: extra package indexes that did not respond and were left out.
    source_requirements: what packages built from source require, where a mirror has their commit.
    from_sdist: packages without a wheel for the target.
    archives: remarks on the archives of the stack's packages. refusals: why pip would refuse one of them.
    unusable: why one of them is damaged or contradicts its own RECORD.
    indexes: additional indexes that were searched because the user's own ones lack a package.
    hidden: requirements that the lock violates because overrides replace them. attempts: how often uv ran.
    read: packages of the stack whose archive was read. built_for: package -> the chip that its wheel states.
    """

    resolved: bool
    target: str = ""
    host: bool = False
    packages: tuple[ResolvedPackage, ...] = ()
    problems: tuple[ResolveProblem, ...] = ()
    timed_out: bool = False
    unreachable: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    from_source: tuple[SourcePackage, ...] = ()
    source_requirements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    from_sdist: tuple[str, ...] = ()
    overrides: tuple[RequirementOverride, ...] = ()
    hidden: tuple[HiddenRequirement, ...] = ()
    archives: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    built_for: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 0
    seconds: float = 0.0

    @property
    def locked_archives(self) -> dict[str, ReleaseArchive]:
        """Package -> its archive in the lock; empty without a lock."""
        return {
            package.name: ReleaseArchive(
                package=package.name, version=package.version, file=package.file, sha256=package.sha256
            )
            for package in self.packages
            if package.sha256
        }

    @property
    def archives_read(self) -> tuple[ReleaseArchive, ...]:
        """The archives of the stack's own packages."""
        locked = self.locked_archives
        return tuple(locked[name] for name in self.read if name in locked)

    def reachable(self, indexes: Iterable[str]) -> tuple[str, ...]:
        """The additional indexes that the lock was made with; none without a lock."""
        return tuple(url for url in indexes if self.resolved and redact_url(url) not in self.unreachable)


#: The facets of the check `resolve`. Checks that read its lock have these facets too.
RESOLVE_FACETS = ("pins", "platform")
RESOLVE_FORMAT = measurement_format(ResolveMeasured, version=1)
