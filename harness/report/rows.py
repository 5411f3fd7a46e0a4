"""What a report says of each cell: its page, its line of JSON, its lines of CSV, its entries in the feed.

Most of a large report. Cells do not depend on each other, so processes share them out.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.report.cell_pages import CellPages
from harness.report.export import cell_line
from harness.report.feed import Event, row_events
from harness.report.model import ReportModel, Row
from harness.report.pages import Writer
from harness.report.runs import row_past, run_ids
from harness.report.sheet import axes_of, row_lines

PARALLEL_FROM = 2_000
MAX_WORKERS = 8


@dataclass(kw_only=True)
class RowTexts:
    """Of each row, in order, what goes into the files that all rows share; `written`: the pages."""

    lines: list[str] = field(default_factory=list)
    sheet: list[str] = field(default_factory=list)
    events: list[list[Event]] = field(default_factory=list)
    past: list[list[str]] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)


class RowRenderer:
    """Renders cells one by one; what repeats from cell to cell is rendered once."""

    def __init__(self, model: ReportModel, folder: Path) -> None:
        self.writer = Writer(folder)
        self._pages = CellPages(model, self.writer)
        self._axes = axes_of(model)
        self._run_id = model.run.run_id
        self._now = model.run.started or model.generated
        self._runs = {run_id: place for place, run_id in enumerate(run_ids(model))}

    def add(self, row: Row, texts: RowTexts) -> None:
        """Write the page of a row and append its texts."""
        self.writer.write(f"cells/{row.slug}.html", self._pages.render(row))
        texts.lines.append(cell_line(row))
        texts.sheet.append(row_lines(row, self._axes))
        texts.events.append(row_events(row, self._run_id, self._now))
        texts.past.append(row_past(row, self._runs, len(self._runs)))


def render_rows(model: ReportModel, folder: Path, rows: Sequence[Row] | None = None) -> RowTexts:
    """Write the pages of cells below `folder` in this process."""
    renderer, texts = RowRenderer(model, folder), RowTexts()
    for row in model.rows if rows is None else rows:
        renderer.add(row, texts)
    texts.written = renderer.writer.written
    return texts


class RowsInBackground:
    """`render_rows` of all rows in forked processes, which have the model without copying it.

    While they work, the caller can. Files that are named by their content may be written by several of them;
    the content is the same.
    """

    def __init__(self, model: ReportModel, folder: Path, workers: int | None = None) -> None:
        self._model = model
        self._folder = folder
        self._pool: ProcessPoolExecutor | None = None
        self._parts: list[Future[RowTexts]] = []
        if workers is None:
            workers = min(os.cpu_count() or 1, MAX_WORKERS) if len(model.rows) >= PARALLEL_FROM else 1
        if workers > 1 and "fork" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(
                workers, mp_context=context, initializer=_inherit, initargs=(model,)
            )
            # More parts than workers: they end at about the same time, however long a part takes.
            size = -(-len(model.rows) // (workers * 4))
            self._parts = [
                self._pool.submit(_inherited_rows, folder, first, first + size)
                for first in range(0, len(model.rows), size)
            ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def result(self) -> RowTexts:
        """All rows, in order; OSError when a file could not be written."""
        if self._pool is None:
            return render_rows(self._model, self._folder)
        whole = RowTexts()
        for part in self._parts:
            texts = part.result()
            whole.lines += texts.lines
            whole.sheet += texts.sheet
            whole.events += texts.events
            whole.past += texts.past
            whole.written += texts.written
        whole.written = list(dict.fromkeys(whole.written))
        return whole


_inherited: list[ReportModel] = []


def _inherit(model: ReportModel) -> None:
    _inherited.append(model)


def _inherited_rows(folder: Path, first: int, last: int) -> RowTexts:
    model = _inherited[0]
    return render_rows(model, folder, model.rows[first:last])
