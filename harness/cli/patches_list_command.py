"""`npu-matrix patches list`: every patch file of the checkout, which cells have it, or why none has it."""

from __future__ import annotations

import click

from harness.cli.patch_output import CODES, json_option, print_facts
from harness.errors import EXIT_OK, EXIT_UNEXPECTED
from harness.settings import Settings


@click.command(
    "list",
    epilog="\b\nExamples:\n  npu-matrix patches list\n  npu-matrix --profile full patches list --json"
    + CODES.format(ok="a cell has each of them", unexpected="no cell has one of them"),
)
@click.option("--without-own", is_flag=True, help="Leave out the patches of this repository.")
@json_option
@click.pass_obj
def list_patches(settings: Settings, *, without_own: bool, as_json: bool) -> int:
    """List every patch file, and the cells that have it.

    Where no cell has a file, the reason is shown. The exit code is 1 if it is a file of this repository,
    unless `left_out` in the section `patches` states the reason.

    Patches come from patches/UPSTREAM, from the section `patches` of matrix.yaml and, with `include:`, from
    npu-matrix itself. Cells of all profiles and stacks count.
    """
    from harness.workspace.planning.open_plan import open_matrix, patch_sources, unused_patches

    matrix = open_matrix(settings)
    sources = patch_sources(settings, matrix)
    cells: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    unread: dict[str, None] = {}
    cells_of: dict[str, str] = {}
    for cell in matrix.all_cells:
        for upstream in cell.axes:
            for patch in sources.select(upstream, cell.axes):
                if patch.unread:
                    unread[patch.unread.reason] = None
                    continue
                names[patch.file] = patch.id
                cells_of[patch.digest] = patch.file
                cells.setdefault(patch.file, []).append(cell.stack or cell.id)
    same = {
        one.patch.file: cells_of[one.patch.digest]
        for one in sources.placed
        if one.patch.file not in cells and one.patch.digest in cells_of
    }
    known = {*sources.files}
    own = {file for file in cells if file in known or (settings.root / file).is_file()}
    shown = [file for file in cells if not (without_own and file in own)]
    # Of the repositories that only the included matrix names, nobody here can change the patches.
    included = {place.where for place in matrix.patch_places if place.is_included}
    unused = [one for one in unused_patches(settings, matrix) if one.where not in included]
    mine = [one for one in unused if not one.axis]
    code = EXIT_UNEXPECTED if any(not one.is_stated for one in mine) else EXIT_OK
    if as_json:
        print_facts(
            "patch-list",
            {
                "patches": [
                    {"file": file, "id": names[file], "is_own": file in own, "cells": cells[file]}
                    for file in shown
                ],
                "unused": [
                    {
                        "file": one.file,
                        "reason": one.reason,
                        "where": str(one.where),
                        "is_stated": one.is_stated,
                    }
                    for one in unused
                ],
                "same": same,
                "unread": list(unread),
                "problems": [str(problem) for problem in sources.problems],
            },
        )
        return code
    for file in shown:
        more = f" and {len(cells[file]) - 1} more" if len(cells[file]) > 1 else ""
        others = "" if file in own else ", of another repository"
        click.echo(f"{names[file]}  in {cells[file][0]}{more}  ({file}{others})")
    for file, other in same.items() if not without_own else ():
        click.echo(f"SAME  {file}: cells have it as {other}")
    for one in unused:
        click.echo(f"{'LEFT OUT' if one.is_stated else 'NOT USED'}  {one.file}: {one.reason}")
    for reason in unread:
        click.echo(f"NOT KNOWN  {reason}")
    for problem in sources.problems:
        click.echo(f"note: {problem}")
    left = sum(one.is_stated for one in mine)
    click.echo(
        f"of this repository: {len(own) + len(same)} patch files are in cells, {left} are left out as "
        f"matrix.yaml states, {len(mine) - left} are not used; "
        f"of others: {len(cells) - len(own)} are in cells"
    )
    return code
