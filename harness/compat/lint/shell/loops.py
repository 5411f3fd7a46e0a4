"""Loops of a script: each is read as often as bash runs it, as far as its list or condition is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from harness.compat.lint.shell.arithmetic import UnknownNumberError
from harness.compat.lint.shell.conditions import Truth
from harness.compat.lint.shell.expansion import Expander
from harness.compat.lint.shell.outcomes import Outcomes, bounded
from harness.compat.lint.shell.syntax_tree import SyntaxNode
from harness.compat.lint.shell.values import Expansion
from harness.compat.lint.shell.world import World, merged
from harness.errors import Location

#: How often a loop is read.
MAX_ITERATIONS = 200
#: After so many iterations, a loop that a condition which is not known can leave is read once for all others.
MAX_OPEN_ITERATIONS = 4
#: After so many items of a list, the states in which the script can be are merged before the next item.
MAX_OPEN_ITEMS = 2


class Noting(Protocol):
    """Notes what of a script is not read."""

    def __call__(self, where: Location, text: str, *, unread: bool = False) -> None:
        """Note it."""


class Loops:
    """Reads loops. expander: that of the script which has the loop. statements: reads statements.

    tolerating: a context in which failures do not end the script.
    """

    def __init__(
        self,
        expander: Expander,
        statements: Callable[[Sequence[SyntaxNode], World], Outcomes],
        tolerating: Callable[[], AbstractContextManager[None]],
        note: Noting,
    ) -> None:
        self._expander, self._statements, self._note = expander, statements, note
        self._tolerating = tolerating

    def read(self, node: SyntaxNode, world: World) -> Outcomes:
        """The outcomes of `for`, `while` and `until`."""
        if node.kind == "WhileClause":
            return self._while(node, world)
        loop = node.child("Loop")
        if loop is None or node.flag("Select"):
            self._note(node.location, "a `select` loop is not read", unread=True)
            return [(world, Truth.OPEN)]
        if loop.kind == "CStyleLoop":
            return self._counting(node, loop, world)
        return self._for(node, loop, world)

    def _for(self, node: SyntaxNode, loop: SyntaxNode, world: World) -> Outcomes:
        name_node = loop.child("Name")
        name = name_node.text() if name_node is not None else ""
        if loop.child("InPos") is not None:
            items = self._expander.all_fields(loop.children("Items"), world)
        else:
            items = list(world.arguments or ())
        left: Outcomes = []
        outcomes: Outcomes = [(world, Truth.YES)]
        for number, item in enumerate(items[:MAX_ITERATIONS]):
            following: Outcomes = []
            for before, _truth in outcomes:
                # An unknown list has unknown elements, which have the name of the loop's variable.
                value = Expansion(text=f"${name}", unknown=name) if item.whole else item
                before.assign(name, value, node.location)
                goes_on, leaves = _sorted(self._statements(node.children("Do"), before))
                following += goes_on
                left += leaves
            outcomes = bounded(following)
            if number >= MAX_OPEN_ITEMS and len(outcomes) > 1:
                outcomes = [(_one([one for one, _ in outcomes]), Truth.OPEN)]
        if len(items) > MAX_ITERATIONS and outcomes:
            self._too_often(node)
        return bounded([*left, *outcomes])

    def _counting(self, node: SyntaxNode, loop: SyntaxNode, world: World) -> Outcomes:
        """`for ((init; condition; step))`."""
        left: Outcomes = []
        try:
            if loop.child("Init") is not None:
                self._expander.number(loop.child("Init"), world)
            for _ in range(MAX_ITERATIONS):
                if loop.child("Cond") is not None and not self._expander.number(loop.child("Cond"), world):
                    return [*left, (world, Truth.YES)]
                before = world.copy()
                goes_on, leaves = _sorted(self._statements(node.children("Do"), world))
                left += leaves
                if not goes_on:
                    return bounded(left)
                world = _one([one for one, _ in goes_on])
                if loop.child("Post") is not None:
                    self._expander.number(loop.child("Post"), world)
                if len(left) > MAX_OPEN_ITERATIONS:
                    return bounded([*left, *self._once_or_not(node, merged([before, world]))])
        except UnknownNumberError:
            return bounded([*left, *self._once_or_not(node, world)])
        self._too_often(node)
        return bounded([*left, (world, Truth.OPEN)])

    def _while(self, node: SyntaxNode, world: World) -> Outcomes:
        left: Outcomes = []
        for _ in range(MAX_ITERATIONS):
            before = world.copy()
            world, known, ends = self._condition(node, world)
            left += ends
            if known is False:
                return bounded([*left, (world, Truth.YES)])
            if not world.running:
                return bounded(left)
            if known is None:
                return bounded([*left, *self._once_or_not(node, world)])
            goes_on, leaves = _sorted(self._statements(node.children("Do"), world))
            left += leaves
            if not goes_on:
                return bounded(left)
            world = _one([one for one, _ in goes_on])
            if world == before:
                # It changes nothing, as one that waits for another process.
                return bounded(left or [(world, Truth.OPEN)])
            if len(left) > MAX_OPEN_ITERATIONS:
                return bounded([*left, *self._other_iterations(node, merged([before, world]))])
        self._too_often(node)
        return bounded([*left, (world, Truth.OPEN)])

    def _condition(self, node: SyntaxNode, world: World) -> tuple[World, bool | None, Outcomes]:
        """The world after the condition of `while` or `until`, and whether the loop goes on.

        Also the outcomes in which the condition ends the script or function.
        """
        with self._tolerating():
            found = self._statements(node.children("Cond"), world)
        ends = [one for one in found if not one[0].running]
        running = [one for one in found if one[0].running]
        if not running:
            return found[0][0], None, ends
        truths = {truth for _, truth in running}
        truth = truths.pop() if len(truths) == 1 else Truth.OPEN
        known = truth.negated().known if node.flag("Until") else truth.known
        return _one([one for one, _ in running]), known, ends

    def _other_iterations(self, node: SyntaxNode, world: World) -> Outcomes:
        """What any later iteration leads to. What the loop changes is not known in `world`."""
        after, known, ends = self._condition(node, world)
        if known is False:
            return [*ends, (after, Truth.YES)]
        if not after.running:
            return ends
        goes_on, leaves = _sorted(self._statements(node.children("Do"), after.copy()))
        return [*ends, *leaves] if known else [*ends, *goes_on, *leaves, (after, Truth.YES)]

    def _once_or_not(self, node: SyntaxNode, world: World) -> Outcomes:
        goes_on, leaves = _sorted(self._statements(node.children("Do"), world.copy()))
        return [*goes_on, *leaves, (world, Truth.YES)]

    def _too_often(self, node: SyntaxNode) -> None:
        self._note(node.location, f"a loop is read {MAX_ITERATIONS} times only", unread=True)


def _one(worlds: Sequence[World]) -> World:
    return worlds[0] if len(worlds) == 1 else merged(worlds)


def _sorted(outcomes: Outcomes) -> tuple[Outcomes, Outcomes]:
    """The outcomes of one iteration that go on with the next one, and those that leave the loop."""
    goes_on: Outcomes = []
    leaves: Outcomes = []
    for world, truth in outcomes:
        if world.running:
            goes_on.append((world, truth))
        elif not world.left_loops:
            leaves.append((world, truth))
        elif world.left_loops == 1 and world.continued:
            world.left_loops, world.continued = 0, False
            goes_on.append((world, truth))
        else:
            world.left_loops -= 1
            leaves.append((world, Truth.YES))
    return goes_on, leaves
