"""What alternative branches write, so that it can be undone and the results be merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from harness.compat.lint.dry_run.program_values import Class, Config, Function, Unknown, Value, sources_of

Container = dict[str, Value] | list[Value] | set[Value]


@dataclass(kw_only=True, eq=False, slots=True)
class Written:
    """A container that a branch changed, with its content before and, once the branch ended, after it."""

    container: Container
    before: Container
    after: Container


#: What a branch changed, by the identity of the container.
Changes: TypeAlias = dict[int, Written]


class Journal:
    """Records the first change of each container in every open branch."""

    def __init__(self) -> None:
        self._branches: list[Changes] = []
        #: How often a mapping of the configuration was changed.
        self.config_changes = 0

    @property
    def is_open(self) -> bool:
        """Whether a branch is being followed that may not be taken."""
        return bool(self._branches)

    def touch(self, container: Container) -> None:
        """Say that a container is about to be changed."""
        if isinstance(container, Config):
            self.config_changes += 1
        if self._branches and id(container) not in self._branches[-1]:
            content = container.copy()
            self._branches[-1][id(container)] = Written(container=container, before=content, after=content)

    def suspended(self) -> list[Changes]:
        """Stop recording; `resume` continues with what this returns."""
        branches, self._branches = self._branches, []
        return branches

    def resume(self, branches: list[Changes]) -> None:
        """Continue recording."""
        self._branches = branches

    @contextmanager
    def branch(self) -> Iterator[Changes]:
        """Record a branch in a `with` statement, and undo it at its end. The changes are complete then."""
        changes: Changes = {}
        self._branches.append(changes)
        try:
            yield changes
        finally:
            self._branches.pop()
            for one in changes.values():
                one.after = one.container.copy()
                _fill(one.container, one.before)

    def merge(self, branches: Sequence[Changes], sources: frozenset[str]) -> None:
        """Apply the changes of alternative branches: what differs between them is not known."""
        every: Changes = {}
        for written in branches:
            for key, one in written.items():
                every.setdefault(key, one)
        for key, one in every.items():
            states = [written[key].after if key in written else one.before for written in branches]
            self.touch(one.container)
            _fill(one.container, _merged(states, sources))


def _fill(container: Container, content: Container) -> None:
    if isinstance(container, list) and isinstance(content, list):
        container[:] = content
    elif isinstance(container, dict) and isinstance(content, dict):
        container.clear()
        container.update(content)
    elif isinstance(container, set) and isinstance(content, set):
        container &= content
        container |= content


def _merged(states: Sequence[Container], sources: frozenset[str]) -> Container:
    first = states[0]
    if isinstance(first, dict):
        dicts = [state for state in states if isinstance(state, dict)]
        merged = dict(first)
        for name in dict.fromkeys(name for state in dicts for name in state):
            value = first.get(name, _ABSENT)
            if any(state.get(name, _ABSENT) is not value for state in dicts):
                merged[name] = merged_value([state.get(name, _ABSENT) for state in dicts], sources)
        return merged
    if all(same(state, first) for state in states):
        return first
    return [Unknown(sources=sources, optional=True)] if isinstance(first, list) else set()


_ABSENT = object()


def merged_value(values: Sequence[Value], sources: frozenset[str]) -> Value:
    """The value, if all are the same; otherwise an unknown."""
    if all(same(value, values[0]) for value in values):
        return values[0]
    return Unknown(sources=sources | sources_of(*values), optional=_ABSENT in values)


def same(left: Value, right: Value) -> bool:
    """Whether two values are known to be the same."""
    if left is right:
        return True
    if isinstance(left, (Function, Class)) or type(left) is not type(right):
        return False
    return bool(left == right)
