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
        for item in items[:MAX_ITERATIONS]:
            following: Outcomes = []
            for before, _truth in outcomes:
                # An unknown list has unknown elements, which have the name of the loop's variable.
                value = Expansion(text=f"${name}", unknown=name) if item.whole else item
                before.assign(name, value, node.location)
                goes_on, leaves = _sorted(self._statements(node.children("Do"), before))
                following += goes_on
                left += leaves
            outcomes = bounded(following)
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
                goes_on, leaves = _sorted(self._statements(node.children("Do"), world))
                left += leaves
                if not goes_on:
                    return bounded(left)
                world = _one([one for one, _ in goes_on])
                if loop.child("Post") is not None:
                    self._expander.number(loop.child("Post"), world)
        except UnknownNumberError:
            return [*left, *self._once_or_not(node, world)]
        self._too_often(node)
        return bounded([*left, (world, Truth.OPEN)])

    def _while(self, node: SyntaxNode, world: World) -> Outcomes:
        left: Outcomes = []
        for _ in range(MAX_ITERATIONS):
            with self._tolerating():
                found = self._statements(node.children("Cond"), world)
            world, truth = found[0] if len(found) == 1 else (merged([one for one, _ in found]), Truth.OPEN)
            known = truth.negated().known if node.flag("Until") else truth.known
            if known is False or not world.running:
                return [*left, (world, Truth.YES)]
            if known is None:
                return bounded([*left, *self._once_or_not(node, world)])
            goes_on, leaves = _sorted(self._statements(node.children("Do"), world))
            left += leaves
            if not goes_on:
                return bounded(left)
            world = _one([one for one, _ in goes_on])
        self._too_often(node)
        return bounded([*left, (world, Truth.OPEN)])

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
