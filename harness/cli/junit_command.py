"""`npu-matrix junit`: merge JUnit files of any test runner."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import (
    EXIT_INCOMPLETE,
    EXIT_NOTHING_SELECTED,
    EXIT_OK,
    EXIT_UNEXPECTED,
    InputError,
    Location,
)
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.ledger.junit.junit_merge import MergedReport


@click.group(
    "junit",
    epilog="\b\nExamples:\n  npu-matrix junit merge all.xml shard-*/junit.xml target/surefire-reports/",
)
def command() -> None:
    """Merge JUnit files of any test runner."""


@command.command(
    "merge",
    epilog="\b\nExamples:\n  npu-matrix junit merge all.xml shard-*/junit.xml\n"
    "  npu-matrix junit merge all.xml target/surefire-reports/ ctest.xml --json\n"
    "  npu-matrix junit merge all.xml inner.xml --cell gspo-qwen25-3b\n\n\b\n"
    "Exit codes: 0 no test failed; 1 a test failed; 3 no test was run; 4 a file is incomplete.",
)
@click.argument("target", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--cell", metavar="CELL", help="Write the versions of this cell (an id or a stack) into every suite."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.junit-merge).")
@click.pass_obj
def merge(
    settings: Settings, /, target: Path, sources: tuple[Path, ...], cell: str | None, as_json: bool
) -> int:
    """Merge JUnit files of any test runner into OUT.

    Files of pytest, surefire, gtest, ctest, nextest, jest and others can be mixed. FILE may be a folder: then
    every *.xml below it is merged. Elements are copied unchanged, including reruns and properties, except
    that credentials are masked and the evidence `hardware` becomes `claimed`, because JUnit cannot prove it.
    For a file that is truncated or has fewer tests than it declares, a test with an error is added, so that
    the merged result does not pass.
    """
    from harness.ledger.junit.junit_merge import merge_junit
    from harness.sources.secrets.masking import Masker

    merged = merge_junit(
        target,
        _files(target, sources),
        properties=_properties(settings, cell),
        mask=Masker.of_command(os.environ),
    )
    if as_json:
        schema = {"name": "npu-matrix.junit-merge", "version": 1}
        click.echo(json.dumps({"schema": schema, "out": str(target), **asdict(merged)}, indent=2))
    else:
        for line in _lines(merged, target):
            click.echo(line)
    return _code(merged)


def _code(merged: MergedReport) -> int:
    if any(file.problem for file in merged.files):
        return EXIT_INCOMPLETE
    counts = merged.counts
    if counts.failures or counts.errors:
        return EXIT_UNEXPECTED
    # As for a run: skipped tests prove nothing.
    return EXIT_OK if counts.tests > counts.skipped else EXIT_NOTHING_SELECTED


def _lines(merged: MergedReport, target: Path) -> list[str]:
    from harness.verdict.triage.log_line import shown

    lines = [f"{file.path}: {shown(file.problem)}" for file in merged.files if file.problem]
    lines += [f"failed: {shown(name)}" for name in merged.failed]
    lines += [f"flaky: {shown(name)}" for name in merged.flaky]
    counts = ", ".join(f"{count} {name}" for name, count in asdict(merged.counts).items())
    return [*lines, f"{target}: {counts} of {len(merged.files)} files"]


def _files(target: Path, sources: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for source in sources:
        if source.is_dir():
            below = [file for file in sorted(source.rglob("*.xml")) if not _same(file, target)]
            if not below:
                raise InputError(
                    "no *.xml is in this folder", where=Location(source), fix="name the runner's folder"
                )
            found |= dict.fromkeys(below)
        elif _same(source, target):
            raise InputError(
                "OUT is also one of the files to merge", where=Location(source), fix="name another OUT"
            )
        else:
            found[source] = None
    return list(found)


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _properties(settings: Settings, name: str | None) -> Mapping[str, str]:
    """The id and the axes of a cell, as the report writes them."""
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import unknown_name

    if name is None:
        return {}
    cells = open_matrix(settings).all_cells
    cell = next((one for one in cells if name in {one.id, one.stack}), None)
    if cell is None:
        raise unknown_name("cell", name, [known for one in cells for known in (one.stack or one.id, one.id)])
    return {"cell": cell.id, **dict(cell.axes)}
