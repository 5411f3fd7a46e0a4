"""`npu-matrix lint FILE`: lint a launch script for a verl version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from harness.errors import EXIT_INCOMPLETE, EXIT_UNEXPECTED
from harness.settings import Settings

FORMATS = ("text", "json", "github", "sarif")


@click.command(
    "lint",
    epilog="\b\nExamples:\n  npu-matrix lint run_gspo.sh --verl 0.9.1\n"
    "  npu-matrix lint run.sh --cell gspo-async\n  npu-matrix lint run.sh --verl 0.9.1 --format github",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--cell", help="Use all versions of this cell.")
@click.option("--verl", help="The verl version (or `0.6.1@COMMIT`) the script is for.")
@click.option("--vllm-ascend", help="The vllm-ascend version.")
@click.option("--cann", help="The CANN version.")
@click.option("--transformers", help="The transformers version.")
@click.option("--format", "shape", type=click.Choice(FORMATS), default="text", help="Output format.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    file: Path,
    cell: str | None,
    shape: str,
    as_json: bool,
    **versions: str | None,
) -> int:
    """Find settings in a launch script that fail, have no effect, or change the objective, each with a fix.

    Hydra composes the configuration of that verl (a release, or a commit that NPU_MATRIX_MIRRORS has) with
    the overrides. Exits with 1 if there is an error, and with 4 if settings were not compared or not read.
    """
    from harness.compat.lint import lint_format as printing
    from harness.compat.lint.lint_check import lint_file, verl_tree
    from harness.sources.packages.release_fetcher import ReleaseFetcher
    from harness.workspace.downloads import run_quietly
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import find_cell

    known: Mapping[str, str] = {}
    if cell:
        known = find_cell(open_matrix(settings), settings["profile"], cell).axes
    given = {name: value for name, value in versions.items() if value}
    versions_used = {**known, **given}
    verl = verl_tree(versions_used, ReleaseFetcher(cache=settings.cache, command=run_quietly))
    result = lint_file(file, versions_used, verl[0] if verl else None)
    render = {
        "text": printing.as_text,
        "json": printing.as_json,
        "github": printing.as_github,
        "sarif": printing.as_sarif,
    }
    click.echo(render["json" if as_json else shape](result), nl=False)
    if any(finding.severity == "error" for finding in result.findings):
        return EXIT_UNEXPECTED
    return EXIT_INCOMPLETE if result.unchecked else 0
