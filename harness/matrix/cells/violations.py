"""What is known to be wrong or unusual about a combination of versions: constraints and published tables.

The check `constraints`, `explain` and the findings of stacks all come from `Violations`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import Location
from harness.matrix.cells.pins import normal_package, permits, required_package
from harness.matrix.model.cell import KnownInconsistency, Pin
from harness.matrix.model.constraints import (
    Constraint,
    PublishedTable,
    TableRequirement,
    Versions,
    ViolationKind,
    allows,
    published_specifiers,
)
from harness.matrix.model.definitions import Axis
from harness.matrix.model.versions import Specifier, Version, parse_version


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A violated constraint, or a published table that lists other versions.

    rule: the name of the constraint or table. override: the override that permits it, for a requirement.
    """

    rule: str
    kind: ViolationKind
    what: str
    reason: str
    source: str
    axes: tuple[str, ...]
    override: Pin | None = None
    where: Location = field(compare=False)

    @property
    def finding(self) -> KnownInconsistency:
        """The violation as a finding of a cell."""
        return KnownInconsistency(
            what=f"{self.what}: {self.reason}",
            source=self.source,
            axes=self.axes,
            constraint=self.rule,
            where=self.where,
        )


@dataclass(frozen=True, kw_only=True)
class ListedVersion:
    """A field of a published table: the versions that it lists for an axis. text: as it is published."""

    axis: str
    text: str
    specifiers: tuple[Specifier, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Violations:
    """Finds the violations of combinations of versions."""

    axes: Mapping[str, Axis]
    constraints: Sequence[Constraint]
    tables: Sequence[PublishedTable]

    def of(self, versions: Versions, overrides: Sequence[Pin]) -> tuple[Violation, ...]:
        """The violations of a cell with these versions and overrides, in the order of matrix.yaml."""
        return (*self.of_constraints(versions, overrides), *self.unlisted(versions))

    def of_constraints(self, versions: Versions, overrides: Sequence[Pin] = ()) -> Iterator[Violation]:
        """The violated constraints."""
        for constraint in self.constraints:
            what = constraint.violation(versions)
            if what:
                yield Violation(
                    rule=constraint.id,
                    kind=_kind(constraint, versions),
                    what=what,
                    reason=constraint.reason,
                    source=constraint.source,
                    axes=constraint.axes,
                    override=self._override(constraint, versions, overrides),
                    where=constraint.where,
                )

    def unlisted(self, versions: Versions) -> Iterator[Violation]:
        """The published tables that list other versions beside those of the combination.

        Columns that a constraint compares are left out.
        """
        for table, rows in self._rows:
            key = versions.get(table.key)
            others = [
                f"{listed.axis} {listed.text} (here {version.short})"
                for listed in (_row(rows, key) if key else ())
                if (version := versions.get(listed.axis)) is not None and _is_other(listed, version)
            ]
            if key is not None and others:
                yield Violation(
                    rule=table.name,
                    kind=ViolationKind.UNLISTED,
                    what=f"{table.key} {key.short} is listed with {', '.join(others)}",
                    reason=f"{table.title} ({table.date})",
                    source=table.source,
                    axes=(table.key, *(listed.axis for listed in _row(rows, key))),
                    where=table.where,
                )

    def compared(self, versions: Versions) -> int:
        """How many constraints and tables are about these versions."""
        constraints = sum(all(axis in versions for axis in rule.axes) for rule in self.constraints)
        keys = ((rows, versions.get(table.key)) for table, rows in self._rows)
        return constraints + sum(bool(key and _row(rows, key)) for rows, key in keys)

    @functools.cached_property
    def axes_read(self) -> tuple[str, ...]:
        """The axes on which the violations of a cell depend."""
        read = {axis for constraint in self.constraints for axis in constraint.axes}
        for table, rows in self._rows:
            read |= {
                table.key,
                *(listed.axis for listed_versions in rows.values() for listed in listed_versions),
            }
        return tuple(axis for axis in self.axes if axis in read)

    @functools.cached_property
    def _rows(self) -> tuple[tuple[PublishedTable, Mapping[Version, tuple[ListedVersion, ...]]], ...]:
        """The tables by a version, with the versions of other axes that each row lists."""
        compared = {
            (rule.table, rule.axis)
            for constraint in self.constraints
            for rule in constraint.require
            if isinstance(rule, TableRequirement)
        }
        return tuple(
            (
                table,
                self._listed(table, [axis for axis in table.columns if (table.name, axis) not in compared]),
            )
            for table in self.tables
            if table.key in self.axes
        )

    def _listed(
        self, table: PublishedTable, columns: Sequence[str]
    ) -> Mapping[Version, tuple[ListedVersion, ...]]:
        axes = [axis for axis in columns if axis in self.axes and axis != table.key]
        found: dict[Version, tuple[ListedVersion, ...]] = {}
        for row in table.rows:
            values = dict(zip(table.columns, row, strict=True))
            try:
                key = parse_version(self.axes[table.key].scheme, values[table.key] or "")
            except ValueError:
                continue
            texts = {axis: text for axis in axes if (text := values[axis])}
            found[key] = tuple(
                ListedVersion(axis=axis, text=text, specifiers=specifiers)
                for axis, text in texts.items()
                if (specifiers := published_specifiers(self.axes[axis].scheme, text))
            )
        return found

    def _override(self, constraint: Constraint, versions: Versions, overrides: Sequence[Pin]) -> Pin | None:
        """The override of the requirement that the constraint is about, if it allows this version."""
        if constraint.kind is not ViolationKind.REQUIREMENT:
            return None
        packages = {name: normal_package(axis.package) for name, axis in self.axes.items()}
        replacing = [
            (pin, versions[rule.axis])
            for rule in constraint.require
            if isinstance(rule, TableRequirement)
            for pin in overrides
            if (pin.of, required_package(pin.requirement)) == (packages[rule.key], packages[rule.axis])
        ]
        # Several overrides of one requirement apply together, as in the check `resolve`.
        permitted = all(permits(pin.requirement, version) for pin, version in replacing)
        return replacing[0][0] if replacing and permitted else None


def _kind(constraint: Constraint, versions: Versions) -> ViolationKind:
    """The kind of a violation.

    The metadata of a release says nothing certain about a commit before it, and a commit between two releases
    may be like either.
    """
    keys = {rule.key for rule in constraint.require if isinstance(rule, TableRequirement)}
    if constraint.kind is ViolationKind.REQUIREMENT and any(versions[key].ref for key in keys):
        return ViolationKind.UNLISTED
    if any(versions[axis].is_between_releases for axis in constraint.axes if axis in versions):
        return ViolationKind.UNLISTED
    return constraint.kind


def _row(rows: Mapping[Version, tuple[ListedVersion, ...]], key: Version) -> tuple[ListedVersion, ...]:
    return rows.get(key.public, ())


def _is_other(listed: ListedVersion, version: Version) -> bool:
    return not any(allows(specifier, version) in (True, None) for specifier in listed.specifiers)
