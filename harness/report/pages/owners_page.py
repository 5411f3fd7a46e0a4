"""The page about ownership: failures by owner, source and expiry, with a draft of a report for each."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import partial

from harness.report.model.failure_owners import NOBODY, OwnedFailure
from harness.report.model.report_model import ReportModel
from harness.report.model.visible_text import counted, file_name
from harness.report.pages.page_templates import PageWriter, anchor_of, environment
from harness.report.pages.upstream_draft import LANGUAGES, upstream_draft

#: For how many failures a draft is written, and how many of an owner are listed.
MAX_DRAFTS = 100
MAX_LISTED = 200
MAX_CELLS = 6
#: An expiry within these days is named.
SOON_DAYS = 30


@dataclass(frozen=True, kw_only=True)
class ShownFailure:
    """A failure with what the page adds: days until it expires (None without a date) and its drafts."""

    failure: OwnedFailure
    days_left: int | None
    drafts: tuple[tuple[str, str], ...]


def owners_page(model: ReportModel, writer: PageWriter) -> str:
    """The page as HTML; writes the drafts."""
    drafts = _Drafts(model, writer)
    groups = [
        (owner, [drafts.shown(one) for one in failures[:MAX_LISTED]], len(failures))
        for owner, failures in model.owners.items()
    ]
    rows = {row.cell.id: row for row in model.rows}
    template = environment(writer, up="").get_template("owners.html")
    return template.render(
        model=model,
        headline=_headline(groups),
        groups=groups,
        nobody=NOBODY,
        title=lambda cell: model.names.get(cell, cell),
        href=lambda cell, check: f"cells/{rows[cell].slug}.html#{anchor_of(check)}" if cell in rows else "",
        most_cells=MAX_CELLS,
        soon=SOON_DAYS,
    )


def _headline(groups: list[tuple[str, list[ShownFailure], int]]) -> str:
    unowned = sum(total for owner, _shown, total in groups if owner == NOBODY)
    owned = sum(total for owner, _shown, total in groups if owner != NOBODY)
    owners = sum(owner != NOBODY for owner, _shown, _total in groups)
    expired = sum(
        one.days_left is not None and one.days_left < 0 for _owner, shown, _total in groups for one in shown
    )
    text = f"Failures without an owner: {unowned}. Expected failures: {owned}"
    text += f", with {counted(owners, 'owner')}." if owned else "."
    return text + (f" Expired expectations: {expired}." if expired else "")


class _Drafts:
    """Writes the drafts of the first failures, one file for each language."""

    def __init__(self, model: ReportModel, writer: PageWriter) -> None:
        self._model = model
        self._writer = writer
        self._rows = {row.cell.id: row for row in model.rows}
        self._left = MAX_DRAFTS

    def shown(self, failure: OwnedFailure) -> ShownFailure:
        """The failure with its drafts; none if it has no result, or if there are too many."""
        return ShownFailure(
            failure=failure,
            days_left=_days_left(failure.known.until if failure.known else "", self._model.inputs.generated),
            drafts=self._write(failure) if failure.results and self._left > 0 else (),
        )

    def _write(self, failure: OwnedFailure) -> tuple[tuple[str, str], ...]:
        result = failure.results[0]
        row = self._rows.get(result.cell_id)
        if row is None:
            return ()
        self._left -= 1
        name = file_name(f"{result.cell_id}-{result.check}")
        links = []
        for language in LANGUAGES:
            path = f"drafts/{name}.{language}.txt"
            inputs = self._model.inputs
            sources = (row, result, self._model.axes, inputs.run.profile, inputs.commits, inputs.survival)
            text = self._writer.kept.text(
                path, sources, partial(upstream_draft, self._model, row, result, language)
            )
            self._writer.store(path, text)
            links.append((language, path))
        return tuple(links)


def _days_left(until: str, now: float) -> int | None:
    """Days until a date; negative after it. None if it is no date."""
    try:
        end = dt.date.fromisoformat(until)
        today = dt.datetime.fromtimestamp(now, tz=dt.UTC).date()
    except (ValueError, OverflowError, OSError):
        return None
    return (end - today).days
