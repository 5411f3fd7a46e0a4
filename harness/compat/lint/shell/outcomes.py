"""What a command leads to: the worlds in which a script can be after it, each with the command's truth."""

from __future__ import annotations

from harness.compat.lint.shell.conditions import Truth
from harness.compat.lint.shell.world import World, distinct, merged

Outcomes = list[tuple[World, Truth]]
#: Far above what launch scripts need; it bounds the time that hostile ones take.
MAX_WORLDS = 16


def bounded(outcomes: Outcomes) -> Outcomes:
    """The outcomes without repetitions; at most `MAX_WORLDS`, beyond which worlds are merged."""
    by_truth: dict[Truth, list[World]] = {}
    for world, truth in outcomes:
        by_truth.setdefault(truth, []).append(world)
    found = [(world, truth) for truth, worlds in by_truth.items() for world in distinct(worlds)]
    if len(found) <= MAX_WORLDS:
        return found
    groups: dict[tuple[bool, bool, int, bool, Truth | None], Outcomes] = {}
    for world, truth in found:
        state = world.ended, world.returned, world.left_loops, world.continued
        # What a function returns decides what its caller does.
        groups.setdefault((*state, truth if world.returned else None), []).append((world, truth))
    return [_as_one(group) for group in groups.values()]


def _as_one(group: Outcomes) -> tuple[World, Truth]:
    truths = {truth for _, truth in group}
    return merged([world for world, _ in group]), truths.pop() if len(truths) == 1 else Truth.OPEN
