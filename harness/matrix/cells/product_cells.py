"""Makes the cells of a product. What many cells share (texts, positions, pins) is computed once."""

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
#: Limit for the combinations of the last axes that are prepared once and then used for many cells.
MAX_TAIL_COMBINATIONS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class _PartialCell:
    """The values of some axes, in the order of the matrix: their texts and their positions in matrix.yaml.

    json_members: the values as members of a JSON object, in the order in which they are digested.
    name_values: the values that determine slug and title. pin_values: those that the pin rules read.
    """

    versions: Mapping[str, Version]
    axes: dict[str, str]
    provenance: dict[str, Location]
    json_members: tuple[str, ...]
    name_values: tuple[str, ...]
    pin_values: tuple[str, ...]


class ProductCells:
    """Makes the cells of one selection.

    product: axis -> its versions. open_axes: the last axes of the product, which no constraint reads, so all
    combinations of their versions are feasible. rules: pins and overrides.
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
        self._axes_of_rules = _axes_of_rules((*rules[0], *rules[1]))
        self._axes = tuple(axis for axis in axes if axis in product or axis in selection.fixed)
        count = 0
        while count < len(open_axes) and _size(product, open_axes[-count - 1 :]) <= MAX_TAIL_COMBINATIONS:
            count += 1
        middle, tail = open_axes[: len(open_axes) - count], open_axes[len(open_axes) - count :]
        self._middles = tuple(_combinations(product, middle))
        self._tails = tuple(self._partial_cell(versions) for versions in _combinations(product, tail))
        self._names: dict[tuple[str, ...], tuple[str, str]] = {}
        self._pins: dict[tuple[str, ...], tuple[tuple[Pin, ...], tuple[Pin, ...]]] = {}

    def cells(self, versions: Mapping[str, Version]) -> Iterator[Cell]:
        """The cells that have `versions` on all axes except the open ones."""
        for middle in self._middles:
            head = self._partial_cell({**versions, **middle})
            # Every axis gets a member here, so that `|` below preserves the order of the matrix.
            axes = {axis: head.axes.get(axis, "") for axis in self._axes}
            provenance = {axis: head.provenance.get(axis, self._selection.where) for axis in self._axes}
            template = self._json_template(head)
            for tail in self._tails:
                values = axes | tail.axes
                digest = hashlib.sha256((template % tail.json_members).encode()).hexdigest()
                slug, title = self._name(head, tail, values)
                pins, overrides = self._requirements(head, tail)
                yield Cell(
                    id=f"{slug}-{digest[:DIGEST_DIGITS]}",
                    stack="",
                    title=title,
                    axes=values,
                    provenance=provenance | tail.provenance,
                    pins=pins,
                    overrides=overrides,
                    recipe=self._selection.recipe,
                    digest=digest,
                )

    def _partial_cell(self, versions: Mapping[str, Version]) -> _PartialCell:
        axes = {axis: str(versions[axis]) for axis in self._axes if axis in versions}
        return _PartialCell(
            versions=versions,
            axes=axes,
            provenance={axis: self._selection.provenance[axis, text] for axis, text in axes.items()},
            json_members=tuple(_json_member(axis, axes[axis]) for axis in sorted(axes)),
            name_values=tuple(axes[axis] for axis in (*TITLE_AXES, "device") if axis in axes),
            pin_values=tuple(text for axis, text in axes.items() if axis in self._axes_of_rules),
        )

    def _json_template(self, head: _PartialCell) -> str:
        """The canonical JSON of cells with the values of `head`, with %s for each member of a tail."""
        members = (
            _json_member(axis, head.axes[axis]).replace("%", "%%") if axis in head.axes else "%s"
            for axis in sorted(self._axes)
        )
        return f"{{{','.join(members)}}}"

    def _name(self, head: _PartialCell, tail: _PartialCell, axes: Mapping[str, str]) -> tuple[str, str]:
        """Slug and title. All heads have the same axes, and so have all tails: their values are the key."""
        values = head.name_values + tail.name_values
        name = self._names.get(values)
        if name is None:
            name = self._names[values] = cell_slug("", axes), _title(axes)
        return name

    def _requirements(
        self, head: _PartialCell, tail: _PartialCell
    ) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
        values = head.pin_values + tail.pin_values
        requirements = self._pins.get(values)
        if requirements is None:
            versions = {**head.versions, **tail.versions}
            pins, overrides = self._rules
            requirements = resolve_rules(pins, versions), resolve_rules(overrides, versions)
            self._pins[values] = requirements
        return requirements


def _size(product: Mapping[str, Sequence[Version]], axes: Sequence[str]) -> int:
    return math.prod(len(product[axis]) for axis in axes)


def _combinations(
    product: Mapping[str, Sequence[Version]], axes: Sequence[str]
) -> Iterator[Mapping[str, Version]]:
    for values in itertools.product(*(product[axis] for axis in axes)):
        yield dict(zip(axes, values, strict=True))


def _json_member(axis: str, text: str) -> str:
    return canonical_json({axis: text})[1:-1]


def _axes_of_rules(rules: Sequence[PinRule]) -> set[str]:
    read = {axis for rule in rules for condition in rule.when for axis in condition.axes}
    return read.union(*(rule.axes for rule in rules))


def _title(axes: Mapping[str, str]) -> str:
    parts = [f"{axis} {axes[axis].partition('@')[0]}" for axis in TITLE_AXES if axis in axes]
    device = {"sim": "simulated device", "cpu": "CPU"}.get(axes.get("device", "npu"), "NPU")
    return ", ".join([*parts, device])
