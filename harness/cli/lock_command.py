"""`npu-matrix lock CELL`: what exactly a cell consists of, in the form people install from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import InfrastructureError, Location, NothingSelectedError
from harness.serialisation import as_object
from harness.settings import Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger
from harness.workspace.open_plan import facet_inputs, find_cell, open_bench, open_matrix

if TYPE_CHECKING:
    from harness.builds.lock.cell_lock import CellLock
    from harness.matrix.model.cell import Cell
    from harness.matrix.version_matrix import Matrix

FACETS = ("pins", "platform", "patches[verl]", "patches[vllm_ascend]")
# Format -> the file it is written to with --output.
FILES = {
    "requirements": "requirements.txt",
    "script": "install.sh",
    "markdown": "CELL.md",
    "conda": "environment.yml",
    "dockerfile": "Dockerfile",
    "json": "cell.lock.json",
}


@click.command(
    "lock",
    epilog="\b\nExamples:\n  npu-matrix lock verl-0-9-0 > requirements.txt\n"
    "  npu-matrix lock gspo-async --export dockerfile --output build/gspo-async\n"
    "  npu-matrix lock gptoss-20b-grpo --ask-upstream --export script\n"
    "  npu-matrix --base-image my-registry/cann@sha256:DIGEST lock gspo-async --export dockerfile",
)
@click.argument("cell")
@click.option(
    "--format",
    "--export",
    "shape",
    type=click.Choice(tuple(FILES)),
    default="requirements",
    show_default=True,
    help="What to export.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--base-digest", default="", help="Digest (sha256:...) of the base image, to pin it.")
@click.option(
    "--ask-upstream",
    is_flag=True,
    help="Ask repositories what the commits are that no mirror here has: their trees, and whole names.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write into this folder; for `dockerfile` a whole build context.",
)
@click.pass_obj
def command(
    settings: Settings,
    cell: str,
    shape: str,
    as_json: bool,
    base_digest: str,
    ask_upstream: bool,
    output: Path | None,
) -> None:
    """Export CELL with every package pinned, from the outcome its check `resolve` had."""
    from harness.builds.export.lock_formats import EXPORTS, as_requirements, docker_context

    lock = _lock(settings, cell, base_digest)
    if ask_upstream:
        lock = _asked(lock)
    for notice in lock.notices:
        click.echo(f"note: {notice}", err=True)
    chosen = "json" if as_json else shape
    if chosen == "dockerfile":
        files = docker_context(lock, settings.root)
    else:
        files = {FILES[chosen]: EXPORTS[chosen](lock).encode()}
        if chosen == "conda":
            files["requirements.txt"] = as_requirements(lock).encode()
    if output is None:
        click.echo(files[FILES[chosen]].decode(), nl=False)
        if len(files) > 1:
            click.echo("note: --output DIR also writes the files it names", err=True)
        return
    for name, data in files.items():
        _write(output / name, data)
        click.echo(str(output / name))


def _lock(settings: Settings, wanted: str, base_digest: str) -> CellLock:
    from harness.builds.lock.cell_lock import make_lock
    from harness.builds.lock.commit_trees import add_tree_ids
    from harness.builds.lock.extra_requirements import add_extra_requirements
    from harness.outcome import Status
    from harness.plan.keys.facets import facet_values

    matrix = open_matrix(settings)
    cell = find_cell(matrix, settings["profile"], wanted)
    plan = open_bench(settings, only=[cell.id], checks=["resolve"]).plan
    key = next(entry.key for entry in plan.entries if entry.check == "resolve")
    again = f"npu-matrix run --only {cell.id} --check resolve"
    with open_ledger(settings) as ledger:
        outcome = ledger.get(key)
        if outcome is None:
            raise NothingSelectedError(f"{cell.id} has not been resolved as it stands", fix=again)
        ref = outcome.artifact("lock.txt")
        if ref is None:
            judgement = judge_outcome(plan.tasks[key].check, outcome)
            failed = judgement.status is Status.FAIL
            raise NothingSelectedError(
                f"{cell.id} has no lock",
                why=" ".join(judgement.reasons),
                fix=f"{'mend its pins' if failed else 'wait until these indexes answer'}, then {again}",
            )
        text = ledger.artifacts.get(ref).read_text("utf-8")
    facets = facet_values(cell, FACETS, facet_inputs(settings, matrix))
    made = make_lock(
        as_object(next(one for one in plan.cells if one.id == cell.id)),
        facets["pins"],
        facets["platform"],
        [*facets["patches[verl]"], *facets["patches[vllm_ascend]"]],
        text,
        base_digest,
        settings["base_image"],
        read=outcome.measurements.get("source_requirements", ()),
        not_installed=_apart(matrix, cell),
    )
    mirrors = settings.path("mirrors") if settings["mirrors"] else None
    return add_extra_requirements(add_tree_ids(made, mirrors), mirrors, os.environ)


def _asked(lock: CellLock) -> CellLock:
    from harness.builds.lock import commit_trees

    asked, silent = commit_trees.add_upstream_tree_ids(lock)
    for why in silent:
        click.echo(f"note: {why}", err=True)
    return asked


def _apart(matrix: Matrix, cell: Cell) -> dict[str, str]:
    """Parts of a cell that have a repository and are no package: what carries patches for others."""
    return {
        f"{axis.title} {cell.axes[name]}": axis.repository
        for name, axis in matrix.axes.items()
        if name in cell.axes and axis.repository and not axis.package
    }


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise InfrastructureError(
            "this file cannot be written",
            where=Location(path),
            why=error.strerror or str(error),
            fix="choose another --output",
        ) from error
