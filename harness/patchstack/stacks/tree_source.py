"""Which upstream tree the patches of a cell are applied to, as planned and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TreeSource:
    """The source of an upstream tree: the release of a package, or a commit after this release."""

    package: str
    version: str
    commit: str = ""

    @classmethod
    def from_facet(cls, facet: Mapping[str, Any]) -> TreeSource:
        """The source that a facet such as `verl_tree` names."""
        return cls(package=facet["package"], version=facet["version"], commit=facet.get("commit", ""))
