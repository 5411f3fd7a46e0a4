"""`npu-matrix patches ablate`: leave out one patch at a time and see whether any verdict changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.cli.patch_output import (
    ANY,
    CODES,
    DIRECTORY,
    json_option,
    print_facts,
    say,
    stack_options,
)
from harness.errors import EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNEXPECTED, NothingSelectedError
from harness.serialisation import json_object
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.patchstack.stacks.ablation import Ablation


@click.command(
    "ablate",
    epilog="\b\nExamples:\n  npu-matrix patches ablate CELL\n"
    "  npu-matrix patches ablate CELL --patch verl/hf-rollout --check loss\n"
    "  npu-matrix patches ablate --patches theirs/ --repo verl.git --ref v0.9.0"
    + CODES.format(ok="every patch has an effect", unexpected="a patch may be unnecessary (`dead?`)")
    + "\n  4 also means that the effect of a patch is unknown: the checks of CELL do not show it,\n"
    "  or nothing can be compared, for example because the stack does not apply.",
)
@click.argument("cell", required=False)
@click.option("--patch", "names", multiple=True, help="Leave out only this patch; may be repeated.")
@click.option(
    "--check", "checks", multiple=True, help="Compare only the verdict of this check; may be repeated."
)
@click.option("--static", is_flag=True, help="Only compare the source trees; run no checks.")
@stack_options
@click.option("--version", default="", help="Without CELL: use this release from the package index.")
@click.option("--tree", "path", type=ANY, help="Without CELL: use this folder, wheel or sdist.")
@click.option("--repo", type=DIRECTORY, help="Without CELL: use a commit of this clone or bare mirror.")
@click.option("--ref", default="HEAD", show_default=True, help="With --repo: the commit, branch or tag.")
@json_option
@click.pass_obj
def ablate(
    settings: Settings,
    /,
    cell: str | None,
    names: tuple[str, ...],
    checks: tuple[str, ...],
    static: bool,
    as_json: bool,
    **tree: Any,
) -> int:
    """Find patches without effect by leaving out one at a time.

    First the patched source tree is compared with and without the patch. If they differ, the checks of CELL
    run without the patch and their verdicts are compared. A patch that changes neither may be unnecessary.
    Without CELL, only the source trees are compared.
    """
    from harness.workspace.execution.patch_ablation import ablate_cell, ablate_tree
    from harness.workspace.patches.patch_target import TreeSelection

    selection = TreeSelection(**tree)
    selects_patches = bool(selection.folder or selection.upstream)
    if bool(cell) == selection.has_tree or (checks and not cell) or (cell and selects_patches):
        raise click.UsageError("give either CELL, or a tree with --version, --tree or --repo")
    if cell:
        found, interrupted = ablate_cell(settings, cell, names, checks, static=static)
    else:
        found, interrupted = ablate_tree(settings, names, selection), False
    if not found:
        raise NothingSelectedError("no patch is for this version", fix="see `npu-matrix patches check`")
    if as_json:
        print_facts("patch-ablation", {"cell": cell, "patches": [json_object(one) for one in found]})
    else:
        say(*(line for one in found for line in _lines(one)))
    results = {one.result for one in found}
    if interrupted:
        return EXIT_INTERRUPTED
    if "dead?" in results:
        return EXIT_UNEXPECTED
    has_run = cell and not static
    is_incomplete = any(one.result == "unknown" and (has_run or not one.compared) for one in found)
    return EXIT_INCOMPLETE if is_incomplete else EXIT_OK


def _lines(one: Ablation) -> list[str]:
    return [f"{one.result:<8} {one.patch}", *(f"  {reason}" for reason in one.reasons)]
