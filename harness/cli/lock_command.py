"""`npu-matrix lock CELL`: export the exact packages of a cell in a format that can be installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.completion import complete_cells
from harness.cli.container_options import ascend_runtime_option, npu_resource_option
from harness.cli.fetch_option import fetch_option, with_fetch
from harness.errors import InfrastructureError, Location
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.builds.lock.cell_lock import CellLock

# The keys of `FILE_NAMES` in harness/builds/export, which `--help` need not import.
FORMATS = (
    *("requirements", "script", "markdown", "conda", "dockerfile", "compose", "bake", "devcontainer"),
    *("kubernetes", "json"),
)


@click.command(
    "lock",
    epilog="\b\nExamples:\n  npu-matrix lock verl-0-9-0 > requirements.txt\n"
    "  npu-matrix lock gspo-async --export dockerfile --output build/gspo-async\n"
    "  npu-matrix lock gspo-async --export kubernetes --cards 8 --image my-registry/cell:1 --output build\n"
    "  npu-matrix lock gspo-async --export compose --ascend-runtime --registry ascendhub --output build\n"
    "  npu-matrix lock gptoss-20b-grpo --ask-upstream --export script\n"
    "  npu-matrix --base-image my-registry/cann@sha256:DIGEST lock gspo-async --export dockerfile",
)
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "--format",
    "--export",
    "shape",
    type=click.Choice(FORMATS),
    default="requirements",
    show_default=True,
    help="The format of the export.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--base-digest", default="", help="Digest (sha256:...) of the base image, to pin it.")
@click.option(
    "--registry",
    default="quay",
    show_default=True,
    help="Where the CANN image comes from: quay, dockerhub, ascendhub, or the name of an image without tag, "
    "for example my-registry/ascend/cann.",
)
@click.option(
    "--cards",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="NPUs that the container gets (compose, devcontainer, kubernetes).",
)
@click.option(
    "--image",
    default="",
    help="Name of the image that compose, bake and kubernetes use. Default: npu-matrix/CELL:latest.",
)
@ascend_runtime_option
@npu_resource_option
@click.option(
    "--no-buildkit",
    is_flag=True,
    help="Write a Dockerfile for builders without BuildKit, which cannot mount pip's configuration.",
)
@click.option(
    "--ask-upstream",
    is_flag=True,
    help="Ask the upstream repositories for the trees and full hashes of commits that no local mirror has.",
)
@fetch_option
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write into this folder, with all files that the format needs, such as a build context.",
)
@click.pass_obj
def command(
    settings: Settings,
    cell: str,
    shape: str,
    as_json: bool,
    base_digest: str,
    registry: str,
    cards: int,
    image: str,
    ascend_runtime: bool,
    npu_resource: str,
    no_buildkit: bool,
    ask_upstream: bool,
    fetch: bool | None,
    output: Path | None,
) -> None:
    """Export CELL with every package version pinned, from the stored outcome of its check `resolve`."""
    from harness.builds.export.container_files import ContainerOptions
    from harness.builds.export.export_formats import export_files
    from harness.builds.lock.lock_notices import lock_notices
    from harness.workspace.results.stored_lock import lock_of_cell

    options = ContainerOptions(
        cards=cards,
        image=image,
        ascend_runtime=ascend_runtime,
        npu_resource=npu_resource,
        buildkit=not no_buildkit,
    )
    lock = lock_of_cell(with_fetch(settings, fetch), cell, base_digest, registry)
    if ask_upstream:
        lock = _with_upstream_ids(lock)
    for notice in lock_notices(lock):
        click.echo(f"note: {notice}", err=True)
    files = export_files(lock, "json" if as_json else shape, settings.root, options)
    if output is None:
        click.echo(next(iter(files.values())).decode(), nl=False)
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
