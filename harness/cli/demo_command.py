"""`npu-matrix demo`: run a profile of the shipped matrix in a folder of its own, from anywhere."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from harness.cli.selection_options import check_option, only_option
from harness.errors import InputError, Location
from harness.settings import FILE_NAME, MATRIX_FILE, SHIPPED_MATRIX, Settings

#: Without it, the commands that the report prints would find no matrix in the folder of the demo.
DEMO_SETTINGS = f"""# Written by `npu-matrix demo`: the matrix of the installed npu-matrix.
matrix = "{SHIPPED_MATRIX}"
"""


@click.command(
    "demo",
    epilog="\b\nExamples:\n  npu-matrix demo\n  npu-matrix demo --only 'gspo-*' --check lint\n"
    "  npu-matrix --profile full demo --folder /data/demo",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("npu-matrix-demo"),
    show_default=True,
    help="Where the ledger, the environments and the report are written.",
)
@only_option("Cells to run. Default: the profile.")
@check_option("Checks to run. Default: all of the profile.")
@click.pass_context
def command(ctx: click.Context, /, folder: Path, only: tuple[str, ...], checks: tuple[str, ...]) -> int:
    """Run the default profile of the shipped matrix, and write the report to FOLDER/reports.

    Needs no checkout, no matrix.yaml and no NPU. The same command resumes an interrupted run; other
    commands, such as `lock` and `run --fresh`, work in FOLDER. For your own repository: `npu-matrix init`.
    """
    from harness.cli.run_command import command as run

    settings: Settings = ctx.obj
    place = folder.absolute()
    if place.exists() and not place.is_dir():
        raise InputError("the folder for the demo is a file", where=Location(place), fix="use --folder")
    if (place / MATRIX_FILE).exists():
        raise InputError(
            "this folder has a matrix.yaml of its own, which the demo does not use",
            where=Location(place / MATRIX_FILE),
            fix="use `npu-matrix run` there, or another --folder for the demo",
        )
    place.mkdir(parents=True, exist_ok=True)
    if not (place / FILE_NAME).exists():
        (place / FILE_NAME).write_text(DEMO_SETTINGS)
    ctx.obj = Settings(settings.values, place).with_shipped_matrix()
    code: int = ctx.invoke(run, only=only, checks=checks)
    click.echo(
        f"Commands that are printed here and in the report work in this folder: cd {shlex.quote(str(place))}"
    )
    return code
