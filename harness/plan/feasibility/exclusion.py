"""Why a combination of versions is excluded: the rules that exclude it, and the nearest valid cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import InputError, Location, did_you_mean
from harness.matrix.cells.product_expansion import expand_product
from harness.matrix.model.cell import Cell
from harness.matrix.model.constraints import Condition, Constraint
from harness.matrix.model.definitions import Selection
from harness.matrix.model.versions import Version
from harness.matrix.version_matrix import Matrix


@dataclass(frozen=True, kw_only=True)
class RuleViolation:
    """A rule that speaks against a combination: what it finds, why, on whose word, and where it is written.

    what: "" for a rule that only objects together with others.
    """

    rule: str
    what: str
    reason: str
    source: str
    where: Location


@dataclass(frozen=True, kw_only=True)
class NearestCell:
    """A valid cell, and the values in which it differs from what was asked: axis -> (asked, has)."""

    cell: Cell
    changes: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """All about one combination of values, which may leave axes open.

    violated: rules the values themselves break. contradiction: the smallest set of rules found that together
    leave no value for the open axes. cells: valid cells that have all the values. nearest: others.
    """

    axes: Mapping[str, str]
    violated: tuple[RuleViolation, ...]
    contradiction: tuple[RuleViolation, ...]
    cells: tuple[Cell, ...]
    nearest: tuple[NearestCell, ...]


def explain_combination(
    matrix: Matrix, axes: Mapping[str, Version], count: int = 3, conditions: Sequence[Condition] = ()
) -> Explanation:
    """Why the combination is in or out, over the cells of every profile; `count` nearest cells.

    conditions: what other axes may have beside it.
    """
    wanted = {axis: str(version) for axis, version in axes.items()}
    cells = tuple(
        cell
        for cell in matrix.all_cells
        if all(cell.axes.get(axis) == value for axis, value in wanted.items())
        and meets_conditions(matrix, cell, conditions)
    )
    violated = rule_violations(matrix, axes)
    minimal_contradiction = () if cells or violated else _contradiction_anywhere(matrix, axes, conditions)
    return Explanation(
        axes=wanted,
        violated=violated,
        contradiction=minimal_contradiction,
        cells=cells,
        nearest=() if cells else nearest_cells(matrix, wanted, count),
    )


def parse_axes(matrix: Matrix, words: Sequence[str]) -> dict[str, Version]:
    """Values written `axis=value`, also several with commas between; InputError names the nearest axis."""
    found: dict[str, Version] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        axis, separator, value = word.partition("=")
        if axis not in matrix.axes:
            raise InputError(f"unknown axis {axis!r}", fix=did_you_mean(axis, matrix.axes))
        if not separator or not value:
            raise InputError(f"{word!r} gives {axis} no value", fix=f"write {axis}=VERSION")
        try:
            found[axis] = matrix.axes[axis].parse(value.removeprefix("="))
        except ValueError as error:
            raise InputError(f"{word!r} is not a valid value of {axis}", why=str(error)) from None
    return found


def rule_violations(matrix: Matrix, axes: Mapping[str, Version]) -> tuple[RuleViolation, ...]:
    """The rules a combination breaks, in the order of the file."""
    found = ((rule, rule.violation(axes)) for rule in matrix.constraints.values())
    return tuple(_objection(rule, what) for rule, what in found if what)


def meets_conditions(matrix: Matrix, cell: Cell, conditions: Sequence[Condition]) -> bool:
    """Whether the cell has a value that fits for every condition."""
    versions = matrix.versions(
        {condition.axis: cell.axes[condition.axis] for condition in conditions if condition.axis in cell.axes}
    )
    return all(condition.holds(versions) is True for condition in conditions)


def minimal_contradiction(
    product: Mapping[str, Sequence[Version]], fixed: Mapping[str, Version], rules: Sequence[Constraint]
) -> tuple[Constraint, ...]:
    """Rules that together exclude every combination, none of which can be left out; () when one is valid.

    Found by leaving out one rule after the other (Bakker et al. 1993, the deletion filter).
    """
    if not _infeasible(product, fixed, rules):
        return ()
    needed = list(rules)
    for rule in rules:
        rest = [other for other in needed if other is not rule]
        if _infeasible(product, fixed, rest):
            needed = rest
    return tuple(needed)


def nearest_cells(matrix: Matrix, wanted: Mapping[str, str], count: int) -> tuple[NearestCell, ...]:
    """Valid cells that differ in the fewest of the wanted values, and in those by the fewest steps."""
    steps = _steps(matrix)

    def distance(cell: Cell) -> tuple[int, int, str]:
        differing = [axis for axis, value in wanted.items() if cell.axes.get(axis) != value]
        far = sum(_apart(steps, axis, wanted[axis], cell.axes.get(axis)) for axis in differing)
        return len(differing), far, cell.id

    valid = [cell for cell in matrix.all_cells if not cell.stack]
    return tuple(
        NearestCell(
            cell=cell,
            changes={
                axis: (value, cell.axes.get(axis, "none"))
                for axis, value in wanted.items()
                if cell.axes.get(axis) != value
            },
        )
        for cell in sorted(valid, key=distance)[:count]
    )


def explain_empty_selection(matrix: Matrix, selection: Selection) -> tuple[RuleViolation, ...]:
    """The rules that together leave nothing of a selection's product; () when something is left."""
    product = {
        axis: [matrix.axes[axis].parse(text) for text in texts] for axis, texts in selection.product.items()
    }
    if not product:
        return ()
    found = minimal_contradiction(
        product, matrix.versions(selection.fixed), tuple(matrix.constraints.values())
    )
    return tuple(_objection(rule, "") for rule in found)


