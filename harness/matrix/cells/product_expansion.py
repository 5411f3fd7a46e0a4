"""Products of axis values, cut as soon as the values assigned so far decide about the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.matrix.model.constraints import Constraint
from harness.matrix.model.versions import Version


class PartialCombination(NamedTuple):
    """Values of a combination, or of a part of it that decides: by violating `constraint`, or by being valid.

    combinations: how many full combinations it stands for (1 for a full one).
    """

    versions: Mapping[str, Version]
    constraint: Constraint | None = None
    what: str = ""
    combinations: int = 1


def expand_product(
    product: Mapping[str, Sequence[Version]], fixed: Mapping[str, Version], constraints: Sequence[Constraint]
) -> Iterator[PartialCombination]:
    """Every feasible combination, in the order of the lists, and every smallest excluded part of one."""
    left = unconstrained_axes(product, constraints)
    for part in partial_combinations(product, fixed, constraints):
        if part.constraint is not None or not left:
            yield part
            continue
        for values in itertools.product(*(product[axis] for axis in left)):
            yield PartialCombination({**part.versions, **dict(zip(left, values, strict=True))})


def partial_combinations(
    product: Mapping[str, Sequence[Version]], fixed: Mapping[str, Version], constraints: Sequence[Constraint]
) -> Iterator[PartialCombination]:
    """The parts of a product, in the order of the lists: excluded, or valid whatever `open_axes` have.

    A constraint is looked at once, when the last axis it reads has got its value, so the work grows with the
    partial combinations that are still undecided and not with the full product.
    """
    left = unconstrained_axes(product, constraints)
    axes = [axis for axis in product if axis not in left]
    due = _due(axes, constraints)
    remaining = [math.prod(len(product[axis]) for axis in (*axes[at:], *left)) for at in range(len(axes) + 1)]
    versions = dict(fixed)

    def violated(depth: int) -> PartialCombination | None:
        for constraint in due[depth]:
            what = constraint.violation(versions)
            if what:
                return PartialCombination(dict(versions), constraint, what, remaining[depth])
        return None

    def descend(depth: int) -> Iterator[PartialCombination]:
        axis, last = axes[depth], depth + 1 == len(axes)
        has_due = bool(due[depth + 1])
        for version in product[axis]:
            versions[axis] = version
            found = violated(depth + 1) if has_due else None
            if found:
                yield found
            elif last:
                yield PartialCombination(dict(versions), combinations=remaining[-1])
            else:
                yield from descend(depth + 1)
        del versions[axis]

    found = violated(0)
    if found or not axes:
        yield found or PartialCombination(dict(versions), combinations=remaining[-1])
        return
    yield from descend(0)


def unconstrained_axes(
    product: Mapping[str, Sequence[Version]], constraints: Sequence[Constraint]
) -> tuple[str, ...]:
    """The last axes of the product, none of which any constraint reads."""
    read = {axis for constraint in constraints for axis in constraint.axes}
    left = itertools.takewhile(lambda axis: axis not in read, reversed(tuple(product)))
    return tuple(reversed(tuple(left)))


def _due(axes: Sequence[str], constraints: Sequence[Constraint]) -> list[list[Constraint]]:
    """For each number of assigned axes: the constraints that can be decided then, and not before."""
    depth_of = {axis: depth for depth, axis in enumerate(axes, start=1)}
    due: list[list[Constraint]] = [[] for _ in range(len(axes) + 1)]
    for constraint in constraints:
        # Axes the combination lacks decide nothing, so they are not waited for.
        due[max((depth_of.get(axis, 0) for axis in constraint.axes), default=0)].append(constraint)
    return due
