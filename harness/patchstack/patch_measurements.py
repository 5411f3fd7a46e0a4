"""What the check `patches` measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.measurements import measurement_format
from harness.patchstack.apply.patch_verdict import FileDigests, MeasuredPatch
from harness.patchstack.stacks.tree_source import TreeSource
from harness.sources.packages.release_archive import ReleaseArchive

#: Values of `PatchesMeasured.tree` where no tree was patched.
TREE_NOT_NEEDED, TREE_UNAVAILABLE = "not needed", "unavailable"


@dataclass(frozen=True, kw_only=True)
class PatchesMeasured:
    """The verdicts on the patches selected for a cell.

    selected: ids of the patches, in order.
    tree: names of the patched trees, TREE_NOT_NEEDED without patches, TREE_UNAVAILABLE if one was not found.
    trees: upstream -> name of its tree.
    applies: whether all trees were found and every patch applies or is upstream already.
    files: path below site-packages -> digests of every changed file.
    relations: sentences on patches that need or exclude an earlier patch.
    uninstallable: sentences on patched files that cannot be installed.
    stale: sentences on patches whose origin has changed since they were imported.
    source, reason: the tree that was not found, and why.
    archives_read: the archives of releases that the patches were applied to.
    """

    selected: tuple[str, ...]
    tree: str
    applies: bool
    trees: Mapping[str, str] = field(default_factory=dict)
    verdicts: tuple[MeasuredPatch, ...] = ()
    relations: tuple[str, ...] = ()
    files: Mapping[str, FileDigests] = field(default_factory=dict)
    uninstallable: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    source: TreeSource | None = None
    reason: str = ""
    archives_read: tuple[ReleaseArchive, ...] = ()


PATCHES_FORMAT = measurement_format(PatchesMeasured, version=1, unused=("source.kind", "source.repository"))
