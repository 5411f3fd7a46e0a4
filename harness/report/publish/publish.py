"""Writes all formats into one folder, which is replaced as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.builds.ownership.temporary_folders import remove_orphaned_folders
from harness.errors import InfrastructureError, InputError, Location
from harness.gc_pause import gc_paused
from harness.report.formats.badge import badge_files
from harness.report.formats.csv_export import results_csv
from harness.report.formats.feed import atom
from harness.report.formats.json_export import SCHEMA_NAME, report_parts, schema_text
from harness.report.formats.markdown import summary, table
from harness.report.formats.open_metrics import open_metrics
from harness.report.formats.weekly_summary import weekly_summary
from harness.report.model.report_model import ReportModel
from harness.report.model.visible_text import as_bytes
from harness.report.pages.grid import grid_script
from harness.report.pages.html import render_overviews
from harness.report.pages.page_templates import PageWriter
from harness.report.publish.cell_rows import RowsInBackground, RowTexts
from harness.report.publish.remembered_runs import runs_script

MARKER = "report.json"
SHEET = "results.csv"
# The schema is at the beginning of the file, which can be large.
HEAD_BYTES = 200
BUFFER = 1_048_576


def render_all(
    model: ReportModel, folder: Path, extra: Mapping[str, str | bytes] | None = None
) -> list[Path]:
    """Write the report (`render_report`); returns all files of the folder."""
    render_report(model, folder, extra)
    folder = real_folder(folder)
    return sorted(path for path in folder.rglob("*") if path.is_file())


@gc_paused()
def render_report(
    model: ReportModel, folder: Path, extra: Mapping[str, str | bytes] | None = None
) -> list[RowTexts]:
    """Write every format, and `extra` files by relative name, into `folder`; returns the texts of the rows.

    The new report is written next to the old one and replaces it only when it is complete. InputError if
    `folder` contains something that is not a report; InfrastructureError if the report cannot be written, and
    the old report is then still there.
    """
    folder = real_folder(folder)
    _refuse_foreign(folder)
    fresh: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A mount point cannot be renamed, and its parent may belong to somebody else.
        inside = folder.is_mount() or not os.access(folder.parent, os.W_OK)
        _recover(folder)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.new-", dir=folder if inside else folder.parent))
        fresh.chmod(0o755)
        rows = _render(model, fresh, extra or {})
        if inside:
            _exchange(fresh, folder)
        else:
            _swap(fresh, folder)
    except OSError as error:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)
        raise InfrastructureError(
            "the report cannot be written",
            where=Location(error.filename or folder),
            why=error.strerror or str(error),
            fix="free space or choose another folder with --reports; an older report was left as it was",
        ) from error
    return rows


def real_folder(folder: Path) -> Path:
    """The folder with links resolved; InputError if the links form a circle or the name is too long."""
    try:
        return folder.resolve()
    except (OSError, RuntimeError) as error:
        raise InputError(
            "the links in the path of this folder cannot be resolved",
            where=Location(folder),
            why=str(error),
            fix="choose another folder with --reports",
        ) from error


def ensure_writable(folder: Path) -> None:
    """Fail before a long run if its report could not be written, with the same errors as `render_report`."""
    folder = real_folder(folder)
    _refuse_foreign(folder)
    parent = folder if folder.is_mount() else folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK) and folder.is_dir():
            parent = folder
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise InfrastructureError(
            "no report can be written here",
            where=Location(folder),
            why=error.strerror or str(error),
            fix="choose another folder with --reports",
        ) from error


def _render(model: ReportModel, folder: Path, extra: Mapping[str, str | bytes]) -> list[RowTexts]:
    with RowsInBackground(model, folder) as background:
        writer = PageWriter(folder)
        render_overviews(model, writer)
        for name, text in badge_files(model).items():
            writer.write(name, text)
        rows = background.result().texts
    extra = {"report.schema.json": schema_text(), **extra}
    texts = {name: [as_bytes(text) if isinstance(text, str) else text] for name, text in extra.items()}
    for name, content in {**shared_files(model, rows), **texts}.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{name!r} is not a name inside the report's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parts(path, content)
    return rows


def shared_files(model: ReportModel, rows: Sequence[RowTexts]) -> dict[str, Iterable[bytes]]:
    """The parts of the files that contain all cells, by the name of the file."""
    return {
        MARKER: report_parts(model, (row.line for row in rows)),
        "summary.md": [as_bytes(summary(model))],
        "weekly.md": [as_bytes(weekly_summary(model))],
        "metrics.txt": [as_bytes(open_metrics(model))],
        "table.md": [as_bytes(table(model) + "\n")],
        SHEET: [results_csv(model, (row.sheet for row in rows))],
        "changes.atom": [as_bytes(atom(model, (row.events for row in rows)))],
        "data/grid.js": [as_bytes(grid_script(model, (row.grid for row in rows)))],
        "data/runs.js": [as_bytes(runs_script(model, (row.past for row in rows)))],
    }


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """Write the parts of a file one after the other."""
    with path.open("wb", buffering=BUFFER) as stream:
        stream.writelines(parts)


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _swap(fresh: Path, folder: Path) -> None:
    """Replace `folder` by `fresh`; `_recover` undoes this if the process is killed meanwhile."""
    old = _old(folder)
    if folder.exists():
        folder.rename(old)
    try:
        fresh.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(fresh: Path, folder: Path) -> None:
    """Replace the content of `folder` by that of `fresh`, which is a folder inside `folder`."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder))
    moved: list[tuple[Path, Path]] = []
    try:
        for source, target in ((folder, old), (fresh, folder)):
            for entry in sorted(source.iterdir()):
                if entry not in {fresh, old}:
                    entry.rename(target / entry.name)
                    moved.append((target / entry.name, entry))
    except OSError:
        for now, before in reversed(moved):
            now.rename(before)
        old.rmdir()
        raise
    shutil.rmtree(old)
    fresh.rmdir()


def _recover(folder: Path) -> None:
    """Clean up after a killed process: restore the old report, remove incomplete ones."""
    old = _old(folder)
    if old.exists():
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)
    for parent in (folder.parent, folder):
        for incomplete in parent.glob(f".{folder.name}.new-*"):
            shutil.rmtree(incomplete, ignore_errors=True)
    remove_orphaned_folders(folder.parent, live_prefix(folder))


def live_prefix(folder: Path) -> str:
    """Prefix of the folders next to a report in which `LiveReport` writes the changed files."""
    return f".{folder.name}.live-"


def _refuse_foreign(folder: Path) -> None:
    """InputError unless the folder is empty, is missing, or contains a report."""
    if folder.exists() and not folder.is_dir():
        raise InputError(
            f"{folder.name!r} is not a folder",
            where=Location(folder),
            fix="choose another folder with --reports",
        )
    if not folder.exists() or not os.access(folder, os.R_OK) or not any(folder.iterdir()):
        return
    with contextlib.suppress(OSError), (folder / MARKER).open("rb") as stream:
        if f'"{SCHEMA_NAME}"'.encode() in stream.read(HEAD_BYTES):
            return
    raise InputError(
        "this folder contains something that is not a report",
        where=Location(folder),
        why="writing a report replaces the whole folder",
        fix="choose another folder with --reports, or empty this one",
    )
