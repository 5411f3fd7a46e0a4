"""What matrix.yaml says, checked: axes, stacks, recipes, profiles, runners, expectations."""

from __future__ import annotations

import datetime as dt
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import Location
from harness.matrix.model.cell import Cell, KnownInconsistency
from harness.matrix.model.constraints import Condition
from harness.matrix.model.versions import Scheme, Version, parse_version

Scalar = str | int | bool | None


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One versioned part. `values` lists the only ones allowed, each with facts; empty means any version."""

    name: str
    title: str
    scheme: Scheme
    source: str
    package: str = ""
    on_index: bool = True
    repository: str = ""
    tag: str = ""
    build_env: Mapping[str, str] = field(default_factory=dict)
    extra_index: tuple[str, ...] = ()
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    where: Location = field(compare=False)

    def parse(self, text: str) -> Version:
        """The value written as `text`; ValueError says why it is none of this axis."""
        return parse_version(self.scheme, text)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A named cell as its authors state it; `axes` holds values in normal form."""

    name: str
    title: str
    source: str
    axes: Mapping[str, str]
    recipe: str
    findings: tuple[KnownInconsistency, ...]
    notes: tuple[str, ...]
    provenance: Mapping[str, Location] = field(compare=False)
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A job: `entry` is the Python module (or program) started with `overrides` on `nodes` x `cards`.

    bases: the recipes whose overrides and env it starts from, which are already merged in.
    """

    name: str
    title: str
    kind: str
    algorithm: str
    entry: str
    overrides: Mapping[str, Scalar]
    env: Mapping[str, str]
    nodes: int
    cards: int
    model: str
    source: str
    bases: tuple[str, ...] = ()
    findings: tuple[KnownInconsistency, ...] = ()
    notes: tuple[str, ...] = ()
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class PinRule:
    """Requirement (or override) `template` for the cells that meet `when`; `{axis}` is the cell's value."""

    when: tuple[Condition, ...]
    template: str
    reason: str
    source: str
    axes: tuple[str, ...]
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Part of a profile: named stacks, or a product of axis values with fixed ones beside it."""

    stacks: tuple[str, ...]
    product: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, str]
    recipe: str
    provenance: Mapping[tuple[str, str], Location] = field(compare=False)
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class OmittedCheck:
    """A check that a profile does not run, and why; naming it on the command line runs it all the same."""

    check: str
    reason: str
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one command plans."""

    name: str
    title: str
    select: tuple[Selection, ...]
    without: tuple[OmittedCheck, ...] = ()
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A place that can execute tasks, and the kinds of device it has."""

    name: str
    title: str
    kind: str
    devices: tuple[str, ...]
    labels: Mapping[str, str]
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """An outcome known to differ from pass. Whether one came true is not judged here.

    cells: a glob over cell ids and stack names, or "" when `conditions` select them.
    because: texts; each reason of the failure has to contain one of them. Empty: any failure of that state.
    until: a date, or a condition: cells that meet it are no longer covered.
    """

    id: str
    cells: str
    conditions: tuple[Condition, ...]
    check: str
    state: str
    because: tuple[str, ...] = ()
    reason: str
    source: str
    owner: str
    until_date: dt.date | None
    until_version: Condition | None
    where: Location = field(compare=False)

    def covers(self, cell: Cell, versions: Mapping[str, Version]) -> bool:
        """Whether it speaks of this cell, whatever the date."""
        if self.until_version is not None and self.until_version.holds(versions):
            return False
        if self.cells:
            return any(fnmatch.fnmatchcase(name, self.cells) for name in (cell.id, cell.stack) if name)
        return all(condition.holds(versions) for condition in self.conditions)

    def expired(self, today: dt.date) -> bool:
        """Whether its date has passed; one that ends with a version never expires by itself."""
        return self.until_date is not None and today > self.until_date
