"""Constraints: which combinations of versions are out, why, and on whose word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import Location
from harness.matrix.model.versions import Scheme, Specifier, Version, parse_specifier

Versions = Mapping[str, Version]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One axis against specifiers of which one must hold."""

    axis: str
    specifiers: tuple[Specifier, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes the condition reads."""
        return (self.axis,)

    def __str__(self) -> str:
        return f"{self.axis} {' or '.join(str(specifier) for specifier in self.specifiers)}"

    def holds(self, versions: Versions) -> bool | None:
        """Whether it holds; None when the axis has no value or its value is not known yet."""
        version = versions.get(self.axis)
        if version is None:
            return None
        answers = [specifier.contains(version) for specifier in self.specifiers]
        return True if True in answers else None if None in answers else False


@dataclass(frozen=True, kw_only=True)
class AxisAgreement:
    """Two axes must have the same release, or the same nominal version."""

    axis: str
    other: str
    part: str

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes the requirement reads."""
        return (self.axis, self.other)

    def __str__(self) -> str:
        return f"{self.axis} has the {self.part} of {self.other}"

    def holds(self, versions: Versions) -> bool | None:
        """Whether it holds; None when either axis has no value."""
        left, right = versions.get(self.axis), versions.get(self.other)
        if left is None or right is None:
            return None
        if self.part == "release":
            return left.release == right.release
        return left.nominal == right.nominal


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A published table; `rows` are tuples in the order of `columns`, None where a field is empty."""

    name: str
    title: str
    source: str
    date: str
    key: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    where: Location = field(compare=False)

    def column(self, name: str) -> dict[str, str | None]:
        """Text of the key column -> text of column `name`."""
        key, wanted = self.columns.index(self.key), self.columns.index(name)
        return {row[key] or "": row[wanted] for row in self.rows}


@dataclass(frozen=True, kw_only=True)
class TableRequirement:
    """The value must be what a published table has for the cell's value of the table's key.

    A key the table does not list says nothing; alternatives in a field are separated by ` / `.
    """

    axis: str
    table: str
    key: str
    allowed: Mapping[Version, tuple[Specifier, ...]]

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes the requirement reads."""
        return (self.axis, self.key)

    def __str__(self) -> str:
        return f"{self.axis} as published in table {self.table} for {self.key}"

    def row(self, versions: Versions) -> tuple[Specifier, ...]:
        """What the table allows beside the cell's key; () when it does not say."""
        key = versions.get(self.key)
        return () if key is None else self.allowed.get(key.released, ())

    def holds(self, versions: Versions) -> bool | None:
        """Whether it holds; None when the axis has no value or the table no row."""
        version, row = versions.get(self.axis), self.row(versions)
        if version is None or not row:
            return None
        answers = [specifier.contains(version) for specifier in row]
        return True if True in answers else None if None in answers else False


Requirement = Condition | AxisAgreement | TableRequirement


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """Combinations for which `when` holds must meet `require`, or must not meet all of `forbid`."""

    id: str
    when: tuple[Condition, ...]
    require: tuple[Requirement, ...]
    forbid: tuple[Condition, ...]
    reason: str
    source: str
    where: Location = field(compare=False)

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis it reads, each once."""
        rules: tuple[Requirement, ...] = (*self.when, *self.require, *self.forbid)
        return tuple(dict.fromkeys(axis for rule in rules for axis in rule.axes))

    def violation(self, versions: Versions) -> str:
        """What is wrong with the combination, or "". An axis without a value violates nothing."""
        if not all(condition.holds(versions) for condition in self.when):
            return ""
        if self.forbid and all(condition.holds(versions) for condition in self.forbid):
            return " with ".join(_state(versions, (condition.axis,)) for condition in self.forbid)
        for rule in self.require:
            if rule.holds(versions) is False:
                return _explain(rule, versions)
        return ""


def table_requirement(
    table: PublishedTable, axis: str, column: str, schemes: Mapping[str, Scheme]
) -> TableRequirement:
    """The requirement that `axis` follows `column` of `table`; ValueError names the first bad field."""
    allowed: dict[Version, tuple[Specifier, ...]] = {}
    for key, text in table.column(column).items():
        if text is None or not key:
            continue
        try:
            (clause,) = parse_specifier(schemes[table.key], key).clauses
            options = tuple(parse_specifier(schemes[axis], part) for part in text.split(" / "))
        except ValueError as error:
            raise ValueError(f"row {key!r} of table {table.name!r}: {error}") from error
        if clause.version is None or clause.operator != "==":
            raise ValueError(f"row {key!r} of table {table.name!r} is not named by a version")
        allowed[clause.version] = options
    return TableRequirement(axis=axis, table=table.name, key=table.key, allowed=allowed)


def _explain(rule: Requirement, versions: Versions) -> str:
    if isinstance(rule, TableRequirement):
        options = " or ".join(str(specifier).removeprefix("==") for specifier in rule.row(versions))
        published = f"{_state(versions, (rule.key,))} is published with {rule.axis} {options}"
        return f"{published}, not {versions[rule.axis].short}"
    if isinstance(rule, AxisAgreement):
        return f"{_state(versions, rule.axes)} differ in {rule.part}"
    return f"{_state(versions, (rule.axis,))} is not {str(rule).removeprefix(rule.axis + ' ')}"


def _state(versions: Versions, axes: tuple[str, ...]) -> str:
    return " and ".join(f"{axis} {versions[axis].short}" for axis in axes)
