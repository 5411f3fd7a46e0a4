"""Renders each cell: its page, its line of JSON, its lines of CSV, its entries in the feed.

This takes most of the time of a large report. Cells do not depend on each other, so several processes render
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from harness.forked_pool import ForkedPool, fork_workers
from harness.report.formats.csv_export import row_lines
from harness.report.formats.feed import FeedItem, row_events
from harness.report.formats.json_export import cell_line
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.pages.cell_pages import CellPages
from harness.report.pages.grid import GridRow, grid_row
from harness.report.pages.page_templates import PageWriter
from harness.report.publish.remembered_runs import RowHistories, RowHistory, run_ids

PARALLEL_FROM = 2_000


class RowTexts(NamedTuple):
    """The parts of the shared files that belong to one row."""

    line: bytes
    sheet: bytes
    events: tuple[FeedItem, ...]
    past: RowHistory
    grid: GridRow


@dataclass(kw_only=True)
class RenderedRows:
    """The texts of the rows in order, and the names of the files that were written for them."""

    texts: list[RowTexts] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


class RowRenderer:
    """Renders cells one by one; parts that are equal in many cells are rendered once."""

    def __init__(self, model: ReportModel, folder: Path) -> None:
        self.writer = PageWriter(folder)
        self._pages = CellPages(model, self.writer)
        self._model = model
        self._checks = [check.name for check in model.checks]
        self._run_id = model.inputs.run.run_id
        self._now = model.inputs.run.started or model.inputs.generated
        self._histories = RowHistories(run_ids(model))

    def render(self, row: ReportRow) -> RowTexts:
        """Write the page of a row; returns its texts."""
        self.writer.write(f"cells/{row.slug}.html", self._pages.render(row))
        return RowTexts(
            line=cell_line(self._model, row),
            sheet=row_lines(self._model, row),
            events=tuple(row_events(row, self._run_id, self._now)),
            past=self._histories.of(row),
            grid=grid_row(row, self._checks, self._model.all_axes),
        )

    def render_all(self, rows: Sequence[ReportRow]) -> RenderedRows:
        """Render these rows; the names are those of the files that were written for them."""
        known = len(self.writer.names)
        texts = [self.render(row) for row in rows]
        return RenderedRows(texts=texts, names=self.writer.names[known:])

    def render_part(self, first: int, last: int) -> RenderedRows:
        """Render these rows of the model."""
        return self.render_all(self._model.rows[first:last])


def render_rows(model: ReportModel, folder: Path, rows: Sequence[ReportRow] | None = None) -> RenderedRows:
    """Write the pages of cells below `folder` in this process."""
    return RowRenderer(model, folder).render_all(model.rows if rows is None else rows)


class RowsInBackground:
    """Renders all rows in forked processes, which share the memory of the model.

    The caller can work meanwhile. Several processes may write the same file if it is named by its content;
    the content is then the same.
    """

    def __init__(self, model: ReportModel, folder: Path, workers: int | None = None) -> None:
        self._model = model
        self._folder = folder
        self._pool: ForkedPool[RowRenderer] | None = None
        self._parts: list[Future[RenderedRows]] = []
        #: The files of the first row, which the workers take as written.
        self._first: list[str] = []
        if workers is None:
            workers = fork_workers() if len(model.rows) >= PARALLEL_FROM else 1
        if workers > 1:
            # Used here, so that the workers inherit the compiled templates and the imported checks.
            renderer = RowRenderer(model, folder)
            self._first = renderer.render_all(model.rows[:1]).names
            self._pool = ForkedPool(renderer, workers, collects=False)
            # More parts than workers, so that all workers end at about the same time.
            size = -(-len(model.rows) // (workers * 4))
            self._parts = [
                self._pool.submit(RowRenderer.render_part, first, first + size)
                for first in range(0, len(model.rows), size)
            ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.close()

    def result(self) -> RenderedRows:
        """All rows, in order; OSError when a file could not be written."""
        if self._pool is None:
            return render_rows(self._model, self._folder)
        whole = RenderedRows(names=self._first)
        for part in self._parts:
            rendered = part.result()
            whole.texts += rendered.texts
            whole.names += rendered.names
        whole.names = list(dict.fromkeys(whole.names))
        return whole
