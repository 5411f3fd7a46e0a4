"""`npu-matrix lock CELL`: export the exact packages of a cell in a format that can be installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.completion import complete_cells
from harness.cli.fetch_option import fetch_option, with_fetch
from harness.errors import InfrastructureError, Location
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.builds.lock.cell_lock import CellLock

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
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "--format",
    "--export",
    "shape",
    type=click.Choice(tuple(FILES)),
    default="requirements",
    show_default=True,
    help="The format of the export.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--base-digest", default="", help="Digest (sha256:...) of the base image, to pin it.")
@click.option(
    "--ask-upstream",
    is_flag=True,
    help="Ask the upstream repositories for the trees and full hashes of commits that no local mirror has.",
)
@fetch_option
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write into this folder; for `dockerfile`, a complete build context.",
)
@click.pass_obj
def command(
    settings: Settings,
    cell: str,
    shape: str,
    as_json: bool,
    base_digest: str,
    ask_upstream: bool,
    fetch: bool | None,
    output: Path | None,
) -> None:
    """Export CELL with every package version pinned, from the stored outcome of its check `resolve`."""
    from harness.builds.export.lock_formats import EXPORTS, as_requirements, docker_context
    from harness.workspace.results.stored_lock import lock_of_cell

    lock = lock_of_cell(with_fetch(settings, fetch), cell, base_digest)
    if ask_upstream:
        lock = _with_upstream_ids(lock)
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
            click.echo(
                "note: with --output DIR, the other files that this file needs are written too", err=True
            )
        return
    for name, data in files.items():
        _write(output / name, data)
        click.echo(str(output / name))


def _with_upstream_ids(lock: CellLock) -> CellLock:
    from harness.builds.lock import commit_trees

    completed, problems = commit_trees.add_upstream_tree_ids(lock)
    for problem in problems:
        click.echo(f"note: {problem}", err=True)
    return completed


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
