"""The entries of matrix.yaml as typed values: axes, stacks, recipes, profiles, runners, expectations."""

from __future__ import annotations

import datetime as dt
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import Location
from harness.matrix.model.cell import Cell, KnownInconsistency
from harness.matrix.model.constraints import Condition, Requirement
from harness.matrix.model.versions import Scheme, Version, parse_version

Scalar = str | int | bool | None


@dataclass(frozen=True, kw_only=True)
class WheelVariants:
    """Where wheels of a package for several kinds of NPU are, and what its ordinary wheels are built for.

    index: of wheel variants. plain_for: the values of the axis `soc` that ordinary wheels are built for.
    """

    index: str
    plain_for: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One versioned component of a cell. values: allowed value -> facts about it; empty: any version.

    published: the versions that published tables list, in normal form. alternatives: addresses of the same
    repository elsewhere, in the order in which they are tried.
    """

    name: str
    title: str
    scheme: Scheme
    source: str
    package: str = ""
    on_index: bool = True
    repository: str = ""
    alternatives: tuple[str, ...] = ()
    tag: str = ""
    build_env: Mapping[str, str] = field(default_factory=dict)
    extra_index: tuple[str, ...] = ()
    variants: WheelVariants | None = None
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    published: frozenset[str] = frozenset()
    #: The versions that `host` can mean, for the axis `python`; None if any.
    host: Condition | None = None
    where: Location = field(compare=False)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the repository can be fetched, in the order in which the addresses are tried."""
        return (self.repository, *self.alternatives) if self.repository else ()

    def may_be_on_extra_index(self, value: str) -> bool:
        """Whether a version that the user's indexes lack may exist: somebody lists it, or it is not final.

        Vendors publish development builds on their own index only. "" is any version that packages require.
        """
        if not value:
            return True
        nominal = self.parse(value).nominal
        return nominal in self.published or ".dev" in nominal or "+" in nominal

    def parse(self, text: str) -> Version:
        """The version that `text` denotes; ValueError says why it is not a valid value of this axis."""
        return parse_version(self.scheme, text)


@dataclass(frozen=True, kw_only=True)
class ReportedFailure:
    """A failure that users of a stack see.

    logs: its lines in several wordings. cause: what triage must name.
    """

    logs: tuple[str, ...]
    cause: str
    source: str
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A cell with a name, as its authors publish it.

    axes: axis name -> value in normal form. failures: those that users see, also of the stacks that it names
    for them. no_failures: where failures were looked for, if none is known.
    """

    name: str
    title: str
    source: str
    axes: Mapping[str, str]
    recipe: str
    findings: tuple[KnownInconsistency, ...]
    notes: tuple[str, ...]
    failures: tuple[ReportedFailure, ...] = ()
    no_failures: str = ""
    provenance: Mapping[str, Location] = field(compare=False)
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training or inference job, which runs on `nodes` with `cards` each.

    entry: the Python module or script that is started. overrides: configuration, as on its command line.
    bases: the recipes that it extends; `overrides` and `env` already include theirs.
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
    """A pin or override of the cells that meet `when`. template: a requirement with placeholders `{axis}`.

    of: the packages whose requirements an override replaces, as normalised names; empty for a pin.
    yields_to: the package whose requirements replace contradicting ones of `of`; then the template is empty.
    """

    when: tuple[Requirement, ...]
    template: str
    reason: str
    source: str
    axes: tuple[str, ...]
    of: tuple[str, ...] = ()
    yields_to: str = ""
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Some cells of a profile: named stacks, or a product of axis values.

    fixed: axis -> the version that all cells of the product have.
    """

    stacks: tuple[str, ...]
    product: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, str]
    recipe: str
    provenance: Mapping[tuple[str, str], Location] = field(compare=False)
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class OmittedCheck:
    """A check that a profile does not run, and why. The command line can still select it by name."""

    check: str
    reason: str
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A selection of cells and checks that one command plans."""

    name: str
    title: str
    select: tuple[Selection, ...]
    without: tuple[OmittedCheck, ...] = ()
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class PatchPlace:
    """Patches that are read where they lie: in a folder, or on a branch of this repository.

    upstream: the axis whose source they change; "" if the layout names it. folder: relative to the checkout,
    "" for a branch. axis: the axis whose repository has the folder, at the commit of the cell; "" for the
    checkout. layout: "" to detect it. versions: the versions that they are for; None for those that
    the layout names, else all. files: globs of the files in the folder that count; empty for all. strip: the
    number of leading components that their paths have. inside: the folder of the sources that the paths are
    relative to, "" for the top. left_out: why no cell has them, or "".
    branch, base: the branch with the changes, and what it started from.
    is_included: the entry is of the shipped matrix, which another matrix includes.
    """

    upstream: str
    folder: str = ""
    axis: str = ""
    layout: str = ""
    versions: Condition | None = None
    files: tuple[str, ...] = ()
    strip: int = 1
    inside: str = ""
    left_out: str = ""
    branch: str = ""
    base: str = ""
    source: str = ""
    is_included: bool = False
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A machine or cluster that can execute tasks, and the kinds of devices that it has.

    socs: families of its NPUs. keys: public keys whose signatures on its hardware outcomes count, in the form
    of an allowed-signers file. namespace: that of its signatures. revoked_keys: a file next to matrix.yaml,
    or "".
    """

    name: str
    title: str
    kind: str
    devices: tuple[str, ...]
    labels: Mapping[str, str]
    where: Location = field(compare=False)
    socs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    namespace: str = ""
    revoked_keys: str = ""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A declared expected failure. `harness.verdict` compares it with outcomes.

    cells: a glob pattern for cell ids and stack names, or "" if `conditions` select the cells.
    because: each reason of the failure must contain one of these texts. Empty: any failure of that state.
    until_date, until_version: when it ends; cells that meet `until_version` are no longer covered.
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
        """Whether the expectation applies to this cell, regardless of the date."""
        if self.until_version is not None and self.until_version.holds(versions):
            return False
        if self.cells:
            return any(fnmatch.fnmatchcase(name, self.cells) for name in (cell.id, cell.stack) if name)
        return all(condition.holds(versions) for condition in self.conditions)

    def expired(self, today: dt.date) -> bool:
        """Whether the end date has passed; always False for an expectation that ends with a version."""
        return self.until_date is not None and today > self.until_date
