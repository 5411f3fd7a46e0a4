"""Cells of a product: what many cells share (a value's text, its place, the pins of a rule) is made once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.digest import canonical_json
from harness.errors import Location
from harness.matrix.cells import DIGEST_DIGITS, Cell, Pin, cell_slug
from harness.matrix.model import Axis, PinRule, Selection
from harness.matrix.pins import resolve_rules
from harness.matrix.versions import Version

TITLED = ("verl", "torch_npu", "vllm_ascend", "cann")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Word:
    """One value of one axis: its text, its part of the JSON that is digested, and where it is written."""

    text: str
    member: str
    where: Location


class ProductCells:
    """Makes the cells of one selection from assigned versions, which must be the objects it was given.

    versions: axis -> every version the product or the fixed values have for it, in the order of the axes.
    """

    def __init__(
        self,
        selection: Selection,
        versions: Mapping[str, Sequence[Version]],
        axes: Mapping[str, Axis],
        pins: Sequence[PinRule],
        overrides: Sequence[PinRule],
    ) -> None:
        self._recipe = selection.recipe
        self._axes = tuple(axis for axis in axes if axis in versions)
        # Where each axis stands in `_axes`, in the order of their names.
        self._sorted = tuple(sorted(range(len(self._axes)), key=self._axes.__getitem__))
        # By identity: the same few objects come back in every assignment, and hashing them costs more.
        self._words = tuple(
            (axis, {id(version): _word(axis, version, selection) for version in versions[axis]})
            for axis in self._axes
        )
        self._versions = versions  # keeps the objects alive, and with them their identity
        self._rules = (tuple(pins), tuple(overrides))
        self._read = tuple(axis for axis in self._axes if axis in _read_by((*pins, *overrides)))
        self._named = tuple(axis for axis in (*TITLED, "device") if axis in self._axes)
        self._pins: dict[tuple[int, ...], tuple[tuple[Pin, ...], tuple[Pin, ...]]] = {}
        self._names: dict[tuple[int, ...], tuple[str, str]] = {}

    def cell(self, versions: Mapping[str, Version]) -> Cell:
        """The cell with these values."""
        words = [known[id(versions[axis])] for axis, known in self._words]
        axes = {axis: word.text for axis, word in zip(self._axes, words, strict=True)}
        text = "{" + ",".join([words[place].member for place in self._sorted]) + "}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        slug, title = self._name(versions, axes)
        pins, overrides = self._requirements(versions)
        return Cell(
            id=f"{slug}-{digest[:DIGEST_DIGITS]}",
            stack="",
            title=title,
            axes=axes,
            provenance={axis: word.where for axis, word in zip(self._axes, words, strict=True)},
            pins=pins,
            overrides=overrides,
            recipe=self._recipe,
            digest=digest,
        )

    def _name(self, versions: Mapping[str, Version], axes: Mapping[str, str]) -> tuple[str, str]:
        place = tuple([id(versions[axis]) for axis in self._named])
        known = self._names.get(place)
        if known is None:
            known = self._names[place] = cell_slug("", axes), _title(axes)
        return known

    def _requirements(self, versions: Mapping[str, Version]) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
        place = tuple([id(versions[axis]) for axis in self._read])
        known = self._pins.get(place)
        if known is None:
            pins, overrides = self._rules
            known = self._pins[place] = resolve_rules(pins, versions), resolve_rules(overrides, versions)
        return known


def _word(axis: str, version: Version, selection: Selection) -> _Word:
    text = str(version)
    return _Word(
        text=text,
        member=canonical_json({axis: text})[1:-1],
        where=selection.provenance[axis, text],
    )


def _read_by(rules: Sequence[PinRule]) -> set[str]:
    return {axis for rule in rules for axis in (*rule.axes, *(condition.axis for condition in rule.when))}


def _title(axes: Mapping[str, str]) -> str:
    parts = [f"{axis} {axes[axis].partition('@')[0]}" for axis in TITLED if axis in axes]
    device = {"sim": "simulated device", "cpu": "CPU"}.get(axes.get("device", "npu"), "NPU")
    return ", ".join([*parts, device])
