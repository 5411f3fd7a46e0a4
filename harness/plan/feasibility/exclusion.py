"""Why a combination of versions is excluded: the rules that exclude it, and the nearest valid cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import InputError, Location, did_you_mean
from harness.matrix.cells.product_expansion import expand_product
from harness.matrix.model.cell import Cell
from harness.matrix.model.constraints import Condition, Constraint, ExcludedCombinations
from harness.matrix.model.definitions import Selection
from harness.matrix.model.versions import Version
from harness.matrix.version_matrix import Matrix


@dataclass(frozen=True, kw_only=True)
class RuleViolation:
    """A rule that excludes a combination of versions, with its reason, its source and its line in
    matrix.yaml.

    what: what it finds wrong; "" for a rule that excludes the combination only together with other rules.
    """

    rule: str
    what: str
    reason: str
    source: str
    where: Location


@dataclass(frozen=True, kw_only=True)
class NearestCell:
    """A valid cell, and its differences from the requested versions: axis -> (requested, value of the
    cell)."""

    cell: Cell
    changes: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a combination of values for some of the axes is valid or not.

    violated: rules that these values break. contradiction: a minimal set of rules that together leave no
    value for the other axes. cells: valid cells with all the values. nearest: the most similar valid cells.
    """

    axes: Mapping[str, str]
    violated: tuple[RuleViolation, ...]
    contradiction: tuple[RuleViolation, ...]
    cells: tuple[Cell, ...]
    nearest: tuple[NearestCell, ...]


def explain_combination(
    matrix: Matrix, axes: Mapping[str, Version], count: int = 3, conditions: Sequence[Condition] = ()
) -> Explanation:
    """Explain a combination, compared with the cells of every profile.

    count: number of nearest cells to return. conditions: allowed values of other axes.
    """
    requested = {axis: str(version) for axis, version in axes.items()}
    cells = tuple(
        cell
        for cell in matrix.all_cells
        if all(cell.axes.get(axis) == value for axis, value in requested.items())
        and meets_conditions(matrix, cell, conditions)
    )
    violated = rule_violations(matrix, axes)
    contradiction = () if cells or violated else _contradiction_anywhere(matrix, axes, conditions)
    return Explanation(
        axes=requested,
        violated=violated,
        contradiction=contradiction,
        cells=cells,
        nearest=() if cells else nearest_cells(matrix, requested, count),
    )


def parse_axes(matrix: Matrix, words: Sequence[str]) -> dict[str, Version]:
    """Parse `axis=value` words, also several separated by commas; InputError suggests the nearest axis."""
    found: dict[str, Version] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        axis, separator, value = word.partition("=")
        if axis not in matrix.axes:
            raise InputError(f"unknown axis {axis!r}", fix=did_you_mean(axis, matrix.axes))
        if not separator or not value:
            raise InputError(f"{word!r} has no value for {axis}", fix=f"write {axis}=VERSION")
        try:
            found[axis] = matrix.axes[axis].parse(value.removeprefix("="))
        except ValueError as error:
            raise InputError(f"{word!r} is not a valid value of {axis}", why=str(error)) from None
    return found


def rule_violations(matrix: Matrix, axes: Mapping[str, Version]) -> tuple[RuleViolation, ...]:
    """The rules that a combination breaks, in the order of matrix.yaml."""
    found = ((rule, rule.violation(axes)) for rule in matrix.constraints.values())
    return tuple(_objection(rule, what) for rule, what in found if what)


def meets_conditions(matrix: Matrix, cell: Cell, conditions: Sequence[Condition]) -> bool:
    """Whether the cell meets every condition; a cell without the axis of a condition does not."""
    versions = matrix.versions(
        {condition.axis: cell.axes[condition.axis] for condition in conditions if condition.axis in cell.axes}
    )
    return all(condition.holds(versions) is True for condition in conditions)


def minimal_contradiction(
    product: Mapping[str, Sequence[Version]], fixed: Mapping[str, Version], rules: Sequence[Constraint]
) -> tuple[Constraint, ...]:
    """A minimal set of rules that exclude every combination together; () if a combination is valid.

    Found by the deletion filter (Bakker et al. 1993): each rule is dropped if the others suffice without it.
    """
    if not _infeasible(product, fixed, rules):
        return ()
    needed = list(rules)
    for rule in rules:
        rest = [other for other in needed if other is not rule]
        if _infeasible(product, fixed, rest):
            needed = rest
    return tuple(needed)


def nearest_cells(matrix: Matrix, requested: Mapping[str, str], count: int) -> tuple[NearestCell, ...]:
    """The valid cells that differ on the fewest axes from `requested`, and on these by the fewest
    versions."""
    positions = _positions(matrix)

    def distance(cell: Cell) -> tuple[int, int, str]:
        differing = differences(requested, cell)
        versions = sum(
            _versions_apart(positions[axis], value, cell.axes.get(axis))
            for axis, (value, _) in differing.items()
        )
        return len(differing), versions, cell.id

    valid = [cell for cell in matrix.all_cells if not cell.stack]
    return tuple(
        NearestCell(cell=cell, changes=differences(requested, cell))
        for cell in sorted(valid, key=distance)[:count]
    )


def differences(requested: Mapping[str, str], cell: Cell) -> Mapping[str, tuple[str, str]]:
    """Axis -> (requested value, value of the cell or "none"), where they differ."""
    return {
        axis: (value, cell.axes.get(axis, "none"))
        for axis, value in requested.items()
        if cell.axes.get(axis) != value
    }


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
    """The contradiction in the largest product of a profile that has all the axes and a contradiction."""
    required_axes = {*axes, *(condition.axis for condition in conditions)}
    selections = [
        selection
        for profile in matrix.profiles.values()
        for selection in profile.select
        if selection.product and required_axes <= {*selection.product, *selection.fixed}
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
    # An axis that no rule reads only multiplies the number of combinations.
    read = {axis for rule in rules for axis in rule.axes}
    relevant = {axis: values for axis, values in product.items() if axis in read}
    rest = {axis: version for axis, version in fixed.items() if axis not in relevant}
    return all(isinstance(part, ExcludedCombinations) for part in expand_product(relevant, rest, rules))


def _objection(rule: Constraint, what: str) -> RuleViolation:
    return RuleViolation(rule=rule.id, what=what, reason=rule.reason, source=rule.source, where=rule.where)


def _positions(matrix: Matrix) -> Mapping[str, Mapping[str, int]]:
    """Axis -> value -> its position among all values of the axis in the cells of the matrix."""
    positions: dict[str, dict[str, int]] = {}
    for axis in matrix.axes.values():
        values = {cell.axes[axis.name] for cell in matrix.all_cells if axis.name in cell.axes}
        parsed = [axis.parse(value) for value in values]
        ordered = sorted(parsed, key=lambda one: (one.order is None, one.order or (), str(one)))
        positions[axis.name] = {str(version): number for number, version in enumerate(ordered)}
    return positions


def _versions_apart(positions: Mapping[str, int], requested: str, value: str | None) -> int:
    """How many versions lie between two values of an axis; all of them if one is not in the matrix."""
    if value is None or requested not in positions:
        return len(positions)
    return abs(positions[requested] - positions[value])
