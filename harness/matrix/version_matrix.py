"""The version matrix: the content of matrix.yaml, and the cells that its profiles select."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import InputError, Location, did_you_mean
from harness.gc_pause import gc_paused
from harness.matrix.cells.pins import normal_package, permits, required_package, resolve_rules
from harness.matrix.cells.product_cells import ProductCells
from harness.matrix.cells.product_expansion import (
    partial_combinations,
    unconstrained_axes,
)
from harness.matrix.cells.violations import Violations
from harness.matrix.document.included_documents import SHIPPED_NAME, Replacement
from harness.matrix.model.cell import Cell, CellSet, Pin, cell_id
from harness.matrix.model.constraints import Constraint, ExcludedCombinations, PublishedTable
from harness.matrix.model.definitions import (
    Axis,
    Expectation,
    PatchPlace,
    PinRule,
    Profile,
    Recipe,
    Runner,
    Selection,
    Stack,
)
from harness.matrix.model.migration import Migration
from harness.matrix.model.suite import Suite
from harness.matrix.model.versions import Version


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix:
    """The content of matrix.yaml. All mappings are from names to entries, in the order of the file.

    included_files: the files of the checkout that it includes. includes_shipped: whether it includes the
    matrix of this project. replaced: the included entries that an own entry replaces.
    """

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
    suites: Mapping[str, Suite] = field(default_factory=dict)
    patch_places: tuple[PatchPlace, ...] = ()
    included_files: tuple[Path, ...] = ()
    includes_shipped: bool = False
    replaced: tuple[Replacement, ...] = ()

    @gc_paused()
    def cells(self, profile: str) -> CellSet:
        """The cells of a profile, in the order of its selections; InputError for an unknown profile.

        A stack that violates a constraint stays, because its authors publish it; the violation becomes a
        finding of the cell. Combinations of a product that violate a constraint are excluded.
        """
        if profile not in self.profiles:
            raise InputError(
                f"no profile {profile!r}",
                where=Location(self.file),
                fix=did_you_mean(profile, self.profiles),
            )
        cells: dict[str, Cell] = {}
        excluded: list[ExcludedCombinations] = []
        for selection in self.profiles[profile].select:
            for stack in selection.stacks:
                migrated = (one.name for one in self.migrations.values() if one.stack == stack)
                for name in (stack, *migrated):
                    if name in self.stacks:
                        _add(cells, self.stack_cell(name), selection)
            if not selection.product:
                continue
            # In the order of the axes in the file, so that the order of a product's keys has no effect.
            product = {
                axis: [self.axes[axis].parse(text) for text in selection.product[axis]]
                for axis in self.axes
                if axis in selection.product
            }
            constraints = tuple(self.constraints.values())
            open_axes = unconstrained_axes(product, constraints)
            rules = (self.pin_rules, self.override_rules)
            product_cells = ProductCells(selection, product, open_axes, self.axes, rules)
            for part in partial_combinations(product, self.versions(selection.fixed), constraints):
                if isinstance(part, ExcludedCombinations):
                    excluded.append(part)
                    continue
                for cell in product_cells.cells(part):
                    _add(cells, cell, selection)
        return CellSet(profile=profile, cells=tuple(cells.values()), excluded=tuple(excluded))

    def with_migrations(self, commits: Mapping[str, Mapping[str, str]]) -> Matrix:
        """The matrix with the new stack of each migration, except those with a branch of unknown commit.

        commits: migration -> axis -> current commit of the branch that the axis follows.
        """
        new_stacks = {
            name: stack
            for name, one in self.migrations.items()
            if one.stack in self.stacks
            and (stack := one.new_stack(self.stacks[one.stack], commits.get(name, {})))
        }
        return replace(self, stacks={**self.stacks, **new_stacks})

    def stack_cell(self, name: str) -> Cell:
        """The cell of a named stack."""
        stack = self.stacks[name]
        versions = self.versions(stack.axes)
        overrides = resolve_rules(self.override_rules, versions)
        return Cell(
            id=cell_id(name, stack.axes),
            stack=name,
            title=stack.title,
            axes=stack.axes,
            provenance=stack.provenance,
            pins=resolve_rules(self.pin_rules, versions),
            overrides=overrides,
            recipe=stack.recipe,
            findings=(
                *stack.findings,
                *(violation.finding for violation in self.violations.of(versions, overrides)),
            ),
            notes=stack.notes,
            source=stack.source,
        )

    def rehearsed(self, cell: Cell) -> Cell:
        """The cell with the pins and overrides that it would have on the simulated device.

        On a stand-in host the simulated runtime drives it on the architecture of this machine, so it needs
        the same replacements of packages as a simulated cell, except those of versions that the cell states.
        """
        versions = self.versions({**cell.axes, "device": "sim"})
        pins = resolve_rules(self.pin_rules, versions)
        overrides = resolve_rules(self.override_rules, versions)
        return replace(
            cell,
            pins=tuple(one for one in pins if one in cell.pins or self._permits(cell, one)),
            overrides=tuple(one for one in overrides if one in cell.overrides or self._permits(cell, one)),
        )

    def _permits(self, cell: Cell, pin: Pin) -> bool:
        """Whether a pin or override allows the version that the cell itself has of the package."""
        if not pin.requirement:
            return True
        package = required_package(pin.requirement)
        own = [
            axis.parse(cell.axes[name])
            for name, axis in self.axes.items()
            if name in cell.axes and axis.package and normal_package(axis.package) == package
        ]
        return all(permits(pin.requirement, version) for version in own)

    def versions(self, axes: Mapping[str, str]) -> dict[str, Version]:
        """The parsed values of a cell."""
        return {name: self.axes[name].parse(text) for name, text in axes.items()}

    @functools.cached_property
    def violations(self) -> Violations:
        """Finds the constraints and published tables that a combination violates."""
        return Violations(
            axes=self.axes,
            constraints=tuple(self.constraints.values()),
            tables=tuple(self.published.values()),
        )

    def expectation_for(self, cell: Cell, check: str) -> Expectation | None:
        """The first expectation that covers this check of this cell, even if it has expired."""
        about = [expectation for expectation in self.expectations.values() if expectation.check == check]
        versions = self.versions(cell.axes) if about else {}
        return next((expectation for expectation in about if expectation.covers(cell, versions)), None)

    def is_own(self, where: Location) -> bool:
        """Whether a location is in a file of this checkout, not in the included matrix of npu-matrix."""
        return not str(where.file).startswith(f"{SHIPPED_NAME}:")

    @functools.cached_property
    def all_cells(self) -> tuple[Cell, ...]:
        """All cells of the profiles and stacks, each once."""
        cells = {cell.id: cell for name in self.profiles for cell in self.cells(name)}
        cells |= {cell.id: cell for cell in map(self.stack_cell, self.stacks)}
        return tuple(cells.values())


def _add(cells: dict[str, Cell], cell: Cell, selection: Selection) -> None:
    known = cells.setdefault(cell.id, cell)
    if known is cell:
        return
    if known.axes != cell.axes or known.recipe != cell.recipe:
        raise InputError(
            f"two cells have the id {cell.id}",
            where=selection.where,
            why=f"one has recipe {known.recipe!r} and {dict(known.axes)}, "
            f"the other has recipe {cell.recipe!r} and {dict(cell.axes)}",
            fix="make one of them a stack, whose name becomes part of the id",
        )
