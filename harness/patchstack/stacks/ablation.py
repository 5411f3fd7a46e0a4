"""Ablation: leave out one patch at a time to find patches that are no longer needed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.outcome import Status
from harness.patchstack.apply.classify import LoadedPatch
from harness.patchstack.apply.stack_apply import apply_stack
from harness.sources.tree import HasBlobs, Tree

NEEDED = "needed"
DEAD = "dead?"
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The effect of leaving out a patch. result: `needed`, `dead?`, or `unknown` if too few checks ran.

    compared: whether there were trees to compare. False: the source is not available, or the patches do not
    all apply to it.
    """

    patch: str
    result: str
    reasons: tuple[str, ...]
    compared: bool = True


def ablate_statically(
    tree: Tree, patches: Sequence[LoadedPatch], blobs: HasBlobs | None = None
) -> tuple[Ablation, ...]:
    """Leave out each patch and compare the patched trees, without running checks.

    The result is `unknown` if the tree differs without the patch; `judge_ablation` then compares the
    statuses of checks.
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
                ("the whole stack does not apply, so nothing can be compared",),
                UNKNOWN,
            )
        elif partial.digests() == whole.digests():
            reasons, result = ("the tree is the same without the patch, so upstream has the change",), DEAD
        else:
            reasons, result = ("the patch changes the tree, but no check was run to see its effect",), UNKNOWN
        compared = whole.applies or bool(broken)
        found.append(Ablation(patch=loaded.name, result=result, reasons=reasons, compared=compared))
    return tuple(found)


def judge_ablation(
    patch: str,
    guarded_by: Iterable[str],
    full: Mapping[str, Status],
    left_out: Mapping[str, Status],
    executing: Collection[str],
) -> Ablation:
    """Compare the statuses of a cell's checks with the patch (`full`) and without it (`left_out`).

    executing: the checks that execute the code of the cell. The patch is `needed` if a check that passed no
    longer does, and `dead?` if none changed and every guard ran; without a guard, if a check ran that
    executes code. The check `patches` is no guard. Guards that are tests are not run here; a patch with such
    a guard is never `dead?`.
    """
    changed = [name for name, status in full.items() if status is Status.PASS and _worse(left_out.get(name))]
    named = tuple(guarded_by)
    tests = [guard for guard in named if "::" in guard]
    # That the other patches apply says nothing about this one.
    guards = sorted({guard.split(":")[0] for guard in named if guard not in tests} - {"patches"})
    if changed:
        reasons = [f"without the patch, {name} is {left_out[name].value}" for name in changed]
        silent = [guard for guard in guards if guard not in changed]
        reasons += [f"its guard {guard} still passes" for guard in silent]
        return Ablation(patch=patch, result=NEEDED, reasons=tuple(reasons))
    compared = [
        name for name, status in full.items() if status is Status.PASS and left_out.get(name) is Status.PASS
    ]
    missing = [name for name in guards if name not in compared]
    if missing or not compared:
        what = f"not every guard ({', '.join(missing)})" if missing else "no check of this cell"
        return Ablation(
            patch=patch, result=UNKNOWN, reasons=(f"{what} passed both with and without the patch",)
        )
    if not guards and not tests and not set(compared) & set(executing):
        reason = (
            f"only checks that execute none of its code passed with and without it: {', '.join(compared)}"
        )
        return Ablation(patch=patch, result=UNKNOWN, reasons=(reason,))
    if tests:
        same = f"no status changes without the patch: {', '.join(compared)} still pass"
        reason = f"its guard {', '.join(tests)} is a test, which runs inside a cell and was not run here"
        return Ablation(patch=patch, result=UNKNOWN, reasons=(same, reason))
    return Ablation(
        patch=patch,
        result=DEAD,
        reasons=(f"no status changes without the patch: {', '.join(compared)} still pass",),
    )


def _worse(status: Status | None) -> bool:
    return status in {Status.FAIL, Status.INCONCLUSIVE, Status.UNSUPPORTED}
