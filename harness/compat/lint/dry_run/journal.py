"""What alternative branches write, so that it can be undone and the results be merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from harness.compat.lint.dry_run.program_values import (
    OPTIONAL,
    UNKNOWN,
    Class,
    Config,
    Function,
    Unknown,
    Value,
    sources_of,
)

Container = dict[str, Value] | list[Value] | set[Value]


@dataclass(kw_only=True, eq=False, slots=True)
class Written:
    """A container that a branch changed, with its content before and, once the branch ended, after it."""

    container: Container
    before: Container
    after: Container
    made_in: object


#: What a branch changed, by the identity of the container.
Changes: TypeAlias = dict[int, Written]


class Journal:
    """Records the first change of each container in every open branch."""

    def __init__(self) -> None:
        self._branches: list[Changes] = []
        self._uncertain = 0
        #: How often a mapping of the configuration was changed.
        self.config_changes = 0

    @property
    def is_open(self) -> bool:
        """Whether a branch is being followed that may not be taken."""
        return self._uncertain > 0

    @property
    def innermost(self) -> object:
        """The branch that is being followed; None outside of branches."""
        return self._branches[-1] if self._branches else None

    def touch(self, container: Container, made_in: object = None) -> None:
        """Say that a container is about to be changed.

        made_in: the branch that made it, if nothing outside of this branch can refer to it when it ends.
        """
        if type(container) is Config:
            self.config_changes += 1
        if self._branches:
            changes = self._branches[-1]
            if made_in is not changes and id(container) not in changes:
                content = container.copy()
                changes[id(container)] = Written(
                    container=container, before=content, after=content, made_in=made_in
                )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Record nothing in a `with` statement."""
        before = self._branches, self._uncertain
        self._branches, self._uncertain = [], 0
        try:
            yield
        finally:
            self._branches, self._uncertain = before

    def branch(self, *, certain: bool = False) -> _Branch:
        """Record a branch in a `with` statement, and undo it at its end. The changes are complete then.

        certain: the branch is taken for sure, but what it leaves behind is not known.
        """
        return _Branch(self, certain=certain)

    def enter(self, changes: Changes, *, certain: bool) -> None:
        """Begin a branch."""
        self._branches.append(changes)
        self._uncertain += not certain

    def leave(self, changes: Changes, *, certain: bool) -> None:
        """End a branch."""
        self._uncertain -= not certain
        self._branches.pop()
        for one in changes.values():
            one.after = one.container.copy()
            _fill(one.container, one.before)

    def merge(self, branches: Sequence[Changes], sources: frozenset[str]) -> None:
        """Apply the changes of alternative branches: what differs between them is not known."""
        every = dict(branches[0])
        for written in branches[1:]:
            for key, one in written.items():
                every.setdefault(key, one)
        for key, one in every.items():
            states = [written[key].after if key in written else one.before for written in branches]
            self.touch(one.container, one.made_in)
            if isinstance(one.container, dict):
                # A branch that did not change it has the content of before.
                changed = [state for state in states if state is not one.before]
                _merge_into(one.container, states, _differing(one.container, changed), sources)
            else:
                _fill(one.container, _merged(states, sources))


class _Branch:
    # Every condition that is not known uses it twice: a generator with `contextmanager` takes longer.
    __slots__ = ("_certain", "_changes", "_journal")

    def __init__(self, journal: Journal, *, certain: bool) -> None:
        self._journal, self._certain = journal, certain
        self._changes: Changes = {}

    def __enter__(self) -> Changes:
        self._journal.enter(self._changes, certain=self._certain)
        return self._changes

    def __exit__(self, *_error: object) -> None:
        self._journal.leave(self._changes, certain=self._certain)


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
    if all(same(state, first) for state in states):
        return first
    return [Unknown(sources=sources, optional=True)] if isinstance(first, list) else set()


_ABSENT = object()


def _differing(before: dict[str, Value], states: Sequence[Container]) -> Iterable[str]:
    """The names whose values are not the same objects as before in all states of a mapping."""
    found: dict[str, None] = {}
    for state in states:
        assert isinstance(state, dict)
        added = 0
        for name, value in state.items():
            old = before.get(name, _ABSENT)
            if old is not value:
                found[name] = None
                added += old is _ABSENT
        if len(state) - added < len(before):
            found |= {name: None for name in before if name not in state}
    return found


def _merge_into(
    mapping: dict[str, Value], states: Sequence[Container], names: Iterable[str], sources: frozenset[str]
) -> None:
    """Merge what alternatives made of a mapping into it."""
    dicts = [state for state in states if isinstance(state, dict)]
    for name in names:
        value = merged_value([state.get(name, _ABSENT) for state in dicts], sources)
        if value is _ABSENT:
            del mapping[name]
        else:
            mapping[name] = value


def merged_value(values: Sequence[Value], sources: frozenset[str]) -> Value:
    """The value, if all are the same; otherwise an unknown."""
    first = values[0]
    for value in values:
        if value is not first and not same(value, first):
            every, optional = sources | sources_of(*values), any(one is _ABSENT for one in values)
            return Unknown(sources=every, optional=optional) if every else OPTIONAL if optional else UNKNOWN
    return first


def same(left: Value, right: Value) -> bool:
    """Whether two values are known to be the same."""
    if left is right:
        return True
    if isinstance(left, (Function, Class)) or type(left) is not type(right):
        return False
    return bool(left == right)
