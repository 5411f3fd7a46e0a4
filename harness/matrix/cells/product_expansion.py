"""Expands products of axis values, except partial combinations that violate a constraint."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from harness.matrix.model.constraints import Constraint, ExcludedCombinations
from harness.matrix.model.versions import Version


def expand_product(
    product: Mapping[str, Sequence[Version]], fixed: Mapping[str, Version], constraints: Sequence[Constraint]
) -> Iterator[Mapping[str, Version] | ExcludedCombinations]:
    """Every feasible combination, in the order of the lists, and the smallest excluded partial ones."""
    open_axes = unconstrained_axes(product, constraints)
    for part in partial_combinations(product, fixed, constraints):
        if isinstance(part, ExcludedCombinations):
            yield part
            continue
        for values in itertools.product(*(product[axis] for axis in open_axes)):
            yield {**part, **dict(zip(open_axes, values, strict=True))}


def partial_combinations(
    product: Mapping[str, Sequence[Version]], fixed: Mapping[str, Version], constraints: Sequence[Constraint]
) -> Iterator[Mapping[str, Version] | ExcludedCombinations]:
    """The excluded and the feasible partial combinations of a product, without the `unconstrained_axes`.

    Each constraint is evaluated once per partial combination: when the last axis that it reads gets a value.
    The cost grows with the number of undecided partial combinations and not with the size of the product.
    """
    open_axes = unconstrained_axes(product, constraints)
    axes = [axis for axis in product if axis not in open_axes]
    decidable = _decidable_constraints(axes, constraints)
    remaining = [
        math.prod(len(product[axis]) for axis in (*axes[depth:], *open_axes))
        for depth in range(len(axes) + 1)
    ]
    versions = dict(fixed)

    def find_violation(depth: int) -> ExcludedCombinations | None:
        for constraint in decidable[depth]:
            what = constraint.violation(versions)
            if what:
                return ExcludedCombinations(dict(versions), constraint, what, remaining[depth])
        return None

    def descend(depth: int) -> Iterator[Mapping[str, Version] | ExcludedCombinations]:
        axis, is_last = axes[depth], depth + 1 == len(axes)
        has_constraints = bool(decidable[depth + 1])
        for version in product[axis]:
            versions[axis] = version
            excluded = find_violation(depth + 1) if has_constraints else None
            if excluded:
                yield excluded
            elif is_last:
                yield dict(versions)
            else:
                yield from descend(depth + 1)
        del versions[axis]

    excluded = find_violation(0)
    if excluded or not axes:
        yield excluded or dict(versions)
        return
    yield from descend(0)


def unconstrained_axes(
    product: Mapping[str, Sequence[Version]], constraints: Sequence[Constraint]
) -> tuple[str, ...]:
    """The axes at the end of the product that no constraint reads."""
    constrained = {axis for constraint in constraints for axis in constraint.axes}
    last_axes = itertools.takewhile(lambda axis: axis not in constrained, reversed(tuple(product)))
    return tuple(reversed(tuple(last_axes)))


def _decidable_constraints(axes: Sequence[str], constraints: Sequence[Constraint]) -> list[list[Constraint]]:
    """For each number of axes with a value: the constraints that can be decided then, but not before."""
    depth_of = {axis: depth for depth, axis in enumerate(axes, start=1)}
    decidable: list[list[Constraint]] = [[] for _ in range(len(axes) + 1)]
    for constraint in constraints:
        # A constraint needs no value for axes that the product does not have.
        decidable[max((depth_of.get(axis, 0) for axis in constraint.axes), default=0)].append(constraint)
    return decidable
