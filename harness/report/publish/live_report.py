"""A report that follows its run: only the files that changed are written again."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.builds.ownership.temporary_folders import temporary_folder
from harness.errors import InfrastructureError, Location
from harness.gc_pause import gc_paused
from harness.report.formats.badge import badge_files
from harness.report.model.report_inputs import ReportInputs, ReportResult
from harness.report.model.report_model import ReportModel, ReportRow, build_model
from harness.report.pages.html import render_overviews
from harness.report.pages.page_templates import KeptTexts, PageWriter
from harness.report.publish.cell_rows import render_rows
from harness.report.publish.publish import (
    MARKER,
    SHEET,
    live_prefix,
    real_folder,
    render_report,
    shared_files,
    write_parts,
)


class LiveReport:
    """A report on disk whose texts stay in memory: a new outcome rewrites one page and the overviews.

    Files are replaced one by one, each atomically.
    """

    def __init__(self, inputs: ReportInputs, folder: Path) -> None:
        self._folder = real_folder(folder)
        self._model = build_model(inputs)
        # These objects live as long as the report, and so do its texts below. Searching them for garbage
        # would double the time of an update.
        gc.freeze()
        self._texts = render_report(self._model, folder)
        #: Of what updates have written; most badges and drafts stay the same.
        self._kept = KeptTexts()
        self._indices = {row.cell.id: index for index, row in enumerate(self._model.rows)}
        gc.collect()
        gc.freeze()

    @property
    def model(self) -> ReportModel:
        """The model of the report on disk."""
        return self._model

    @gc_paused()
    def take(self, inputs: ReportInputs) -> list[Path]:
        """Update the report to `inputs`, which have the same cells; returns the files that were written."""
        results = _with_known(self._model.inputs.results, inputs.results)
        cells = tuple(
            old if old == new else new
            for old, new in zip(self._model.inputs.cells, inputs.cells, strict=True)
        )
        return self._show(replace(inputs, cells=cells, results=results))

    def _show(self, inputs: ReportInputs) -> list[Path]:
        model = build_model(inputs, self._model)
        before = {row.cell.id: row for row in self._model.rows}
        changed = [row for row in model.rows if before.get(row.cell.id) is not row]
        try:
            # A folder next to the report is on the same disk, so that a rename can replace each file.
            with temporary_folder(self._folder.parent, live_prefix(self._folder)) as fresh:
                names = self._write(model, fresh, changed)
                targets = [self._folder / name for name in names]
                for name, target in zip(names, targets, strict=True):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    (fresh / name).replace(target)
        except OSError as error:
            self._kept = KeptTexts()
            raise InfrastructureError(
                "the report cannot be written",
                where=Location(error.filename or self._folder),
                why=error.strerror or str(error),
                fix="free space or choose another folder with --reports",
            ) from error
        self._model = model
        return targets

    def _write(self, model: ReportModel, folder: Path, changed: list[ReportRow]) -> list[str]:
        part = render_rows(model, folder, changed)
        for row, texts in zip(changed, part.texts, strict=True):
            self._texts[self._indices[row.cell.id]] = texts
        for name in [name for name in self._kept.digests if not (self._folder / name).is_file()]:
            del self._kept.digests[name]
        writer = PageWriter(folder, self._kept)
        render_overviews(model, writer)
        files: dict[str, str | Iterable[bytes]] = {**badge_files(model), **shared_files(model, self._texts)}
        for name, content in files.items():
            if isinstance(content, str):
                writer.write(name, content)
            elif name in {MARKER, SHEET}:
                # Files with all results are always new, and so large that comparing them takes longer.
                write_parts(folder / name, content)
            else:
                writer.write(name, b"".join(content))
        large = (MARKER, SHEET)
        return list(dict.fromkeys((*part.names, *writer.names, *large)))


def _with_known(known: Sequence[ReportResult], results: Sequence[ReportResult]) -> tuple[ReportResult, ...]:
    """`results`, with the known object for each that is equal to one, because much is computed on it."""
    if len(known) == len(results) and all(
        old.cell_id == new.cell_id and old.check == new.check
        for old, new in zip(known, results, strict=True)
        if old is not new
    ):
        pairs = zip(known, results, strict=True)
        return tuple([old if old is new or old == new else new for old, new in pairs])
    shown = {(result.cell_id, result.check): result for result in known}
    found = ((shown.get((new.cell_id, new.check)), new) for new in results)
    return tuple(old if old is not None and old == new else new for old, new in found)
