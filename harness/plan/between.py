"""The cells between a good and a bad one: what changed, in which steps, and which mixtures are valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.matrix.cells import Cell, cell_id
from harness.matrix.matrix import Matrix
from harness.matrix.pins import resolve_rules
from harness.matrix.versions import Version
from harness.plan.bisection import Culprit, Vector, all_probes
from harness.sources.git import Repository

#: The job of a cell is no axis, but it may be what differs.
RECIPE = "recipe"


@dataclass(frozen=True, kw_only=True)
class Span:
    """An axis, or the recipe, that differs: its values from the good cell's to the bad one's; None: none."""

    axis: str
    values: tuple[str | None, ...]

    @property
    def steps(self) -> int:
        """How many steps lead from good to bad."""
        return len(self.values) - 1

    def step(self, number: int) -> str:
        """`0.6.1 -> 0.7.0`: what step `number` (from 1) changes."""
        return f"{self.values[number - 1] or 'none'} -> {self.values[number] or 'none'}"


@dataclass(frozen=True, kw_only=True)
class Between:
    """All that can be asked between two cells. probes[i] is the mixture of which cells[i] is the cell."""

    good: Cell
    bad: Cell
    spans: tuple[Span, ...]
    probes: tuple[Vector, ...]
    cells: tuple[Cell, ...]

    def name(self, culprit: Culprit) -> str:
        """What a culprit is, for people."""
        if culprit.span < 0:
            return "the good cell fails as well" if culprit.step else "the bad cell does not fail"
        span = self.spans[culprit.span]
        return f"{span.axis} {span.step(culprit.step)}"


def between(
    matrix: Matrix, good: Cell, bad: Cell, commits: Mapping[str, Sequence[str]] | None = None
) -> Between:
    """Mixtures of two cells that break no rule which both of them keep.

    commits: axis -> values from the good cell's to the bad one's, both included; other axes step through the
    values that cells of the matrix have between the two.
    """
    spans = tuple(
        Span(axis=axis, values=tuple((commits or {}).get(axis) or _values(matrix, axis, good, bad)))
        for axis in matrix.axes
        if good.axes.get(axis) != bad.axes.get(axis)
    )
    if good.recipe != bad.recipe:
        spans = (*spans, Span(axis=RECIPE, values=(good.recipe or None, bad.recipe or None)))
    tolerated = {finding for cell in (good, bad) for finding in _broken(matrix, cell.axes)}
    probes, cells = [], []
    for vector in all_probes([span.steps for span in spans]):
        axes, recipe = _mixture(matrix, good, spans, vector)
        if _broken(matrix, axes) <= tolerated:
            probes.append(vector)
            cells.append(_cell(matrix, axes, recipe, (good, bad)))
    return Between(good=good, bad=bad, spans=spans, probes=tuple(probes), cells=tuple(cells))


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


def _mixture(matrix: Matrix, good: Cell, spans: Sequence[Span], vector: Vector) -> tuple[dict[str, str], str]:
    """The axes and the recipe of a mixture."""
    values: dict[str, str | None] = {**good.axes, RECIPE: good.recipe}
    for span, number in zip(spans, vector, strict=True):
        values[span.axis] = span.values[number]
    axes = {axis: value for axis in matrix.axes if (value := values.get(axis)) is not None}
    return axes, values[RECIPE] or ""


def _broken(matrix: Matrix, axes: Mapping[str, str]) -> set[str]:
    return {finding.constraint for finding in matrix.violations(matrix.versions(axes))}


def _cell(matrix: Matrix, axes: Mapping[str, str], recipe: str, ends: tuple[Cell, Cell]) -> Cell:
    """One of the two cells, or one that no profile names; its id tells recipes apart as well."""
    for end in ends:
        if dict(end.axes) == dict(axes) and end.recipe == recipe:
            return end
    versions = matrix.versions(axes)
    return Cell(
        id=cell_id("", {**axes, RECIPE: recipe}),
        stack="",
        title="between the good and the bad cell",
        axes=axes,
        provenance={},
        pins=resolve_rules(matrix.pin_rules, versions),
        overrides=resolve_rules(matrix.override_rules, versions),
        recipe=recipe,
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
