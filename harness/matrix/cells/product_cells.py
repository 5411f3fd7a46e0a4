"""Cells of a product: what many cells share (a value's text, its place, the pins of a rule) is made once."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.digest import canonical_json
from harness.errors import Location
from harness.matrix.cells.pins import resolve_rules
from harness.matrix.model.cell import DIGEST_DIGITS, Cell, Pin, cell_slug
from harness.matrix.model.definitions import Axis, PinRule, Selection
from harness.matrix.model.versions import Version

TITLE_AXES = ("verl", "torch_npu", "vllm_ascend", "cann")
#: At most so many combinations of the last axes are prepared, in each of which many cells end.
MAX_TAIL_COMBINATIONS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class _PartialCell:
    """Values of some axes, in the order of the matrix: their texts, and where each is written.

    members: their JSON, in the order in which it is digested. read: the texts that decide about pins.
    """

    versions: Mapping[str, Version]
    axes: dict[str, str]
    places: dict[str, Location]
    members: tuple[str, ...]
    named: tuple[str, ...]
    read: tuple[str, ...]


class ProductCells:
    """Makes the cells of one selection.

    product: axis -> its versions. open_axes: the last of the product, which have every combination of their
    versions whatever the others have. rules: pins and overrides.
    """

    def __init__(
        self,
        selection: Selection,
        product: Mapping[str, Sequence[Version]],
        open_axes: Sequence[str],
        axes: Mapping[str, Axis],
        rules: tuple[Sequence[PinRule], Sequence[PinRule]],
    ) -> None:
        self._selection = selection
        self._rules = rules
        self._read = _read_by((*rules[0], *rules[1]))
        self._axes = tuple(axis for axis in axes if axis in product or axis in selection.fixed)
        count = 0
        while count < len(open_axes) and _size(product, open_axes[-count - 1 :]) <= MAX_TAIL_COMBINATIONS:
            count += 1
        rest, prepared = open_axes[: len(open_axes) - count], open_axes[len(open_axes) - count :]
        self._rest = tuple(_combined(product, rest))
        self._tails = tuple(self._part(versions) for versions in _combined(product, prepared))
        self._names: dict[tuple[str, ...], tuple[str, str]] = {}
        self._pins: dict[tuple[str, ...], tuple[tuple[Pin, ...], tuple[Pin, ...]]] = {}

    def cells(self, versions: Mapping[str, Version]) -> Iterator[Cell]:
        """The cells that have these values on all axes but the open ones."""
        for rest in self._rest:
            head = self._part({**versions, **rest})
            # Every axis has its place in these, so that `|` keeps the order of the matrix.
            axes = {axis: head.axes.get(axis, "") for axis in self._axes}
            places = {axis: head.places.get(axis, self._selection.where) for axis in self._axes}
            text = self._text(head)
            for tail in self._tails:
                values = axes | tail.axes
                digest = hashlib.sha256((text % tail.members).encode()).hexdigest()
                slug, title = self._name(head, tail, values)
                pins, overrides = self._requirements(head, tail)
                yield Cell(
                    id=f"{slug}-{digest[:DIGEST_DIGITS]}",
                    stack="",
                    title=title,
                    axes=values,
                    provenance=places | tail.places,
                    pins=pins,
                    overrides=overrides,
                    recipe=self._selection.recipe,
                    digest=digest,
                )

    def _part(self, versions: Mapping[str, Version]) -> _PartialCell:
        axes = {axis: str(versions[axis]) for axis in self._axes if axis in versions}
        return _PartialCell(
            versions=versions,
            axes=axes,
            places={axis: self._selection.provenance[axis, text] for axis, text in axes.items()},
            members=tuple(_member(axis, axes[axis]) for axis in sorted(axes)),
            named=tuple(axes[axis] for axis in (*TITLE_AXES, "device") if axis in axes),
            read=tuple(axes[axis] for axis in self._axes if axis in axes and axis in self._read),
        )

    def _text(self, head: _PartialCell) -> str:
        """The canonical JSON of cells that begin so, with %s for the members of a tail."""
        known = (
            _member(axis, head.axes[axis]).replace("%", "%%") if axis in head.axes else "%s"
            for axis in sorted(self._axes)
        )
        return f"{{{','.join(known)}}}"

    def _name(self, head: _PartialCell, tail: _PartialCell, axes: Mapping[str, str]) -> tuple[str, str]:
        """Slug and title; as head and tail always have the same axes, their texts alone tell them apart."""
        place = head.named + tail.named
        known = self._names.get(place)
        if known is None:
            known = self._names[place] = cell_slug("", axes), _title(axes)
        return known

    def _requirements(
        self, head: _PartialCell, tail: _PartialCell
    ) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
        place = head.read + tail.read
        known = self._pins.get(place)
        if known is None:
            versions = {**head.versions, **tail.versions}
            pins, overrides = self._rules
            known = self._pins[place] = resolve_rules(pins, versions), resolve_rules(overrides, versions)
        return known


def _size(product: Mapping[str, Sequence[Version]], axes: Sequence[str]) -> int:
    return math.prod(len(product[axis]) for axis in axes)


def _combined(
    product: Mapping[str, Sequence[Version]], axes: Sequence[str]
) -> Iterator[Mapping[str, Version]]:
    for values in itertools.product(*(product[axis] for axis in axes)):
        yield dict(zip(axes, values, strict=True))


def _member(axis: str, text: str) -> str:
    return canonical_json({axis: text})[1:-1]


def _read_by(rules: Sequence[PinRule]) -> set[str]:
    return {axis for rule in rules for axis in (*rule.axes, *(condition.axis for condition in rule.when))}


def _title(axes: Mapping[str, str]) -> str:
    parts = [f"{axis} {axes[axis].partition('@')[0]}" for axis in TITLE_AXES if axis in axes]
    device = {"sim": "simulated device", "cpu": "CPU"}.get(axes.get("device", "npu"), "NPU")
    return ", ".join([*parts, device])
