"""The version matrix: what matrix.yaml says, and the cells its profiles select."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.errors import InputError, Location, did_you_mean
from harness.matrix.cells.gc_pause import gc_paused
from harness.matrix.cells.pins import pins_facet, resolve_rules
from harness.matrix.cells.product_cells import ProductCells
from harness.matrix.cells.product_expansion import (
    PartialCombination,
    partial_combinations,
    unconstrained_axes,
)
from harness.matrix.model.cell import Cell, CellSet, Excluded, KnownInconsistency, cell_id
from harness.matrix.model.constraints import Constraint, PublishedTable
from harness.matrix.model.definitions import (
    Axis,
    Expectation,
    PinRule,
    Profile,
    Recipe,
    Runner,
    Selection,
    Stack,
)
from harness.matrix.model.migration import Migration
from harness.matrix.model.versions import Version


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix:
    """All of matrix.yaml. Mappings are by name, in the order of the file."""

    file: Path | str
    axes: Mapping[str, Axis]
    stacks: Mapping[str, Stack]
    published: Mapping[str, PublishedTable]
    constraints: Mapping[str, Constraint]
    pin_rules: tuple[PinRule, ...]
    override_rules: tuple[PinRule, ...]
    recipes: Mapping[str, Recipe]
    profiles: Mapping[str, Profile]
    runners: Mapping[str, Runner]
    expectations: Mapping[str, Expectation]
    migrations: Mapping[str, Migration] = field(default_factory=dict)

    @gc_paused()
    def cells(self, profile: str) -> CellSet:
        """The cells of a profile, those of stacks first come first; InputError for an unknown profile.

        Stacks are taken as their authors state them: what a constraint says against one is a finding of the
        cell. Combinations of a product that violate a constraint are excluded, with the reason.
        """
        if profile not in self.profiles:
            raise InputError(
                f"no profile {profile!r}",
                where=Location(self.file),
                fix=did_you_mean(profile, self.profiles),
            )
        cells: dict[str, Cell] = {}
        excluded: list[Excluded] = []
        for selection in self.profiles[profile].select:
            for stack in selection.stacks:
                for name in (stack, *(one.name for one in self.migrations.values() if one.stack == stack)):
                    if name in self.stacks:
                        _add(cells, self.stack_cell(name), selection)
            if not selection.product:
                continue
            product, fixed = self._values_of(selection)
            rules = tuple(self.constraints.values())
            left = unconstrained_axes(product, rules)
            maker = ProductCells(selection, product, left, self.axes, (self.pin_rules, self.override_rules))
            for part in partial_combinations(product, fixed, rules):
                if part.constraint is not None:
                    excluded.append(_excluded(part, part.constraint))
                    continue
                for cell in maker.cells(part.versions):
                    _add(cells, cell, selection)
        return CellSet(profile=profile, cells=tuple(cells.values()), excluded=tuple(excluded))

    def with_migrations(self, commits: Mapping[str, Mapping[str, str]]) -> Matrix:
        """With the rows that migrations move to; `commits` says migration -> axis -> what it follows is at.

        A migration that follows a ref whose commit is not known has no row.
        """
        rows = {
            name: row
            for name, one in self.migrations.items()
            if one.stack in self.stacks and (row := one.row(self.stacks[one.stack], commits.get(name)))
        }
        return replace(self, stacks={**self.stacks, **rows})

    def stack_cell(self, name: str) -> Cell:
        """The cell of a named stack."""
        stack = self.stacks[name]
        versions = self.versions(stack.axes)
        return Cell(
            id=cell_id(name, stack.axes),
            stack=name,
            title=stack.title,
            axes=stack.axes,
            provenance=stack.provenance,
            pins=resolve_rules(self.pin_rules, versions),
            overrides=resolve_rules(self.override_rules, versions),
            recipe=stack.recipe,
            findings=(*stack.findings, *self.violations(versions)),
            notes=stack.notes,
            source=stack.source,
        )

    def versions(self, axes: Mapping[str, str]) -> dict[str, Version]:
        """The values of a cell, parsed."""
        return {name: self.axes[name].parse(text) for name, text in axes.items()}

    def violations(self, versions: Mapping[str, Version]) -> tuple[KnownInconsistency, ...]:
        """What every constraint has against a combination."""
        found = ((constraint, constraint.violation(versions)) for constraint in self.constraints.values())
        return tuple(
            KnownInconsistency(
                what=f"{what}: {constraint.reason}",
                source=constraint.source,
                axes=constraint.axes,
                constraint=constraint.id,
                where=constraint.where,
            )
            for constraint, what in found
            if what
        )

    def requirements(self, cell: Cell) -> dict[str, Any]:
        """The `pins` facet of a cell: see `harness.matrix.cells.pins.pins_facet`."""
        return pins_facet(cell, self.axes)

    def fact(self, axis: str, cell: Cell, name: str) -> str:
        """A fact the axis states about the cell's value (such as the chip name of a SoC family), or ""."""
        return self.axes[axis].values.get(cell.axes.get(axis, ""), {}).get(name, "")

    def expectation_for(self, cell: Cell, check: str) -> Expectation | None:
        """The first expectation that covers this check of this cell, expired ones too."""
        versions = self.versions(cell.axes)
        return next(
            (
                expectation
                for expectation in self.expectations.values()
                if expectation.check == check and expectation.covers(cell, versions)
            ),
            None,
        )

    def nearest(self, name: str, count: int = 3) -> tuple[str, ...]:
        """The ids of cells (of any profile) most like `name`, best first; a stack's name finds its cell."""
        import difflib

        known = {word: cell.id for cell in self.all_cells for word in (cell.id, cell.stack) if word}
        words = difflib.get_close_matches(name, known, n=count * 2, cutoff=0.4)
        return tuple(dict.fromkeys(known[word] for word in words))[:count]

    @functools.cached_property
    def all_cells(self) -> tuple[Cell, ...]:
        """The cells of every profile and every stack, each once."""
        cells = {cell.id: cell for name in self.profiles for cell in self.cells(name)}
        cells |= {cell.id: cell for cell in map(self.stack_cell, self.stacks)}
        return tuple(cells.values())

    def _values_of(self, selection: Selection) -> tuple[dict[str, list[Version]], dict[str, Version]]:
        """The values of its product and those fixed beside it, parsed."""
        # In the order of the file's axes, so that the order of a product's keys changes nothing.
        product = {
            axis: [self.axes[axis].parse(text) for text in selection.product[axis]]
            for axis in self.axes
            if axis in selection.product
        }
        return product, self.versions(selection.fixed)


def _add(cells: dict[str, Cell], cell: Cell, selection: Selection) -> None:
    known = cells.setdefault(cell.id, cell)
    if known is cell:
        return
    if known.axes != cell.axes or known.recipe != cell.recipe:
        raise InputError(
            f"two cells have the id {cell.id}",
            where=selection.where,
            why=f"{known.recipe!r} with {dict(known.axes)}, and {cell.recipe!r} with {dict(cell.axes)}",
            fix="give one of them a stack name of its own",
        )


def _excluded(assignment: PartialCombination, constraint: Constraint) -> Excluded:
    return Excluded(
        axes={axis: str(version) for axis, version in assignment.versions.items()},
        constraint=constraint.id,
        what=assignment.what,
        reason=constraint.reason,
        source=constraint.source,
        where=constraint.where,
        combinations=assignment.combinations,
    )
