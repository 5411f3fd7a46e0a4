"""`npu-matrix patches ablate`: leave out one patch at a time and see whether anything moves."""

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
from harness.settings import Settings
from harness.workspace.execution.patch_ablation import ablate_cell, ablate_tree

if TYPE_CHECKING:
    from harness.patchstack.stacks.ablation import Ablation


@click.command(
    "ablate",
    epilog="\b\nExamples:\n  npu-matrix patches ablate CELL\n"
    "  npu-matrix patches ablate CELL --patch verl/hf-rollout --check loss\n"
    "  npu-matrix patches ablate --patches theirs/ --repo verl.git --ref v0.9.0"
    + CODES.format(ok="no patch is `dead?`", unexpected="one is")
    + "\n  A patch of a cell of which nothing can be said makes it 4.",
)
@click.argument("cell", required=False)
@click.option("--patch", "names", multiple=True, help="Leave out only this one; may be repeated.")
@click.option("--check", "checks", multiple=True, help="Compare only this check; may be repeated.")
@click.option("--static", is_flag=True, help="Run nothing: only compare the trees.")
@stack_options
@click.option("--version", default="", help="Without CELL: take this release from the index.")
@click.option("--tree", "path", type=ANY, help="Without CELL: take a folder, a wheel or an sdist.")
@click.option("--repo", type=DIRECTORY, help="Without CELL: take a commit of this clone or bare mirror.")
@click.option("--ref", default="HEAD", show_default=True, help="With --repo: the commit.")
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
    """Leave patches out of a green cell, one at a time.

    If the tree is the same without it, or no verdict moves, a patch may be dead.

    First the trees are compared, which costs nothing; then the cell's checks run without the patch, and
    their statuses are held against those with it. Without CELL, for any patches and tree, only the first.
    """
    named_tree = any(tree[name] for name in ("version", "path", "repo"))
    if bool(cell) == named_tree or (checks and not cell) or (cell and (tree["folder"] or tree["upstream"])):
        raise click.UsageError("name a CELL, or a tree with --version, --tree or --repo")
    if cell:
        found, interrupted = ablate_cell(settings, cell, names, checks, static=static)
    else:
        found, interrupted = ablate_tree(settings, names, tree), False
    if not found:
        raise NothingSelectedError("no patch is for this version", fix="see `npu-matrix patches check`")
    if as_json:
        print_facts("patch-ablation", {"cell": cell, "patches": [one.to_json() for one in found]})
    else:
        say(*(line for one in found for line in _lines(one)))
    results = {one.result for one in found}
    if interrupted:
        return EXIT_INTERRUPTED
    if "dead?" in results:
        return EXIT_UNEXPECTED
    return EXIT_INCOMPLETE if "unknown" in results and cell and not static else EXIT_OK


def _lines(one: Ablation) -> list[str]:
    return [f"{one.result:<8} {one.patch}", *(f"  {reason}" for reason in one.reasons)]
