"""Find contradictions between published compatibility tables.

Two tables can be compared if the key column of one is a column of the other: verl's guide names a vllm-ascend
version, vllm-ascend's policy names a torch_npu version, torch_npu's table names a CANN version, and a list of
images names a Dockerfile. If both tables have a value for a third axis, these values must be compatible.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.matrix.model.constraints import PublishedTable, plain_version, published_specifiers
from harness.matrix.model.versions import Scheme, Version, parse_version
from harness.matrix.version_matrix import Matrix

Identity = tuple[str, str, frozenset[tuple[str, str]] | tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class TableStatement:
    """A value in a published table, and where the table is published."""

    table: str
    row: str
    value: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Two statements about `axis` that contradict each other, or a value that the other table does not list.

    kind: "differs" or "not-listed".
    """

    kind: str
    axis: str
    left: TableStatement
    right: TableStatement

    def __str__(self) -> str:
        left = f"{self.left.row} says {self.left.value}"
        right = f"{self.right.row} says {self.right.value}"
        if self.kind == "not-listed":
            right = f"{self.right.table} does not list it"
        return f"{self.axis}: {left}, {right}\n  {self.left.source}\n  {self.right.source}"


def find_drift(matrix: Matrix) -> tuple[Contradiction, ...]:
    """Every contradiction between the published tables, once, in the order of matrix.yaml."""
    schemes = {name: axis.scheme for name, axis in matrix.axes.items()}
    found: dict[Identity, Contradiction] = {}
    for left, right in itertools.permutations(matrix.published.values(), 2):
        if right.key not in left.columns:
            continue
        # Tables with the same key are paired twice; one comparison is enough.
        if left.key == right.key and _position(matrix, left) > _position(matrix, right):
            continue
        for contradiction in _compare(left, right, schemes):
            found.setdefault(_identity(contradiction), contradiction)
    return tuple(found.values())


def _position(matrix: Matrix, table: PublishedTable) -> int:
    return list(matrix.published).index(table.name)


def _identity(contradiction: Contradiction) -> Identity:
    kind, left, right = contradiction.kind, contradiction.left, contradiction.right
    sides = frozenset((side.row, side.value) for side in (left, right))
    return kind, contradiction.axis, sides if kind == "differs" else (left.row, right.table)


def _compare(
    left: PublishedTable, right: PublishedTable, schemes: Mapping[str, Scheme]
) -> Iterator[Contradiction]:
    right_rows = {row[right.columns.index(right.key)] or "": row for row in right.rows}
    shared = [
        name
        for name in left.columns
        if name in right.columns and name in schemes and name not in (left.key, right.key)
    ]
    key_scheme = schemes.get(right.key)
    for row in left.rows:
        key = row[left.columns.index(right.key)]
        if key is None or (key_scheme and _version(key, key_scheme) is None):
            continue
        match = next(
            (other for text, other in right_rows.items() if _is_same_key(text, key, key_scheme)), None
        )
        if match is None:
            if left.key != right.key:
                yield _not_listed(left, right, row, key)
            continue
        for name in shared:
            left_value, right_value = row[left.columns.index(name)], match[right.columns.index(name)]
            if left_value and right_value and compatible(left_value, right_value, schemes[name]) is False:
                yield Contradiction(
                    kind="differs",
                    axis=name,
                    left=_statement(left, row, left_value),
                    right=_statement(right, match, right_value),
                )


def _not_listed(
    left: PublishedTable, right: PublishedTable, row: tuple[str | None, ...], key: str
) -> Contradiction:
    return Contradiction(
        kind="not-listed",
        axis=right.key,
        left=_statement(left, row, key),
        right=TableStatement(table=right.name, row="", value="", source=f"{right.source} ({right.date})"),
    )


def _statement(table: PublishedTable, row: tuple[str | None, ...], value: str) -> TableStatement:
    key = row[table.columns.index(table.key)]
    return TableStatement(
        table=table.name,
        row=f"{table.name} {key}",
        value=value,
        source=f"{table.source} ({table.date})",
    )


def compatible(left: str, right: str, scheme: Scheme) -> bool | None:
    """Whether a version satisfies both texts (versions or specifiers); None when a text is neither."""
    alternatives = [published_specifiers(scheme, text) for text in (left, right)]
    if not all(alternatives):
        return None
    candidates = [version for text in (left, right) for version in _candidates(text, scheme)]
    return any(
        all(any(choice.contains(version) for choice in choices) for choices in alternatives)
        for version in candidates
    )


def _candidates(text: str, scheme: Scheme) -> Iterator[Version]:
    """The versions that occur in a text, and a slightly higher version for each."""
    for number in re.findall(r"[0-9][\w.+!-]*", plain_version(text)):
        for candidate in (number, f"{number}.1"):
            version = _version(candidate, scheme)
            if version is not None:
                yield version


def _version(text: str | None, scheme: Scheme) -> Version | None:
    if text is None:
        return None
    try:
        return parse_version(scheme, plain_version(text))
    except ValueError:
        return None


def _is_same_key(text: str, other: str, scheme: Scheme | None) -> bool:
    """Whether two keys are equal: versions by their scheme, other keys by their text."""
    if scheme is None:
        return text == other
    left, right = _version(text, scheme), _version(other, scheme)
    return left is not None and right is not None and left.nominal == right.nominal
