"""The change that `matrix follow` makes: as sentences, and as a patch for `git am`."""

from __future__ import annotations

import datetime as dt
import difflib
import email.utils
from collections.abc import Iterator
from pathlib import Path

from harness.workspace.following.table_news import MatrixNews

#: `git am` takes the author from the patch; the committer is whoever applies it.
AUTHOR = "npu-matrix <npu-matrix@localhost>"


def summary_lines(news: MatrixNews) -> Iterator[str]:
    """What is new, what was not understood and what else a reader should know, a line each."""
    for one in news.tables:
        for row in one.rows:
            fields = ", ".join(
                f"{column} {text}" for column, text in zip(one.table.columns, row.fields, strict=True) if text
            )
            yield f"{one.table.name}: {fields} ({row.source})"
    yield from (f"new stack {stack.name}: {stack.title}" for stack in news.stacks)
    yield from (f"new migration {one.name}: {one.title}" for one in news.migrations)
    for problem in news.problems:
        yield from str(problem).splitlines()
    yield from (f"note: {note}" for one in news.tables for note in one.notes)
    rows = sum(len(one.rows) for one in news.tables)
    yield (
        f"{len(news.tables)} tables followed: {rows} new rows, {len(news.stacks)} stacks, "
        f"{len(news.migrations)} migrations, {len(news.problems)} problems"
    )


def change_patch(news: MatrixNews, file: Path, line_end: str) -> str:
    """The change in the format of `git format-patch`, relative to the root of the repository of `file`.

    line_end: that of the file, which the texts of `news` do not have.
    """
    root = next((folder for folder in file.absolute().parents if (folder / ".git").exists()), file.parent)
    name = file.absolute().relative_to(root.absolute()).as_posix()
    lines = list(summary_lines(news))
    before, after = (text.replace("\n", line_end) for text in (news.before, news.after))
    difference = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR}\n"
        f"Date: {email.utils.format_datetime(dt.datetime.now(tz=dt.UTC))}\n"
        f"Subject: [PATCH] {name}: {lines[-1].partition(': ')[2].partition(', 0 problems')[0]}\n\n"
        + "".join(f"{line}\n" for line in lines[:-1])
        + f"---\n\ndiff --git a/{name} b/{name}\n{''.join(map(_complete, difference))}-- \nnpu-matrix\n\n"
    )


def _complete(line: str) -> str:
    """A line of a difference; git marks the last line of a file that does not end with a line break."""
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