def _contradiction_anywhere(
    matrix: Matrix, axes: Mapping[str, Version], conditions: Sequence[Condition]
) -> tuple[RuleViolation, ...]:
    """What stands in the way in the widest product that has all the axes, and in which something does."""
    asked = {*axes, *(condition.axis for condition in conditions)}
    selections = [
        selection
        for profile in matrix.profiles.values()
        for selection in profile.select
        if selection.product and asked <= {*selection.product, *selection.fixed}
    ]

    def fits(axis: str, version: Version) -> bool:
        return all(one.holds({axis: version}) is True for one in conditions if one.axis == axis)

    for selection in sorted(selections, key=_combinations, reverse=True):
        product = {
            axis: [axes[axis]]
            if axis in axes
            else [version for version in map(matrix.axes[axis].parse, texts) if fits(axis, version)]
            for axis, texts in selection.product.items()
        }
        fixed = {**matrix.versions(selection.fixed), **axes}
        found = minimal_contradiction(product, fixed, tuple(matrix.constraints.values()))
        if found:
            return tuple(_objection(rule, "") for rule in found)
    return ()


def _combinations(selection: Selection) -> int:
    return math.prod(len(texts) for texts in selection.product.values())


def _infeasible(
    product: Mapping[str, Sequence[Version]], fixed: Mapping[str, Version], rules: Sequence[Constraint]
) -> bool:
    # An axis that no rule reads multiplies combinations and decides nothing.
    read = {axis for rule in rules for axis in rule.axes}
    relevant = {axis: values for axis, values in product.items() if axis in read}
    rest = {axis: version for axis, version in fixed.items() if axis not in relevant}
    return not any(part.constraint is None for part in expand_product(relevant, rest, rules))


def _objection(rule: Constraint, what: str) -> RuleViolation:
    return RuleViolation(rule=rule.id, what=what, reason=rule.reason, source=rule.source, where=rule.where)


def _steps(matrix: Matrix) -> Mapping[str, Mapping[str, int]]:
    """Axis -> value -> its place among all values of the axis that any cell has."""
    places: dict[str, dict[str, int]] = {}
    for axis in matrix.axes.values():
        values = {cell.axes[axis.name] for cell in matrix.all_cells if axis.name in cell.axes}
        parsed = [axis.parse(value) for value in values]
        ordered = sorted(parsed, key=lambda one: (one.order is None, one.order or (), str(one)))
        places[axis.name] = {str(version): number for number, version in enumerate(ordered)}
    return places


def _apart(steps: Mapping[str, Mapping[str, int]], axis: str, wanted: str, has: str | None) -> int:
    places = steps[axis]
    if has is None or wanted not in places:
        return len(places)
    return abs(places[wanted] - places[has])
