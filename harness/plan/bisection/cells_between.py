"""The cells between a good and a bad cell: the axes that differ, their steps, and the valid mixtures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.matrix.cells.pins import resolve_rules
from harness.matrix.model.cell import Cell
from harness.matrix.model.versions import Version
from harness.matrix.version_matrix import Matrix
from harness.plan.bisection.search import Culprit, StepCounts, possible_probes
from harness.plan.keys.variant import RECIPE, variant_id
from harness.sources.git.git_repository import Repository

#: Name of the step sequence of our patches, which are not an axis of the matrix.
PATCHES = "patches"
#: Versions of the axes -> the ids of the patches for them, in the order in which they are applied.
PatchSeriesOf = Callable[[Mapping[str, str]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class AxisSteps:
    """An axis on which two cells differ (or their recipe, or their patches), with the values from good to
    bad.

    None means no value. labels: a name for each step, if its two values do not describe it well.
    """

    axis: str
    values: tuple[str | None, ...]
    labels: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps lead from good to bad."""
        return len(self.values) - 1

    def step(self, number: int) -> str:
        """The change of step `number` (from 1) as text, for example `verl 0.6.1 -> 0.7.0`."""
        if self.labels:
            return self.labels[number - 1]
        return f"{self.axis} {self.values[number - 1] or 'none'} -> {self.values[number] or 'none'}"


@dataclass(frozen=True, kw_only=True)
class BisectionCells:
    """The cells that can be probed between two cells. cells[i] has the step counts probes[i]."""

    good: Cell
    bad: Cell
    spans: tuple[AxisSteps, ...]
    probes: tuple[StepCounts, ...]
    cells: tuple[Cell, ...]

    def name(self, culprit: Culprit) -> str:
        """A culprit as text."""
        if culprit.span < 0:
            return "the good cell fails as well" if culprit.step else "the bad cell does not fail"
        return self.spans[culprit.span].step(culprit.step)

    def with_probes(self, probes: Collection[int]) -> BisectionCells:
        """The same search space with only these probes."""
        numbers = sorted(probes)
        return replace(
            self,
            probes=tuple(self.probes[number] for number in numbers),
            cells=tuple(self.cells[number] for number in numbers),
        )


def bisection_cells(
    matrix: Matrix,
    good: Cell,
    bad: Cell,
    commits: Mapping[str, Sequence[str]] | None = None,
    series: PatchSeriesOf = lambda _axes: (),
) -> BisectionCells:
    """The mixtures of two cells that break no rules except those that one of the two cells breaks.

    commits: axis -> values from the good to the bad cell, both included; other axes step through the values
    that cells of the matrix have in between. series: versions -> the patches for them. Patches that only one
    of the two cells has are switched one by one in this order, in versions that have them.
    """
    spans = tuple(
        AxisSteps(axis=axis, values=tuple((commits or {}).get(axis) or _values(matrix, axis, good, bad)))
        for axis in matrix.axes
        if good.axes.get(axis) != bad.axes.get(axis)
    )
    if good.recipe != bad.recipe:
        spans = (*spans, AxisSteps(axis=RECIPE, values=(good.recipe or None, bad.recipe or None)))
    patches = _Patches(good, bad, series)
    if patches.stages:
        spans = (*spans, patches.span)
    tolerated = {finding for cell in (good, bad) for finding in _broken(matrix, cell.axes)}
    probes, cells = [], []
    for vector in possible_probes([span.steps for span in spans]):
        axes, recipe = _mixture(matrix, good, spans, vector)
        without = patches.without(axes, vector[-1] if patches.stages else 0)
        if without is not None and _broken(matrix, axes) <= tolerated:
            probes.append(vector)
            cells.append(_cell(matrix, axes, recipe, without, (good, bad)))
    return BisectionCells(good=good, bad=bad, spans=spans, probes=tuple(probes), cells=tuple(cells))


