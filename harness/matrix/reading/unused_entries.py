"""Finds entries of matrix.yaml that have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from harness.errors import Problem
from harness.matrix.cells.pins import resolve_rules
from harness.matrix.cells.product_expansion import expand_product
from harness.matrix.model.constraints import Constraint, ExcludedCombinations, ViolationKind, plain_version
from harness.matrix.model.versions import Version
from harness.matrix.version_matrix import Matrix


def find_unused_entries(matrix: Matrix) -> Iterator[Problem]:
    """Axis values, constraints, stacks, recipes, expectations and pin rules that affect no cell.

    Entries of the included matrix of npu-matrix are left out: nobody uses all of them.
    """
    for problem in _unused_entries(matrix):
        if problem.where is None or matrix.is_own(problem.where):
            yield problem


def _unused_entries(matrix: Matrix) -> Iterator[Problem]:
    yield from _values(matrix)
    yield from _products(matrix)
    yield from _constraints(matrix)
    yield from _stacks_and_recipes(matrix)
    cells = [(cell, matrix.versions(cell.axes)) for cell in matrix.all_cells]
    for expectation in matrix.expectations.values():
        if not any(expectation.covers(cell, versions) for cell, versions in cells):
            yield Problem(
                f"expectation {expectation.id!r} covers no cell", expectation.where, fix="remove it"
            )
    combinations = [*(versions for _, versions in cells), *_published(matrix)]
    for rule in (*matrix.pin_rules, *matrix.override_rules):
        if not any(resolve_rules((rule,), versions) for versions in combinations):
            yield Problem(
                f"rule {rule.template!r} applies to no cell and no published release",
                rule.where,
                fix="remove it",
            )


def _published(matrix: Matrix) -> Iterator[dict[str, Version]]:
    """The releases that published tables list, alone and with the others of their row: users add these."""
    for axis in matrix.axes.values():
        for value in axis.published:
            yield matrix.versions({axis.name: value})
    for table in matrix.published.values():
        for row in table.rows:
            fields = dict(zip(table.columns, map(plain_version, map(str, row)), strict=True))
            axes = {name: matrix.axes[name] for name in fields if name in matrix.axes}
            listed = [name for name, axis in axes.items() if fields[name] in axis.published]
            yield matrix.versions({name: fields[name] for name in listed})


#: Axes that need no value: stacks that `advise` adds have an architecture if it is not the usual one.
NOT_NEEDED = frozenset({"arch"})


def _values(matrix: Matrix) -> Iterator[Problem]:
    combinations = [cell.axes for cell in matrix.all_cells]
    selections = [selection for profile in matrix.profiles.values() for selection in profile.select]
    used = {(axis, value) for axes in combinations for axis, value in axes.items()}
    used |= {(axis, value) for one in selections for axis, values in one.product.items() for value in values}
    axes_used = {axis for axis, _ in used}
    for axis in matrix.axes.values():
        if axis.name in NOT_NEEDED and axis.name not in axes_used:
            continue
        if axis.name not in axes_used:
            yield Problem(f"axis {axis.name!r} has no value in any cell", axis.where, fix="remove it")
            continue
        for value in axis.values:
            if (axis.name, value) not in used:
                yield Problem(
                    f"no cell uses value {value!r} of axis {axis.name!r}", axis.where, fix="remove it"
                )


def _products(matrix: Matrix) -> Iterator[Problem]:
    """Values of a product for which the constraints exclude every cell."""
    for profile in matrix.profiles.values():
        cell_set = matrix.cells(profile.name)
        used = {pair for cell in cell_set.cells if not cell.stack for pair in cell.axes.items()}
        positions = {pair: where for part in profile.select for pair, where in part.provenance.items()}
        if positions and not used:
            yield Problem(
                f"constraints exclude every cell of the products of profile {profile.name!r}", profile.where
            )
            continue
        for (axis, value), where in positions.items():
            if (axis, value) not in used:
                rules = {part.constraint.id for part in cell_set.excluded if part.axes.get(axis) == value}
                yield Problem(
                    f"no cell of profile {profile.name!r} has {axis} {value}",
                    where,
                    why=f"excluded by {', '.join(sorted(rules))}" if rules else "",
                )


def _constraints(matrix: Matrix) -> Iterator[Problem]:
    """Constraints that no cell violates. What a package requires also is for cells of others."""
    for constraint in matrix.constraints.values():
        if constraint.kind is not ViolationKind.REQUIREMENT and not _excludes_something(matrix, constraint):
            yield Problem(f"constraint {constraint.id!r} excludes nothing", constraint.where, fix="remove it")


def _excludes_something(matrix: Matrix, constraint: Constraint) -> bool:
    """Whether any stack or combination violates it, including those that other constraints exclude too."""
    if any(constraint.violation(matrix.versions(stack.axes)) for stack in matrix.stacks.values()):
        return True
    for profile in matrix.profiles.values():
        for selection in profile.select:
            # Only the axes of the constraint matter, so this product is small even for a large profile.
            product = {
                axis: [matrix.axes[axis].parse(text) for text in texts]
                for axis, texts in selection.product.items()
                if axis in constraint.axes
            }
            parts = expand_product(product, matrix.versions(selection.fixed), [constraint])
            if product and any(isinstance(part, ExcludedCombinations) for part in parts):
                return True
    return False


def _stacks_and_recipes(matrix: Matrix) -> Iterator[Problem]:
    selections = [selection for profile in matrix.profiles.values() for selection in profile.select]
    selected = {name for selection in selections for name in selection.stacks}
    for stack in matrix.stacks.values():
        migration = matrix.migrations.get(stack.name)
        if selected.isdisjoint({stack.name, migration.stack if migration else stack.name}):
            yield Problem(f"stack {stack.name!r} is in no profile", stack.where, fix="add it to a profile")
    used = {stack.recipe for stack in matrix.stacks.values()} | {one.recipe for one in selections}
    extended = {base for name in used if name for base in matrix.recipes[name].bases}
    for recipe in matrix.recipes.values():
        if recipe.name not in used | extended:
            yield Problem(f"no cell uses recipe {recipe.name!r}", recipe.where, fix="remove it")
