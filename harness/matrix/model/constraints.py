"""Constraints: rules that exclude combinations of versions, each with its reason and source."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from harness.errors import Location
from harness.matrix.model.followed_source import FollowedSource
from harness.matrix.model.versions import Scheme, Specifier, Version, parse_specifier

Versions = Mapping[str, Version]
_REMARK = re.compile(r"\s*\(.*\)\s*$")
_RELEASE_BRANCH = re.compile(r"^(?:releases/)?v(?=\d)")


class ViolationKind(str, enum.Enum):
    """What a violated constraint means.

    INCOMPATIBLE: the versions do not work together. REQUIREMENT: the metadata of a package excludes the other
    version, unless an override replaces this requirement. UNLISTED: somebody's compatibility table does not
    list the combination, which may work nevertheless.
    """

    INCOMPATIBLE = "incompatible"
    REQUIREMENT = "requirement"
    UNLISTED = "unlisted"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The version on one axis must match at least one of the specifiers."""

    axis: str
    specifiers: tuple[Specifier, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the condition reads."""
        return (self.axis,)

    def __str__(self) -> str:
        return f"{self.axis} {' or '.join(str(specifier) for specifier in self.specifiers)}"

    def holds(self, versions: Versions) -> bool | None:
        """Whether a specifier matches; None if the axis has no value, or a value that is not known yet."""
        version = versions.get(self.axis)
        if version is None:
            return None
        return _matches_any(self.specifiers, version)


@dataclass(frozen=True, kw_only=True)
class AxisAgreement:
    """Two axes must have the same `part`: minor release (2.7), release (2.7.1) or nominal version."""

    axis: str
    other: str
    part: str

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the requirement reads."""
        return (self.axis, self.other)

    def __str__(self) -> str:
        return f"{self.axis} has the {self.part} of {self.other}"

    def holds(self, versions: Versions) -> bool | None:
        """Whether the two versions agree; None if either axis has no value."""
        left, right = versions.get(self.axis), versions.get(self.other)
        if left is None or right is None:
            return None
        if self.part == "nominal":
            return left.is_same(right)
        if self.part == "minor":
            return left.release.split(".")[:2] == right.release.split(".")[:2]
        # 2.8 and 2.8.0 are the same release.
        return left.release_version.is_same(right.release_version)


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A published compatibility table. rows: one field per column, None for an empty field.

    follow: where new rows of it are found, None if the table is kept by hand.
    """

    name: str
    title: str
    source: str
    date: str
    key: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    follow: FollowedSource | None = None
    where: Location = field(compare=False)

    def column(self, name: str) -> dict[str, str | None]:
        """Text of the key column -> text of the column `name`."""
        key, column = self.columns.index(self.key), self.columns.index(name)
        return {row[key] or "": row[column] for row in self.rows}


@dataclass(frozen=True, kw_only=True)
class TableRequirement:
    """The value must be the one that a published table lists for the cell's value on the axis `key`.

    allowed: version of `key` -> specifiers of which one must match. Versions that the table does not list are
    not restricted. part: what must match, the `nominal` version, only the `minor` release (2.7 of 2.7.1), or
    the release with the listed or a `later-build` (2.7.1.post2 where 2.7.1.post1 is listed).
    """

    axis: str
    table: str
    key: str
    allowed: Mapping[Version, tuple[Specifier, ...]]
    part: str = "nominal"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the requirement reads."""
        return (self.axis, self.key)

    def __str__(self) -> str:
        what = {"minor": f"minor release of {self.axis}", "later-build": f"{self.axis} or a later build"}
        return f"{what.get(self.part, self.axis)} as published in table {self.table} for {self.key}"

    def allowed_for(self, versions: Versions) -> tuple[Specifier, ...]:
        """The specifiers that the table lists for the cell's value of `key`; () if it lists none."""
        key = versions.get(self.key)
        if key is None:
            return ()
        listed = self.allowed.get(key.released)
        if listed is not None:
            return listed
        # 0.13 and 0.13.0+local are the published 0.13.0.
        return next((specs for known, specs in self.allowed.items() if known.is_same(key.public)), ())

    def holds(self, versions: Versions) -> bool | None:
        """Whether the table allows the value; None if the axis has no value or the table no row."""
        version, specifiers = versions.get(self.axis), self.allowed_for(versions)
        if version is None or not specifiers:
            return None
        matches = [allows(specifier, version) for specifier in specifiers]
        return True if True in matches else None if None in matches else False


Requirement = Condition | AxisAgreement | TableRequirement


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A rule for combinations that meet all of `when`: they must meet `require`, or not all of `forbid`."""

    id: str
    kind: ViolationKind = ViolationKind.INCOMPATIBLE
    when: tuple[Condition, ...]
    require: tuple[Requirement, ...]
    forbid: tuple[Condition, ...]
    reason: str
    source: str
    where: Location = field(compare=False)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the constraint reads, each once."""
        rules: tuple[Requirement, ...] = (*self.when, *self.require, *self.forbid)
        return tuple(dict.fromkeys(axis for rule in rules for axis in rule.axes))

    def violation(self, versions: Versions) -> str:
        """The violation in words, or "". An axis without a value violates nothing."""
        if not all(condition.holds(versions) for condition in self.when):
            return ""
        if self.forbid and all(condition.holds(versions) for condition in self.forbid):
            return " with ".join(_state(versions, (condition.axis,)) for condition in self.forbid)
        for rule in self.require:
            if rule.holds(versions) is False:
                return _explain(rule, versions)
        return ""


class ExcludedCombinations(NamedTuple):
    """All combinations of a product with the values `versions`, which violate a constraint.

    what: the violation in words. combinations: their number.
    """

    versions: Mapping[str, Version]
    constraint: Constraint
    what: str
    combinations: int

    @property
    def axes(self) -> dict[str, str]:
        """Axis name -> value in normal form."""
        return {axis: str(version) for axis, version in self.versions.items()}


def table_requirement(
    table: PublishedTable, axis: str, column: str, schemes: Mapping[str, Scheme], part: str = "nominal"
) -> TableRequirement:
    """The requirement that `axis` has the value in `column` of `table`.

    A field can contain alternatives, separated by ` / `. ValueError names the first invalid field.
    """
    allowed: dict[Version, tuple[Specifier, ...]] = {}
    for key, text in table.column(column).items():
        if text is None or not key:
            continue
        try:
            (clause,) = parse_specifier(schemes[table.key], key).clauses
            options = tuple(parse_specifier(schemes[axis], option) for option in text.split(" / "))
            options = tuple(_widened(schemes[axis], option, part) for option in options)
        except ValueError as error:
            raise ValueError(f"row {key!r} of table {table.name!r}: {error}") from error
        if clause.version is None or clause.operator != "==":
            raise ValueError(f"row {key!r} of table {table.name!r} is not named by a version")
        allowed[clause.version] = options
    return TableRequirement(axis=axis, table=table.name, key=table.key, allowed=allowed, part=part)


def published_specifiers(scheme: Scheme, text: str) -> tuple[Specifier, ...]:
    """The alternatives in a field of a published table; () if it is not a version or specifier.

    Remarks in parentheses and the names of release branches (`releases/v0.13.0`) are accepted.
    """
    try:
        return tuple(parse_specifier(scheme, part) for part in plain_version(text).split(" / "))
    except ValueError:
        return ()


def plain_version(text: str) -> str:
    """A field of a published table without a remark in parentheses and without `releases/v`."""
    return _RELEASE_BRANCH.sub("", _REMARK.sub("", text))


def _widened(scheme: Scheme, specifier: Specifier, part: str) -> Specifier:
    """The versions that agree in `part` with the one version that a specifier names, else the specifier."""
    exact = specifier.clauses[0] if len(specifier.clauses) == 1 else None
    if part == "nominal" or exact is None or exact.version is None or exact.operator != "==":
        return specifier
    version = exact.version
    if part == "later-build":
        return parse_specifier(scheme, f">={version.public},=={version.release}.*")
    release = version.release.split(".")[:2]
    return parse_specifier(scheme, f"=={'.'.join(release)}.*") if len(release) == 2 else specifier


def allows(specifier: Specifier, version: Version) -> bool | None:
    """Whether a published specifier allows a version, compared as installers do.

    Builds of one version that differ in their local label, mostly by platform, are the same version.
    """
    if version.scheme is not Scheme.PEP440 or (published := _specifier_set(specifier)) is None:
        return specifier.contains(version)
    if published.contains(version.nominal, prereleases=True):
        return True
    listed = (clause.version for clause in specifier.clauses if clause.operator == "==" and clause.version)
    return any("+" in one.nominal and one.public.is_same(version.public) for one in listed)


@functools.lru_cache(maxsize=4096)
def _specifier_set(specifier: Specifier) -> SpecifierSet | None:
    try:
        return SpecifierSet("" if not specifier.clauses else str(specifier))
    except InvalidSpecifier:
        return None


def _matches_any(specifiers: Sequence[Specifier], version: Version) -> bool | None:
    """Whether one of the specifiers matches; None if none does and one cannot be decided."""
    matches = [specifier.contains(version) for specifier in specifiers]
    return True if True in matches else None if None in matches else False


def _explain(rule: Requirement, versions: Versions) -> str:
    if isinstance(rule, TableRequirement):
        options = " or ".join(str(specifier).removeprefix("==") for specifier in rule.allowed_for(versions))
        published = f"{_state(versions, (rule.key,))} is published with {rule.axis} {options}"
        return f"{published}, not {versions[rule.axis].short}"
    if isinstance(rule, AxisAgreement):
        return f"{_state(versions, rule.axes)} differ in {rule.part}"
    return f"{_state(versions, (rule.axis,))} is not {str(rule).removeprefix(rule.axis + ' ')}"


def _state(versions: Versions, axes: tuple[str, ...]) -> str:
    return " and ".join(f"{axis} {versions[axis].short}" for axis in axes)
