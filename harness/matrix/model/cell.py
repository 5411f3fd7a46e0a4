"""Cells: one value for each axis, with a stable id that is safe as a file, label, job and Kubernetes name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.digest import digest_json
from harness.errors import Location

DIGEST_DIGITS = 12
SLUG_LENGTH = 50
_UNSAFE = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A requirement of a cell (or an override of what packages ask for), why, and on whose word."""

    requirement: str
    reason: str
    source: str
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class KnownInconsistency:
    """A known inconsistency of what is published; `constraint` names the rule that shows it, or is ""."""

    what: str
    source: str
    axes: tuple[str, ...] = ()
    constraint: str = ""
    where: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One value for each axis, and where each came from. `stack` is "" for a cell of a product.

    axes: axis name -> value in normal form. provenance: axis name -> where the value is written.
    recipe: name of the job, or "". findings: what is known to be inconsistent in the published source.
    without: ids of patches that are for its versions and not applied: such a cell is only searched for.
    digest: of the axes as JSON where that is known already, else "".
    """

    id: str
    stack: str
    title: str
    axes: Mapping[str, str]
    provenance: Mapping[str, Location] = field(compare=False)
    pins: tuple[Pin, ...] = ()
    overrides: tuple[Pin, ...] = ()
    recipe: str = ""
    findings: tuple[KnownInconsistency, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    without: tuple[str, ...] = ()
    digest: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def device(self) -> str:
        """What the cell runs on: `sim`, `npu` or `cpu`; a cell that does not say is for an NPU."""
        return self.axes.get("device", "npu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """Combinations a constraint takes out of a product: those with `axes`, `combinations` of them."""

    axes: Mapping[str, str]
    constraint: str
    what: str
    reason: str
    source: str
    where: Location = field(compare=False)
    combinations: int = 1


@dataclass(frozen=True, kw_only=True)
class CellSet:
    """The cells of a profile, in the order of the file, and what constraints took out."""

    profile: str
    cells: tuple[Cell, ...]
    excluded: tuple[Excluded, ...]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def get(self, name: str) -> Cell | None:
        """The cell with this id, or of this stack."""
        return next((cell for cell in self.cells if name in {cell.id, cell.stack} and name), None)


def cell_id(stack: str, axes: Mapping[str, str]) -> str:
    """`slug-digest`: at most 63 of [a-z0-9-], starting and ending alphanumeric, one for each set of values.

    Only the axes the cell has are digested, so that a new axis or value changes no other cell's id.
    """
    return f"{cell_slug(stack, axes)}-{digest_json(dict(axes))[:DIGEST_DIGITS]}"


def cell_slug(stack: str, axes: Mapping[str, str]) -> str:
    """The part of the id that people read: the stack's name, or what the cell has of verl and device."""
    words = stack or "-".join(["verl", axes["verl"].partition("@")[0]] if "verl" in axes else ["cell"])
    device = "" if stack else "-" + axes.get("device", "npu")
    slug = _UNSAFE.sub("-", (words + device).lower()).strip("-")[:SLUG_LENGTH].strip("-")
    return slug or "cell"
