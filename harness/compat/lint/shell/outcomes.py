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
    running = [world for world, _ in found if world.running]
    if not running:
        return found[:1]
    return [(merged(running), Truth.OPEN)]
