"""The changes of the remembered runs as an Atom feed: one entry for each run in which something turned."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import escape

from harness.report.changes import Turn
from harness.report.model import ReportModel, Result
from harness.report.streak import RAN_BEFORE
from harness.report.text import clip, iso, visible

MAX_ENTRIES = 50
MAX_LINES = 200
EPOCH = "1970-01-01T00:00:00Z"
#: What XML 1.0 cannot hold and `visible` leaves as it is.
_NO_XML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True, kw_only=True)
class _Event:
    turn: Turn
    cell: str
    page: str
    check: str
    reason: str = ""


def atom(model: ReportModel) -> str:
    """The feed as XML. Ids depend on run ids alone: a reader sees an entry once, however often it is made."""
    times: dict[str, float] = {}
    events: dict[str, list[_Event]] = defaultdict(list)
    for row in model.rows:
        name = row.cell.title or row.cell.id
        for result in row.results.values():
            for run_id, when, turn in _turns(result, model):
                times.setdefault(run_id, when)
                reason = result.facts.reasons[0] if result.facts.reasons else ""
                events[run_id].append(
                    _Event(
                        turn=turn,
                        cell=name,
                        page=f"cells/{row.slug}.html",
                        check=result.facts.check,
                        reason=reason if run_id == model.run.run_id else "",
                    )
                )
    runs = sorted(events, key=lambda run_id: times[run_id], reverse=True)[:MAX_ENTRIES]
    updated = iso(times[runs[0]]) if runs else iso(model.generated)
    entries = "".join(_entry(run_id, times[run_id], events[run_id]) for run_id in runs)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">\n'
        f"<title>npu-matrix: what changed{_profile(model)}</title>\n"
        f"<id>{_identity('feed', model.run.profile)}</id>\n<updated>{updated or EPOCH}</updated>\n"
        '<author><name>npu-matrix</name></author>\n<link rel="alternate" href="changes.html"/>\n'
        f"{entries}</feed>\n"
    )


def _profile(model: ReportModel) -> str:
    return f" in profile {_text(model.run.profile, 60)}" if model.run.profile else ""


def _turns(result: Result, model: ReportModel) -> Iterator[tuple[str, float, Turn]]:
    """(run, time, turn) wherever the answer turned, or was lost."""
    facts = result.facts
    steps = [(past.run_id, past.time, past.status) for past in facts.history]
    steps.append((model.run.run_id, model.run.started or model.generated, facts.status))
    answered, fresh = None, False
    for run_id, when, status in steps:
        if status in RAN_BEFORE:
            bad, was_bad = status is not RAN_BEFORE[0], answered is not RAN_BEFORE[0]
            if answered is not None and bad != was_bad:
                yield run_id, when, Turn.BROKEN if bad else Turn.FIXED
            answered, fresh = status, True
        elif fresh:
            yield run_id, when, Turn.LOST
            fresh = False


def _entry(run_id: str, when: float, events: list[_Event]) -> str:
    counts = {turn: sum(event.turn is turn for event in events) for turn in Turn}
    title = ", ".join(f"{count} {turn.value}" for turn, count in counts.items() if count)
    order = {turn: place for place, turn in enumerate(Turn)}
    lines = [
        f"{event.turn.value}: {event.check} of {event.cell}" + (f": {event.reason}" if event.reason else "")
        for event in sorted(events, key=lambda event: order[event.turn])
    ]
    more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    body = "\n".join(_text(line, 400) for line in lines[:MAX_LINES] + more)
    return (
        f"<entry>\n<title>{_text(title, 200)} (run {_text(run_id, 60) or 'unknown'})</title>\n"
        f"<id>{_identity('run', run_id)}</id>\n<updated>{iso(when) or EPOCH}</updated>\n"
        f'<link rel="alternate" href="changes.html"/>\n<content type="text">{body}</content>\n</entry>\n'
    )


def _identity(kind: str, name: str) -> str:
    text = f"npu-matrix:{kind}:{name}".encode("utf-8", "backslashreplace").decode()
    return uuid.uuid5(uuid.NAMESPACE_URL, text).urn


def _text(text: str, limit: int) -> str:
    return str(escape(_NO_XML.sub("\ufffd", visible(clip(text, limit)))))
