"""Where the rows of a published table come from, so that `matrix follow` can find new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class FollowedSource:
    """A document in the repository of `axis`, or the metadata of the releases of its package.

    document: path of the document in the repository; "" for metadata. headers: column -> its header in the
    document, or with `each_release` the name in the first column; columns with the same header share its
    field, which has a part for each of them, separated by `/`. each_release: the document of each release's
    tag is one row. adds: what a new row leads to, `stack`, `migration` or "".
    """

    axis: str
    document: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    each_release: bool = False
    adds: str = ""
