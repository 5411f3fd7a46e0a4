"""The changes in the stored runs as an Atom feed: one entry for each run with a change."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import escape

from harness.outcome import Status
from harness.report.model.changes import RunChangeKind
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.streak import RAN_BEFORE, CondensedHistory
from harness.report.model.visible_text import clip, iso, visible

MAX_ENTRIES = 50
MAX_LINES = 200
EPOCH = "1970-01-01T00:00:00Z"
#: Characters that XML 1.0 does not allow and that `visible` does not replace.
_NO_XML = re.compile("[\ufffe\uffff]")


class FeedItem(NamedTuple):
    """A verdict that changed between pass and fail, or was lost, in the run that started at `when`."""

    run_id: str
    when: float
    turn: RunChangeKind
    cell: str
    page: str
    check: str
    reason: str = ""


def row_events(row: ReportRow, run_id: str, now: float) -> list[FeedItem]:
    """Every change in the history of a cell's checks; run_id, now: id and time of the reported run."""
    name = row.cell.name
    return [
        FeedItem(
            run_id=run,
            when=when,
            turn=turn,
            cell=name,
            page=f"cells/{row.slug}.html",
            check=result.check,
            reason=result.reason if run == run_id else "",
        )
        for result in row.results.values()
        for run, when, turn in _turns(result.past, result.verdict.status, run_id, now)
    ]


def atom(model: ReportModel, by_row: Iterable[Sequence[FeedItem]] | None = None) -> str:
    """The feed as XML. The ids of entries depend only on run ids, so that a new report repeats no entry.

    by_row: the events of each row if they were made before.
    """
    now = model.inputs.run.started or model.inputs.generated
    if by_row is None:
        by_row = [row_events(row, model.inputs.run.run_id, now) for row in model.rows]
    events: dict[str, list[FeedItem]] = defaultdict(list)
    for found in by_row:
        for event in found:
            events[event[0]].append(event)
    times = {run_id: found[0].when for run_id, found in events.items()}
    # Newest first by the order of the ledger, because clocks can be set back. A run that the ledger does not
    # have comes last.
    order = [model.inputs.run.run_id, *(run.run_id for run in model.inputs.runs), *events]
    runs = [run_id for run_id in dict.fromkeys(order) if run_id in events][:MAX_ENTRIES]
    updated = iso(times[runs[0]]) if runs else iso(model.inputs.generated)
    entries = "".join(_entry(run_id, times[run_id], events[run_id]) for run_id in runs)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">\n'
        f"<title>npu-matrix: what changed{_profile(model)}</title>\n"
        f"<id>{_identity('feed', model.inputs.run.profile)}</id>\n<updated>{updated or EPOCH}</updated>\n"
        '<author><name>npu-matrix</name></author>\n<link rel="alternate" href="changes.html"/>\n'
        f"{entries}</feed>\n"
    )


def _profile(model: ReportModel) -> str:
    return f" in profile {_text(model.inputs.run.profile, 60)}" if model.inputs.run.profile else ""


@lru_cache(maxsize=16_384)
def _turns(
    past: CondensedHistory, status: Status, run_id: str, now: float
) -> tuple[tuple[str, float, RunChangeKind], ...]:
    """Run, time and kind of every change in the history of a check with this status; many share them."""
    found = []
    last_status, fresh = None, False
    for stretch in past.stretches:
        turn, last_status, fresh = _turned(stretch.status, last_status, fresh)
        if turn:
            found.append((stretch.first_run, stretch.first, turn))
    turn, _, _ = _turned(status, last_status, fresh)
    return (*found, (run_id, now, turn)) if turn else tuple(found)


def _turned(
    status: Status, last_status: Status | None, fresh: bool
) -> tuple[RunChangeKind | None, Status | None, bool]:
    """The change from the previous verdict to this one (or None), the last status with an outcome, and
    whether a following verdict without an outcome would be a change."""
    if status not in RAN_BEFORE:
        return (RunChangeKind.LOST if fresh else None), last_status, False
    bad, was_bad = status is not Status.PASS, last_status is not Status.PASS
    turned = last_status is not None and bad != was_bad
    return ((RunChangeKind.BROKEN if bad else RunChangeKind.FIXED) if turned else None), status, True


def _entry(run_id: str, when: float, events: list[FeedItem]) -> str:
    by_turn: dict[RunChangeKind, list[FeedItem]] = {turn: [] for turn in RunChangeKind}
    for event in events:
        by_turn[event.turn].append(event)
    title = ", ".join(f"{len(found)} {turn.value}" for turn, found in by_turn.items() if found)
    urgent = islice(chain.from_iterable(by_turn.values()), MAX_LINES)
    lines = [
        f"{event.turn.value}: {event.check} of {event.cell}" + (f": {event.reason}" if event.reason else "")
        for event in urgent
    ]
    more = [f"and {len(events) - MAX_LINES} more"] if len(events) > MAX_LINES else []
    return _written(run_id, when, title, (*lines, *more))


@lru_cache(maxsize=2 * MAX_ENTRIES)
def _written(run_id: str, when: float, title: str, lines: tuple[str, ...]) -> str:
    """The entry as XML; cached, because the entries of earlier runs do not change while a run is followed."""
    body = "\n".join(_text(line, 400) for line in lines)
    return (
        f"<entry>\n<title>{_text(title, 200)} (run {_text(run_id, 60) or 'unknown'})</title>\n"
        f"<id>{_identity('run', run_id)}</id>\n<updated>{iso(when) or EPOCH}</updated>\n"
        f'<link rel="alternate" href="changes.html{_fragment(run_id)}"/>\n'
        f'<content type="text">{body}</content>\n</entry>\n'
    )


def _fragment(run_id: str) -> str:
    """The part of a link that shows what changed in this run."""
    return f"#now={quote(run_id.encode('utf-8', 'backslashreplace'), safe='')}" if run_id else ""


def _identity(kind: str, name: str) -> str:
    text = f"npu-matrix:{kind}:{name}".encode("utf-8", "backslashreplace").decode()
    return uuid.uuid5(uuid.NAMESPACE_URL, text).urn


def _text(text: str, limit: int) -> str:
    return str(escape(_NO_XML.sub("\ufffd", visible(clip(text, limit)))))
