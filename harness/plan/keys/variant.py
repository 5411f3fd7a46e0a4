"""Variants of a cell: the same versions with fewer patches of the stack (`CELL+none`, `CELL+3`,
`CELL+verl/a`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from harness.errors import InputError, did_you_mean
from harness.matrix.model.cell import Cell, cell_id
from harness.plan.keys.facets import PATCHED, FacetInputs

#: Parts of a variant's id besides the axes.
RECIPE = "recipe"
WITHOUT = "without"


def patch_series(axes: Mapping[str, str], inputs: FacetInputs) -> tuple[str, ...]:
    """The ids of the patches for these versions, in the order in which they are applied."""
    return tuple(
        patch["id"]
        for upstream in (*PATCHED, *inputs.others_patched_in(axes))
        if upstream in axes
        for patch in inputs.patches(upstream, axes)
    )


def without_patches(cell: Cell, without: Collection[str]) -> Cell:
    """The cell without the patches that `without` lists; the same cell if it lists none."""
    if not without:
        return cell
    ordered = tuple(sorted(without))
    return replace(cell, id=variant_id(cell.axes, cell.recipe, ordered), without=ordered)


def variant_id(axes: Mapping[str, str], recipe: str, without: Sequence[str]) -> str:
    """The id of a cell that is in no profile. It differs for other versions, recipes and omitted patches."""
    return cell_id("", {**axes, RECIPE: recipe, **({WITHOUT: ",".join(without)} if without else {})})


def omitted_patches(words: str, patches: Sequence[str], cell: str) -> tuple[str, ...]:
    """The patches that a variant omits.

    words: `none`, the number of patches to apply from the first one on, or the ids of the patches to apply,
        separated by commas; globs such as `verl/mindspeed_rl/*` are ids, too.
    patches: the ids of all patches for the cell, in order. cell: its name, for messages.
    InputError for a cell without patches, a number that is too large, and an unknown id.
    """
    if not patches:
        raise InputError(
            f"there is no patch for the versions of {cell}", fix="see `npu-matrix patches check`"
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
    for word in sorted(named):
        if not fnmatch.filter(patches, word):
            raise InputError(f"{cell} has no patch {word!r}", fix=did_you_mean(word, patches))
    return tuple(patch for patch in patches if not any(fnmatch.fnmatchcase(patch, word) for word in named))
