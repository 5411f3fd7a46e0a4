"""Check an imported stack: apply each patch to its pinned commit, and check the stack's own summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.errors import Location, Problem
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.apply.patch_verdict import ClassifiedPatch
from harness.patchstack.apply.stack_apply import apply_stack
from harness.patchstack.stacks.change_summary import summarise_changes
from harness.patchstack.stacks.stack_import import ImportedPatch, ImportedStack
from harness.patchstack.stacks.summary_claims import disagreements
from harness.serialisation import JsonValue
from harness.sources.git.git_repository import FULL_ID, MIN_ABBREVIATION, Repository


@dataclass(frozen=True, kw_only=True)
class ImportedVerdict:
    """A patch, its pinned commit, and the verdict there ("" and None if no repository has the commit)."""

    patch: ImportedPatch
    commit: str
    verdict: ClassifiedPatch | None

    def to_json(self) -> dict[str, JsonValue]:
        """The patch, its pin and commit, and the verdict."""
        return {
            "upstream": self.patch.upstream,
            "name": self.patch.name,
            "pin": self.patch.pin,
            "commit": self.commit or None,
            "verdict": self.verdict.to_json() if self.verdict else None,
        }


def check_imported(
    imported: ImportedStack,
    repositories: Sequence[Repository],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[ImportedVerdict, ...], tuple[Problem, ...]]:
    """Apply every patch, in order, to its pinned commit in the first repository that has it.

    The problems are differences between the stack's own summary and the code, and relations between patches.
    `progress` is called with (done, total).
    """
    groups: dict[tuple[str, str], list[ImportedPatch]] = {}
    for patch in imported.patches:
        groups.setdefault((patch.upstream, patch.pin), []).append(patch)
    verdicts: list[ImportedVerdict] = []
    problems: list[Problem] = []
    for (_upstream, pin), patches in groups.items():
        if progress:
            progress(len(verdicts), len(imported.patches))
        repository = next((candidate for candidate in repositories if _has(candidate, pin)), None)
        if repository is None:
            verdicts += [ImportedVerdict(patch=patch, commit="", verdict=None) for patch in patches]
            continue
        tree = repository.tree(pin)
        loaded_patches = [read_patch(patch.name, patch.data) for patch in patches]
        result = apply_stack(tree, loaded_patches, repository)
        verdicts += [
            ImportedVerdict(patch=patch, commit=tree.commit, verdict=verdict)
            for patch, verdict in zip(patches, result.verdicts, strict=True)
        ]
        problems += [Problem(sentence, Location(patches[0].file.parent)) for sentence in result.relations]
        for patch, loaded in zip(patches, loaded_patches, strict=True):
            if patch.claims is not None and imported.summary and loaded.patch:
                [found] = summarise_changes(patch.upstream, [loaded], tree, repository).patches
                problems += disagreements(patch.claims, found, imported.summary)
    return tuple(verdicts), tuple(problems)


def _has(repository: Repository, pin: str) -> bool:
    """Whether a pin is a commit or a tag of this repository. The Ascend recipes pin tags."""
    if len(pin) >= MIN_ABBREVIATION and repository.has(pin):
        return True
    return bool(pin) and len(pin) < FULL_ID and repository.has_tag(pin)
