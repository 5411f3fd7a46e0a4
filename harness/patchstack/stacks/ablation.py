"""Is a patch still needed? Leave it out and see what moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.measurements import JsonValue
from harness.outcome import Status
from harness.patchstack.apply.classify import LoadedPatch
from harness.patchstack.apply.stack_apply import apply_stack
from harness.sources.tree import HasBlobs, Tree

NEEDED = "needed"
DEAD = "dead?"
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """What leaving one patch out does: `needed`, `dead?`, or `unknown` when too little was run to say."""

    patch: str
    result: str
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """All fields."""
        return {"patch": self.patch, "result": self.result, "reasons": list(self.reasons)}


def ablate_statically(
    tree: Tree, patches: Sequence[LoadedPatch], blobs: HasBlobs | None = None
) -> tuple[Ablation, ...]:
    """The part of the answer that costs nothing: does the tree change, do other patches need this one?

    `unknown` where it does: whether any check notices has to be run (`judge_ablation`).
    """
    whole = apply_stack(tree, patches, blobs)
    found = []
    for number, loaded in enumerate(patches):
        rest = [*patches[:number], *patches[number + 1 :]]
        partial = apply_stack(tree, rest, blobs)
        others = [verdict for at, verdict in enumerate(whole.verdicts) if at != number]
        broken = [
            now.patch
            for then, now in zip(others, partial.verdicts, strict=True)
            if then.verdict.applies and not now.verdict.applies
        ]
        if broken:
            reasons, result = (f"{', '.join(broken)} does not apply without it",), NEEDED
        elif not whole.applies:
            reasons, result = (
                ("the whole stack does not apply, so there is nothing to compare with",),
                UNKNOWN,
            )
        elif partial.digests() == whole.digests():
            reasons, result = ("the tree is the same without it: upstream has the change",), DEAD
        else:
            reasons, result = ("it changes the tree; whether a check notices has not been run",), UNKNOWN
        found.append(Ablation(patch=loaded.name, result=result, reasons=reasons))
    return tuple(found)


def judge_ablation(
    patch: str,
    guarded_by: Iterable[str],
    full: Mapping[str, Status],
    left_out: Mapping[str, Status],
) -> Ablation:
    """Compare a cell's verdicts, check -> status, with the patch and without it.

    A verdict has moved when a check that passed no longer does; `dead?` when none has and every guard ran.
    A guard is `check` or `check:case`; one that is a test is not run here and keeps a patch from being dead.
    """
    moved = [name for name, status in full.items() if status is Status.PASS and _worse(left_out.get(name))]
    named = tuple(guarded_by)
    tests = [guard for guard in named if "::" in guard]
    guards = sorted({guard.split(":")[0] for guard in named if guard not in tests})
    if moved:
        reasons = [f"{name} is {left_out[name].value} without it" for name in moved]
        silent = [guard for guard in guards if guard not in moved]
        reasons += [f"its guard {guard} did not notice" for guard in silent]
        return Ablation(patch=patch, result=NEEDED, reasons=tuple(reasons))
    compared = [
        name for name, status in full.items() if status is Status.PASS and left_out.get(name) is Status.PASS
    ]
    missing = [name for name in guards if name not in compared]
    if missing or not compared:
        what = f"its guard {', '.join(missing)}" if missing else "no check of this cell"
        return Ablation(patch=patch, result=UNKNOWN, reasons=(f"{what} did not pass both times",))
    if tests:
        same = f"no verdict moved without it: {', '.join(compared)} pass as before"
        reason = f"its guard {', '.join(tests)} is a test that shows both sides; it is run inside a cell"
        return Ablation(patch=patch, result=UNKNOWN, reasons=(same, reason))
    return Ablation(
        patch=patch,
        result=DEAD,
        reasons=(f"no verdict moved without it: {', '.join(compared)} pass as before",),
    )


def _worse(status: Status | None) -> bool:
    return status in {Status.FAIL, Status.INCONCLUSIVE, Status.UNSUPPORTED}
