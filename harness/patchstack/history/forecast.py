"""Apply a stack to the head of an upstream branch, to see which patches the next release will break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.patchstack.apply.classify import LoadedPatch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.apply.stack_apply import StackResult, apply_stack
from harness.patchstack.history.breakage import Breakage, find_breakage
from harness.serialisation import JsonValue
from harness.sources.git.commit_history import Commit, one_commit
from harness.sources.git.git_repository import Repository


@dataclass(frozen=True, kw_only=True)
class PatchForecast:
    """The outcome of applying a stack to the head of an upstream branch.

    breakages: for each patch that does not apply, the commits that broke it.
    ended: patches that are only for older versions -> these versions. They were not applied.
    """

    upstream: str
    reference: str
    head: Commit
    stack: StackResult
    breakages: dict[str, Breakage]
    ended: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, JsonValue]:
        """The verdicts, and the commit that broke each patch."""
        return {
            "schema": {"name": "npu-matrix/patch-forecast", "version": 1},
            "upstream": self.upstream,
            "reference": self.reference,
            "head": self.head.to_json(),
            **self.stack.to_json(),
            "broken_by": {
                name: breakage.broken_by.to_json() if breakage.broken_by else None
                for name, breakage in self.breakages.items()
            },
            "ended": dict(self.ended),
        }

    def to_text(self) -> str:
        """One line per patch; below a patch that broke, the commit that broke it."""
        lines = [
            f"{self.upstream} {self.reference}: {self.head.id[:9]} {self.head.date[:10]} {self.head.subject}"
        ]
        for verdict in self.stack.verdicts:
            offset = f"({verdict.offset:+d})" if verdict.offset else ""
            lines.append(f"  {verdict.verdict}{offset}  {verdict.patch}")
            breakage = self.breakages.get(verdict.patch)
            if breakage and breakage.broken_by:
                broke = breakage.broken_by
                lines.append(f"      broken by {broke.id[:9]} {broke.date[:10]} {broke.subject}")
        lines += [f"  ended  {name} (for {versions})" for name, versions in self.ended.items()]
        return "\n".join([*lines, *(f"  {sentence}" for sentence in self.stack.relations)])


def forecast_stack(
    upstream: str,
    repository: Repository,
    patches: Sequence[LoadedPatch],
    reference: str = "HEAD",
    progress: Callable[[int, int], None] | None = None,
    ended: Mapping[str, str] | None = None,
) -> PatchForecast:
    """Apply a stack to `reference`. `progress` is called with (done, total).

    InputError if the repository or the reference cannot be read.
    """
    head = one_commit(repository, reference)
    tree = repository.tree(head.id)
    result = apply_stack(tree, patches, repository)
    breakages = {}
    for number, (loaded, alone) in enumerate(zip(patches, result.alone, strict=True)):
        if progress:
            progress(number, len(patches))
        accepted = alone.verdict.applies or alone.verdict is PatchVerdict.ALREADY_UPSTREAM
        if not accepted and loaded.patch is not None:
            breakages[loaded.name] = find_breakage(repository, loaded, head.id)
    return PatchForecast(
        upstream=upstream,
        reference=reference,
        head=head,
        stack=result,
        breakages=breakages,
        ended=ended or {},
    )
