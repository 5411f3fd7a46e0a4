"""Cells, with stable ids that are valid names of files, labels, jobs and Kubernetes objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.digest import digest_json
from harness.errors import Location
from harness.matrix.model.constraints import ExcludedCombinations

DIGEST_DIGITS = 12
SLUG_LENGTH = 50
_UNSAFE = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A package requirement or override of a cell, with its reason, source and position in matrix.yaml.

    of: the package whose requirement an override replaces, as a normalised name; "" for a pin.
    yields_to: the package whose requirements replace contradicting ones of `of`; then `requirement` is "".
    """

    requirement: str
    reason: str
    source: str
    of: str = ""
    yields_to: str = ""
    where: Location = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class KnownInconsistency:
    """A known inconsistency in published versions. constraint: the id of the violated constraint, or ""."""

    what: str
    source: str
    axes: tuple[str, ...] = ()
    constraint: str = ""
    where: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One combination of versions.

    stack: the name of its stack, "" for a cell of a product. axes: axis name -> value in normal form.
    provenance: axis name -> the value's position in matrix.yaml. recipe: its name, or "".
    findings: known inconsistencies in the published source. without: ids of patches that are not applied
    although they match the versions; only a search for the effect of a patch sets it.
    inspected: whether it is a list of versions, whose packages' uses of each other are all compared.
    digest: SHA-256 of `axes` as canonical JSON if it was computed with the id, otherwise "".
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
    inspected: bool = False
    digest: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def device(self) -> str:
        """The kind of device: `sim`, `npu` or `cpu`; a cell without a value for this axis runs on an NPU."""
        return self.axes.get("device", "npu")


@dataclass(frozen=True, kw_only=True)
class CellSet:
    """The cells of a profile, in the order of the file, and the combinations that constraints exclude."""

    profile: str
    cells: tuple[Cell, ...]
    excluded: tuple[ExcludedCombinations, ...]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def get(self, name: str) -> Cell | None:
        """The cell whose id or stack is `name`, or None."""
        return next((cell for cell in self.cells if name in {cell.id, cell.stack} and name), None)


def cell_id(stack: str, axes: Mapping[str, str]) -> str:
    """The id of a cell: `slug-digest`, at most 63 characters of [a-z0-9-], alphanumeric at both ends.

    Different values give different ids. Only axes that the cell has are part of the digest, so that adding
    an axis or value to the matrix changes no id of another cell.
    """
    return f"{cell_slug(stack, axes)}-{digest_json(dict(axes))[:DIGEST_DIGITS]}"


def cell_slug(stack: str, axes: Mapping[str, str]) -> str:
    """The readable part of the id: the name of the stack, or the verl version and the device."""
    words = stack or "-".join(["verl", axes["verl"].partition("@")[0]] if "verl" in axes else ["cell"])
    device = "" if stack else "-" + axes.get("device", "npu")
    slug = _UNSAFE.sub("-", (words + device).lower()).strip("-")[:SLUG_LENGTH].strip("-")
    return slug or "cell"