class _Patches:
    """The patches that only one of two cells has, removed in reverse series order, then added in series
    order.

    A patch builds on the patches before it, so each stage applies wherever the complete series applies.
    """

    def __init__(self, good: Cell, bad: Cell, series: PatchSeriesOf) -> None:
        self._series = series
        before, after = (
            [patch for patch in series(cell.axes) if patch not in cell.without] for cell in (good, bad)
        )
        off = [patch for patch in reversed(before) if patch not in after]
        on = [patch for patch in after if patch not in before]
        self._moving = {*off, *on}
        self._never = {*good.without, *bad.without} - self._moving
        self.stages = (*(f"without {patch}" for patch in off), *(f"patch {patch}" for patch in on))
        present = [*reversed(off)]
        states = [tuple(present)]
        for patch in off:
            present.remove(patch)
            states.append(tuple(present))
        for patch in on:
            present.append(patch)
            states.append(tuple(present))
        self._states = tuple(states)

    @property
    def span(self) -> AxisSteps:
        """The steps of the patches; each value lists the applied patches that differ between the cells."""
        values = tuple(",".join(state) or None for state in self._states)
        return AxisSteps(axis=PATCHES, values=values, labels=self.stages)

    def without(self, axes: Mapping[str, str], stage: int) -> tuple[str, ...] | None:
        """The patches to leave out; None if there is no patch of this stage for these versions."""
        available, state = self._series(axes), self._states[stage]
        if not set(state) <= set(available):
            return None
        off = (self._moving - set(state)) | self._never
        return tuple(sorted(off.intersection(available)))


def _values(matrix: Matrix, axis: str, good: Cell, bad: Cell) -> list[str | None]:
    """The values from the good to the bad one, through values of the matrix in between."""
    first, last = good.axes.get(axis), bad.axes.get(axis)
    if first is None or last is None:
        return [first, last]
    parse = matrix.axes[axis].parse
    low, high = parse(first), parse(last)
    if low.order is None or high.order is None or low.compare(high) == 0:
        return [first, last]
    ends = sorted((low, high))
    known = {cell.axes[axis] for cell in matrix.all_cells if axis in cell.axes}
    # Commits are left out: they have only a nominal version, so their order among releases is not exact.
    inside: list[Version] = sorted(
        version
        for version in map(parse, known)
        if version.order is not None and not version.ref and ends[0] < version < ends[1]
    )
    steps = [str(version) for version in (inside if low < high else reversed(inside))]
    return [first, *steps, last]


def _mixture(
    matrix: Matrix, good: Cell, spans: Sequence[AxisSteps], vector: StepCounts
) -> tuple[dict[str, str], str]:
    """The axes and the recipe of a mixture."""
    values: dict[str, str | None] = {**good.axes, RECIPE: good.recipe}
    for span, number in zip(spans, vector, strict=True):
        values[span.axis] = span.values[number]
    axes = {axis: value for axis in matrix.axes if (value := values.get(axis)) is not None}
    return axes, values[RECIPE] or ""


def _broken(matrix: Matrix, axes: Mapping[str, str]) -> set[str]:
    return {violation.rule for violation in matrix.violations.of_constraints(matrix.versions(axes))}


def _cell(
    matrix: Matrix, axes: Mapping[str, str], recipe: str, without: tuple[str, ...], ends: tuple[Cell, Cell]
) -> Cell:
    """One of the two cells, or a new cell whose id also depends on its recipe and patches."""
    for end in ends:
        if dict(end.axes) == dict(axes) and end.recipe == recipe and set(end.without) == set(without):
            return end
    versions = matrix.versions(axes)
    return Cell(
        id=variant_id(axes, recipe, without),
        stack="",
        title="between the good and the bad cell",
        axes=axes,
        provenance={},
        pins=resolve_rules(matrix.pin_rules, versions),
        overrides=resolve_rules(matrix.override_rules, versions),
        recipe=recipe,
        without=without,
    )


def commit_values(repository: Repository, good: Version, bad: Version) -> list[str]:
    """Axis values of every commit from the good to the bad one, following first parents.

    Commits in between have the nominal version of the bad end. [] if the good commit is not a first-parent
    ancestor, or not in this repository.
    """
    if not repository.has(good.commit):
        return []
    first, found = repository.commit(good.commit), []
    objects = repository.objects
    at = objects[repository.commit(bad.commit)]
    while str(at.id) != first:
        found.append(f"{bad.nominal}@{at.id}")
        if not at.parent_ids:
            return []
        at = objects[at.parent_ids[0]]
    # The ends keep the spelling of their cells, so that these cells themselves are probed.
    return [str(good), *reversed(found[1:]), str(bad)]
