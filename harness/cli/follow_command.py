"""`npu-matrix matrix follow`: adds what upstream projects have published since to matrix.yaml."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.fetch_option import fetch_option, with_fetch
from harness.errors import EXIT_INCOMPLETE, EXIT_OK, InputError, Location
from harness.serialisation import dumps
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.workspace.following.table_news import MatrixNews

CODES = {
    EXIT_OK: "all sources were read; there may be nothing new",
    EXIT_INCOMPLETE: "a source could not be read, or part of it was not understood; the rest was added",
}
_CODES_TEXT = "\n\n\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in CODES.items())


@click.command(
    "follow",
    epilog="\b\nExamples:\n  npu-matrix matrix follow\n  npu-matrix matrix follow --only vllm-ascend --write"
    "\n  npu-matrix matrix follow --patch news.patch && git am news.patch" + _CODES_TEXT,
)
@click.option("--only", multiple=True, metavar="TABLE", help="Follow only these tables of `published`.")
@click.option("--write", is_flag=True, help="Write matrix.yaml. Default: print the change.")
@click.option(
    "--patch",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the change as a patch for `git am`. Without a change, the file is not written.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.follow).")
@fetch_option
@click.pass_obj
def follow(
    settings: Settings,
    only: tuple[str, ...],
    write: bool,
    patch: Path | None,
    as_json: bool,
    fetch: bool | None,
) -> int:
    """Find new releases and new rows of the published tables.

    A table of `published` names its source with `follow`: a document in the repository of an axis, the same
    document at the tag of each release, or the metadata of the releases on the package index. New rows are
    added to the table. With `adds: stack`, the row of a new final release is also added as a stack, with
    `adds: migration` as a migration of the newest stack. Everything is added with its source, and the rest
    of the file stays as it is.

    A table with other columns, or a field that is not a version, is reported with its line, and its row is
    left out. A row that is already in the table is never changed; differences are reported.
    """
    from harness.matrix.editing.yaml_edit import read_matrix_text, write_matrix_text
    from harness.workspace.following.change_patch import change_patch
    from harness.workspace.following.table_news import followed_tables, matrix_news, read_news
    from harness.workspace.planning.open_plan import open_matrix

    settings = with_fetch(settings, fetch)
    matrix = open_matrix(settings)
    file = settings.path("matrix")
    text, line_end = read_matrix_text(file)
    today = dt.datetime.now(tz=dt.UTC).date()
    news = matrix_news(matrix, text, read_news(settings, matrix, followed_tables(matrix, only)), file, today)
    if news.after != news.before:
        if patch:
            _write(patch, change_patch(news, file, line_end))
        if write:
            write_matrix_text(file, news.after, line_end)
    _print(settings, news, as_json=as_json, with_change=not write and not patch)
    return EXIT_INCOMPLETE if news.problems else EXIT_OK


def _write(file: Path, text: str) -> None:
    try:
        file.write_bytes(text.encode())
    except OSError as error:
        raise InputError(
            "the patch cannot be written", where=Location(file), why=error.strerror or str(error)
        ) from error


def _print(settings: Settings, news: MatrixNews, *, as_json: bool, with_change: bool) -> None:
    from harness.verdict.expectations import unified_difference
    from harness.workspace.following.change_patch import summary_lines

    if as_json:
        click.echo(dumps(_json(news), indent=2))
        return
    for line in summary_lines(news):
        click.echo(line)
    if with_change:
        click.echo(unified_difference(news.before, news.after, settings["matrix"]), nl=False)


def _json(news: MatrixNews) -> dict[str, object]:
    return {
        "schema": {"name": "npu-matrix.follow", "version": 1},
        "tables": [
            {
                "table": one.table.name,
                "rows": [
                    {"fields": dict(zip(one.table.columns, row.fields, strict=True)), "source": row.source}
                    for row in one.rows
                ],
                "problems": [str(problem) for problem in one.problems],
                "notes": list(one.notes),
            }
            for one in news.tables
        ],
        "stacks": list(news.stacks),
        "migrations": list(news.migrations),
    }
