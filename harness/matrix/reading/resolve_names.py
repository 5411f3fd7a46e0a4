"""Resolves versions, conditions and names of matrix.yaml, and collects the problems."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from harness.errors import Problem, did_you_mean
from harness.matrix.document.yaml_positions import Document, NodePath
from harness.matrix.model.constraints import Condition
from harness.matrix.model.definitions import Axis
from harness.matrix.model.versions import Specifier, Version, parse_specifier

T = TypeVar("T")
#: An entry of matrix.yaml that satisfies the schema.
Entry = Mapping[str, Any]


def text(value: str | int) -> str:
    """The value as text: YAML reads an unquoted 9 as an integer."""
    return str(value)


def texts(value: Any) -> list[str]:
    """One or several values, as a list of texts."""
    return [text(item) for item in value] if isinstance(value, list) else [text(value)]


def mapping(value: Mapping[str, str | int] | None) -> dict[str, str]:
    """A mapping with its values as text."""
    return {name: text(item) for name, item in (value or {}).items()}


class NameResolver:
    """Resolves values; an invalid one is recorded as a problem with its position, and left out."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.axes: dict[str, Axis] = {}

    def problem(self, path: NodePath, what: str, *, fix: str = "", key: bool = False) -> None:
        """Record a problem of the value at `path`, or of its key."""
        self.problems.append(Problem(what, self.document.where(path, key=key), fix=fix))

    def attempt(self, path: NodePath, parse: Callable[[], T], *, key: bool = False) -> T | None:
        """Call `parse`; a ValueError is recorded as a problem at `path`."""
        try:
            return parse()
        except ValueError as error:
            self.problem(path, str(error), key=key)
            return None

    def names(self, section: str) -> list[str]:
        """The names of a section, including invalid entries, so that one error is not reported twice."""
        entries = self.document.data.get(section)
        return [str(name) for name in entries] if isinstance(entries, dict) else []

    def known(self, path: NodePath, kind: str, name: str, known: Iterable[str], *, key: bool = False) -> bool:
        """Whether `name` is in `known`; otherwise a problem that suggests similar names is recorded."""
        if name in known:
            return True
        self.problem(path, f"unknown {kind} {name!r}", fix=did_you_mean(name, known), key=key)
        return False

    def recipe(self, path: NodePath, entry: Entry) -> str:
        """The recipe of the entry at `path`, or ""."""
        name = entry.get("recipe", "")
        if name:
            self.known((*path, "recipe"), "recipe", name, self.names("recipes"))
        return str(name)

    def axis(self, path: NodePath, name: str, *, key: bool = False) -> Axis | None:
        """The axis `name`; None if it does not exist or its entry is invalid."""
        return self.axes.get(name) if self.known(path, "axis", name, self.names("axes"), key=key) else None

    def value(self, path: NodePath, axis: Axis, word: str) -> Version | None:
        """A value of the axis."""
        version = self.attempt(path, functools.partial(axis.parse, word))
        return version if version is not None and self._allowed(path, axis, version) else None

    def values(self, path: NodePath, words: Mapping[str, str | int] | None) -> dict[str, Version]:
        """A mapping of axes to values."""
        values: dict[str, Version] = {}
        for name, word in (words or {}).items():
            axis = self.axis((*path, name), name, key=True)
            version = self.value((*path, name), axis, text(word)) if axis else None
            if version is not None:
                values[name] = version
        return values

    def conditions(self, path: NodePath, words: Entry | None) -> tuple[Condition, ...]:
        """A mapping of axes to specifiers, or to lists of specifiers of which one must match."""
        conditions = []
        for name, options in (words or {}).items():
            at: NodePath = (*path, name)
            axis = self.axis(at, name, key=True)
            if axis is None:
                continue
            specifiers = [
                self.specifier((*at, index) if isinstance(options, list) else at, axis, option)
                for index, option in enumerate(texts(options))
            ]
            conditions.append(Condition(axis=name, specifiers=tuple(one for one in specifiers if one)))
        return tuple(conditions)

    def specifier(self, path: NodePath, axis: Axis, word: str) -> Specifier | None:
        """A specifier over the values of the axis."""
        specifier = self.attempt(path, functools.partial(parse_specifier, axis.scheme, word))
        for clause in specifier.clauses if specifier else ():
            if clause.version is not None and not self._allowed(path, axis, clause.version):
                return None
        return specifier

    def _allowed(self, path: NodePath, axis: Axis, version: Version) -> bool:
        return not axis.values or self.known(path, f"value of axis {axis.name}", str(version), axis.values)
