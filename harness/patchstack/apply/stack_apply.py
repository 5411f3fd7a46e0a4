"""Applying a whole stack to one tree: the patches in order, and which of them depend on each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from harness.digest import digest_bytes
from harness.patchstack.apply.classify import LoadedPatch, classify
from harness.patchstack.apply.patch_verdict import ClassifiedPatch, FileDigests, PatchVerdict
from harness.serialisation import JsonValue, to_json
from harness.sources.tree import HasBlobs, OverlayTree, Tree, TreeFile


@dataclass(frozen=True, kw_only=True)
class StackResult:
    """The outcome of applying a stack to a tree.

    verdicts: on each patch, in order, applied after the patches before it.
    alone: on each patch, applied to the unpatched tree.
    files: every path that the stack changes, with its final content (None: removed). Empty unless `applies`.
    before: the same paths in the unpatched tree (None: no file).
    """

    verdicts: tuple[ClassifiedPatch, ...]
    alone: tuple[ClassifiedPatch, ...]
    files: Mapping[str, TreeFile | None] = field(default_factory=dict, repr=False)
    before: Mapping[str, TreeFile | None] = field(default_factory=dict, repr=False)

    @property
    def applies(self) -> bool:
        """Whether every patch applies or is upstream already: a stack is applied whole or not at all."""
        return all(
            verdict.verdict.applies or verdict.verdict is PatchVerdict.ALREADY_UPSTREAM
            for verdict in self.verdicts
        )

    @property
    def relations(self) -> tuple[str, ...]:
        """Sentences on patches that apply only after earlier patches, or only without them."""
        found = []
        for together, alone in zip(self.verdicts, self.alone, strict=True):
            if together.verdict.applies and not alone.verdict.applies:
                found.append(
                    f"{together.patch} needs an earlier patch of the stack: alone it is {alone.verdict}"
                )
            elif alone.verdict.applies and not together.verdict.applies:
                found.append(f"{together.patch} conflicts with an earlier patch: alone it is {alone.verdict}")
        return tuple(found)

    def digests(self) -> dict[str, FileDigests]:
        """The digests of every changed file, by path."""
        return {
            path: FileDigests(
                pre=digest_bytes(before.data) if (before := self.before[path]) else None,
                post=digest_bytes(after.data) if after else None,
            )
            for path, after in sorted(self.files.items())
        }

    def to_json(self) -> dict[str, JsonValue]:
        """Verdicts, relations and digests, without file contents."""
        return {
            "applies": self.applies,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "relations": list(self.relations),
            "files": to_json(self.digests()),
        }


def apply_stack(tree: Tree, patches: Iterable[LoadedPatch], blobs: HasBlobs | None = None) -> StackResult:
    """Apply patches in order, in memory. A patch that does not apply changes nothing and is skipped."""
    changes: dict[str, TreeFile | None] = {}
    verdicts, alone = [], []
    for loaded in patches:
        verdict = classify(loaded, OverlayTree(base=tree, changes=changes) if changes else tree, blobs)
        verdicts.append(verdict)
        alone.append(classify(loaded, tree, blobs) if changes else verdict)
        if verdict.verdict.applies:
            changes.update(verdict.files)
    result = StackResult(verdicts=tuple(verdicts), alone=tuple(alone))
    if not result.applies:
        return result
    before = {path: _file(tree, path) for path in changes}
    files = {path: file for path, file in changes.items() if file != before[path]}
    return replace(result, files=files, before={path: before[path] for path in files})


def _file(tree: Tree, path: str) -> TreeFile | None:
    mode = tree.mode(path)
    return None if mode is None else TreeFile(data=tree.read(path), mode=mode)
