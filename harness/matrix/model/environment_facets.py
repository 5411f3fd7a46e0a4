"""The facets that determine the environment of a cell: its pins and its platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PinnedSource:
    """A package built from a repository. commit: a commit or tag; "" if no tag is known for the version."""

    package: str
    version: str
    commit: str = ""
    repository: str = ""


@dataclass(frozen=True, kw_only=True)
class PinsFacet:
    """The facet `pins`: the requirements from which the environment of a cell is resolved.

    requirements: packages from the package index. overrides: requirements that replace those of packages.
    index: additional package indexes. build_env: package -> environment variables that its build needs.
    Reasons and positions are not part of it, because changing them must not rerun checks.
    """

    requirements: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    from_source: tuple[PinnedSource, ...] = ()
    index: tuple[str, ...] = ()
    build_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlatformFacet:
    """The facet `platform`. host: whether the cell runs on this host."""

    python: str
    arch: str
    host: bool = False
