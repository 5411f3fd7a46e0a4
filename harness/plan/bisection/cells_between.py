"""The cells between a good and a bad one: what changed, in which steps, and which mixtures are valid."""

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

#: Our patches are no axis either.
PATCHES = "patches"
#: Versions of the axes -> the ids of the patches for them, in the order in which they are applied.
PatchSeriesOf = Callable[[Mapping[str, str]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class AxisSteps:
    """An axis, the recipe or the patches that differ: values from the good cell's to the bad one's.

    None is no value. labels: what each step is called where its two values say it badly.
    """

    axis: str
    values: tuple[str | None, ...]
    labels: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps lead from good to bad."""
        return len(self.values) - 1

    def step(self, number: int) -> str:
        """`verl 0.6.1 -> 0.7.0`: what step `number` (from 1) changes."""
        if self.labels:
            return self.labels[number - 1]
        return f"{self.axis} {self.values[number - 1] or 'none'} -> {self.values[number] or 'none'}"


@dataclass(frozen=True, kw_only=True)
class BisectionCells:
    """All that can be asked between two cells. probes[i] is the mixture of which cells[i] is the cell."""

    good: Cell
    bad: Cell
    spans: tuple[AxisSteps, ...]
    probes: tuple[StepCounts, ...]
    cells: tuple[Cell, ...]

    def name(self, culprit: Culprit) -> str:
        """What a culprit is, for people."""
        if culprit.span < 0:
            return "the good cell fails as well" if culprit.step else "the bad cell does not fail"
        return self.spans[culprit.span].step(culprit.step)

    def with_probes(self, probes: Collection[int]) -> BisectionCells:
        """With these probes alone."""
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
    """Mixtures of two cells that break no rule which both of them keep.

    commits: axis -> values from the good cell's to the bad one's, both included; other axes step through the
    values that cells of the matrix have between the two. series: patches by version; those that only one of
    the two cells has change one by one, in that order, wherever a version has them.
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
    """The patches that only one of two cells has: taken off last first, then put on as the series has them.

    A patch stands on those before it, so each stage is one that applies wherever the whole does.
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
        """Its values are the moving patches that are on."""
        values = tuple(",".join(state) or None for state in self._states)
        return AxisSteps(axis=PATCHES, values=values, labels=self.stages)

    def without(self, axes: Mapping[str, str], stage: int) -> tuple[str, ...] | None:
        """What a mixture leaves out; None where its versions lack a patch that is on at this stage."""
        available, state = self._series(axes), self._states[stage]
        if not set(state) <= set(available):
            return None
        off = (self._moving - set(state)) | self._never
        return tuple(sorted(off.intersection(available)))


def _values(matrix: Matrix, axis: str, good: Cell, bad: Cell) -> list[str | None]:
    """From the good value to the bad one, through known values of the same kind in between."""
    first, last = good.axes.get(axis), bad.axes.get(axis)
    if first is None or last is None:
        return [first, last]
    parse = matrix.axes[axis].parse
    low, high = parse(first), parse(last)
    if low.order is None or high.order is None or low.compare(high) == 0:
        return [first, last]
    ends = sorted((low, high))
    known = {cell.axes[axis] for cell in matrix.all_cells if axis in cell.axes}
    # Commits stand for their nominal version only, so their place among releases is not exact.
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
    return {finding.constraint for finding in matrix.violations(matrix.versions(axes))}


def _cell(
    matrix: Matrix, axes: Mapping[str, str], recipe: str, without: tuple[str, ...], ends: tuple[Cell, Cell]
) -> Cell:
    """One of the two cells, or one that no profile names; its id tells recipes and patches apart as well."""
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
    """Values of every commit on the line of first parents from the good commit to the bad one.

    Commits in between carry the nominal version of the bad end. [] when the good commit is not on that line,
    or not here: then the ends are all there is.
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
    # The ends keep the spelling of their cells, so that these are the cells probed there.
    return [str(good), *reversed(found[1:]), str(bad)]
