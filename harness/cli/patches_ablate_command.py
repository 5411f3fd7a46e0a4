"""`npu-matrix patches ablate`: leave out one patch at a time and see whether anything moves."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
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
from harness.workspace.patch_target import chosen_for, target_of, trees_of_cell

if TYPE_CHECKING:
    from harness.matrix.model.cell import Cell
    from harness.outcome import Status
    from harness.patchstack.apply.classify import LoadedPatch
    from harness.patchstack.stacks.ablation import Ablation
    from harness.workspace.open_plan import Bench


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
        found, interrupted = _of_cell(settings, cell, names, checks, static=static)
    else:
        found, interrupted = _of_tree(settings, names, tree), False
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


def _of_tree(settings: Settings, names: Sequence[str], asked: Mapping[str, Any]) -> list[Ablation]:
    from harness.patchstack.stacks.ablation import ablate_statically as leave_out
    from harness.patchstack.stacks.patch_selection import select_by_name

    patches = asked["folder"] or settings.root / "patches"
    target, package = target_of(
        settings, patches, asked["upstream"], asked["version"], asked["path"], asked["repo"], asked["ref"]
    )
    chosen = chosen_for(patches, target, package, ())
    wanted = {loaded.name for loaded in select_by_name(chosen, names)}
    found = leave_out(target.tree, chosen, target.blobs)
    return [one for one in found if one.patch in wanted]


def _of_cell(
    settings: Settings, name: str, names: Sequence[str], checks: Sequence[str], *, static: bool
) -> tuple[list[Ablation], bool]:
    from harness.patchstack.stacks.ablation import UNKNOWN
    from harness.plan.keys.variant import lacking
    from harness.workspace.open_plan import find_cell, open_bench, open_matrix

    matrix = open_matrix(settings)
    cell = find_cell(matrix, settings["profile"], name)
    found = _static(settings, cell, names)
    if static:
        return found, False

    def planned(patch: str = "") -> Bench:
        variant = lacking(cell, (patch,)) if patch else cell
        return open_bench(settings, checks=checks, choose=lambda _matrix: [variant])

    unknown = [one.patch for one in found if one.result == UNKNOWN]
    if not unknown:
        return found, False
    moved, interrupted = _run_without(settings, planned(), {patch: planned(patch) for patch in unknown})
    return [moved.get(one.patch, one) for one in found], interrupted


def _static(settings: Settings, cell: Cell, names: Sequence[str]) -> list[Ablation]:
    """What the trees alone say of every selected patch of a cell."""
    from harness.patchstack.stacks.ablation import UNKNOWN, Ablation
    from harness.patchstack.stacks.ablation import ablate_statically as leave_out
    from harness.patchstack.stacks.patch_selection import select_by_name

    found: list[Ablation] = []
    every: list[LoadedPatch] = []
    for loaded_patches, target, absent in trees_of_cell(settings, cell):
        every += loaded_patches
        if target is None:
            found += [
                Ablation(patch=loaded.name, result=UNKNOWN, reasons=(absent,)) for loaded in loaded_patches
            ]
        else:
            found += leave_out(target.tree, loaded_patches, target.blobs)
    wanted = {loaded.name for loaded in select_by_name(every, names)}
    return [one for one in found if one.patch in wanted]


def _run_without(
    settings: Settings, full: Bench, partial: Mapping[str, Bench]
) -> tuple[dict[str, Ablation], bool]:
    """Run the cell with all patches, then without each; what moved, and whether it was interrupted."""
    from harness.patchstack.stacks.ablation import judge_ablation
    from harness.run.executors.executor import LocalExecutor
    from harness.run.jobs.job import Site
    from harness.run.programs.interruption import Interruption
    from harness.run.scheduling.run_lock import run_lock
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.open_plan import cell_entry

    state, cache = settings.path("state"), settings.cache
    site = Site(root=settings.root, state=state, cache=cache, environ=os.environ, cell=cell_entry(cache))
    found: dict[str, Ablation] = {}
    with ExitStack() as stack:
        stopped = stack.enter_context(Interruption())
        stack.enter_context(
            run_lock(
                state,
                command=["npu-matrix", *sys.argv[1:]],
                wait=settings.wait,
                tell=lambda text: click.echo(text, err=True),
                stopped=stopped,
            )
        )
        ledger = stack.enter_context(open_ledger(settings))
        executor = LocalExecutor(site, settings.jobs)
        stack.callback(executor.close)
        before = _statuses(full, ledger, executor, stopped, "with every patch")
        for patch, bench in partial.items():
            if stopped():
                break
            after = _statuses(bench, ledger, executor, stopped, f"without {patch}")
            found[patch] = judge_ablation(patch, _guards(settings.root / "patches", patch), before, after)
        return found, stopped()


def _statuses(bench: Bench, ledger: Any, executor: Any, stopped: Any, what: str) -> dict[str, Status]:
    """Check -> status, of those that came to one."""
    from harness.run.scheduling.scheduler import run_plan
    from harness.verdict.verdict import judge_outcome

    result = run_plan(bench.plan, ledger, executor, judge_outcome, stopped=stopped, argv=sys.argv[1:])
    ledger.finish_run(result.run_id, EXIT_OK)
    tasks = bench.plan.tasks
    statuses = {
        entry.check: judge_outcome(tasks[entry.key].check, result.outcomes[entry.key]).status
        for entry in bench.plan.entries
        if entry.key in result.outcomes
    }
    told = ", ".join(f"{check} {status.value}" for check, status in statuses.items())
    click.echo(f"{what}: {result.executed} run, {result.reused} known; {told}", err=True)
    return statuses


def _guards(patches: Path, patch: str) -> tuple[str, ...]:
    from harness.patchstack.stacks.patch_stack import load_stack

    upstream, _slash, name = patch.partition("/")
    return next((one.guarded_by for one in load_stack(patches, upstream).patches if one.id == name), ())
