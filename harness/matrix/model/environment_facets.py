"""The facets that checks read as typed values: pins, platform, and violated constraints of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: In a patch facet, the key of an entry that stands for patches which are not known.
UNREAD = "unread"


@dataclass(frozen=True, kw_only=True)
class PinnedSource:
    """A package built from a repository. commit: a commit or tag; "" if no tag is known for the version."""

    package: str
    version: str
    commit: str = ""
    repository: str = ""


@dataclass(frozen=True, kw_only=True)
class PinnedOverride:
    """A requirement that replaces what one package (`of`) requires of another one, and why.

    yields_to: instead of `requirement`, the package whose requirements replace contradicting ones of `of`.
    """

    of: str
    requirement: str
    reason: str = ""
    source: str = ""
    yields_to: str = ""

    def __str__(self) -> str:
        if self.yields_to:
            return f"requirements of {self.yields_to} instead of contradicting ones of {self.of}"
        return f"{self.requirement} instead of what {self.of} requires"


@dataclass(frozen=True, kw_only=True)
class PinsFacet:
    """The facet `pins`: the requirements from which the environment of a cell is resolved.

    requirements: packages from the package index. overrides: requirements that replace those of one package.
    index: package -> additional indexes that may have it; they are searched if the user's own indexes do not.
    build_env: package -> environment variables that its build needs.
    Positions and the reasons of pins are not part of it, because changing them must not rerun checks. The
    reasons of overrides are, because `resolve` states them with what they hide.
    """

    requirements: tuple[str, ...] = ()
    overrides: tuple[PinnedOverride, ...] = ()
    from_source: tuple[PinnedSource, ...] = ()
    index: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    build_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def indexes_of(self, packages: Iterable[str]) -> tuple[str, ...]:
        """The additional indexes of these packages (normalised names), each once."""
        urls = (url for package in packages for url in self.index.get(package, ()))
        return tuple(dict.fromkeys(urls))


@dataclass(frozen=True, kw_only=True)
class PlatformFacet:
    """The facet `platform`. host: whether the cell runs on this host."""

    python: str
    arch: str
    host: bool = False


@dataclass(frozen=True, kw_only=True)
class ViolatedRule:
    """A constraint or published table of matrix.yaml that the versions of a cell violate.

    rule: its name in matrix.yaml. kind: a value of `ViolationKind`.
    override: why a requirement may be violated, "" if matrix.yaml has no override for it.
    """

    rule: str
    kind: str
    what: str
    reason: str
    source: str
    override: str = ""


@dataclass(frozen=True, kw_only=True)
class ConstraintsFacet:
    """The facet `constraints`. compared: how many constraints and tables are about versions of the cell."""

    compared: int
    violated: tuple[ViolatedRule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UnreadPatches:
    """Patches that a cell has, and that are not known: no mirror has the commit of the axis they are in."""

    axis: str
    version: str
    commit: str
    reason: str
    remedy: str
