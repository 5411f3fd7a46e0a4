"""Variants of a cell: the same versions with fewer of our patches (`CELL+none`, `CELL+3`, `CELL+verl/a`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from harness.errors import InputError, did_you_mean
from harness.matrix.model.cell import Cell, cell_id
from harness.plan.keys.facets import PATCHED, FacetInputs

#: What makes a variant's id another one: no axes, but it may be what differs.
RECIPE = "recipe"
WITHOUT = "without"


def series(axes: Mapping[str, str], inputs: FacetInputs) -> tuple[str, ...]:
    """The ids of the patches for these versions, in the order in which they are applied."""
    return tuple(
        patch["id"]
        for upstream in PATCHED
        if upstream in axes
        for patch in inputs.patches(upstream, axes[upstream])
    )


def lacking(cell: Cell, without: Collection[str]) -> Cell:
    """The cell without these patches; the cell itself when there are none."""
    if not without:
        return cell
    ordered = tuple(sorted(without))
    return replace(cell, id=variant_id(cell.axes, cell.recipe, ordered), without=ordered)


def variant_id(axes: Mapping[str, str], recipe: str, without: Sequence[str]) -> str:
    """The id of a cell that no profile names; other versions, jobs and patches have others."""
    return cell_id("", {**axes, RECIPE: recipe, **({WITHOUT: ",".join(without)} if without else {})})


def left_out(words: str, patches: Sequence[str], cell: str) -> tuple[str, ...]:
    """The patches of a series that `words` does not name: `none`, how many of the first, or ids with commas.

    InputError for a cell without patches, a number beyond the series, and an id that is not in it.
    """
    if not patches:
        raise InputError(
            f"no patch of ours is for the versions of {cell}", fix="see `npu-matrix patches check`"
        )
    if words == "none":
        return tuple(patches)
    if words.isdecimal():
        if int(words) > len(patches):
            raise InputError(
                f"{cell} has {len(patches)} patches, not {words}", fix=f"in this order: {', '.join(patches)}"
            )
        return tuple(patches[int(words) :])
    named = {word.strip() for word in words.split(",")}
    for word in sorted(named.difference(patches)):
        raise InputError(f"{cell} has no patch {word!r}", fix=did_you_mean(word, patches))
    return tuple(patch for patch in patches if patch not in named)
