"""A summary in Markdown of less than 4 KB, for a pull request or a message; it says what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report.formats.markdown import unanswered_line
from harness.report.model.failure_owners import NOBODY, OwnedFailure
from harness.report.model.markdown_text import escape
from harness.report.model.marks import EVIDENCE, STYLES
from harness.report.model.report_model import Attention, ReportModel
from harness.report.model.turn_groups import (
    NO_CHANGE,
    WEEK_S,
    HardwareLine,
    TurnGroup,
    hardware_lines,
    turn_groups,
)
from harness.report.model.visible_text import clip, moment

#: Bytes of the whole text in UTF-8.
LIMIT = 4000
#: Bytes that are kept for the sentence on what is left out.
RESERVE = 400
MAX_TEXT = 160


def weekly_summary(model: ReportModel, limit: int = LIMIT) -> str:
    """The summary, of at most `limit` bytes: what broke, what needs somebody, who owns what, and hardware."""
    lines = [f"### {_text(model.headline, 300)}", "", _text(model.proof, 300)]
    left_out: list[str] = []
    room = limit - RESERVE - _size(lines)
    for title, count, items in _sections(model):
        if not count:
            continue
        heading = ["", f"**{title}** ({count})", ""]
        taken: list[str] = []
        used = _size(heading)
        # Only what fits is written out: a large matrix has thousands of entries.
        for item in items:
            used += _size([item])
            if used > room:
                break
            taken.append(item)
        if taken:
            lines += [*heading, *taken]
            room -= _size([*heading, *taken])
        if len(taken) < count:
            left_out.append(f"{count - len(taken)} of {count} under {title!r}")
    if left_out:
        lines += ["", _cut(f"Left out to stay short: {'; '.join(left_out)}. The report has all of it.")]
    return "\n".join(lines) + "\n"


def _sections(model: ReportModel) -> Iterator[tuple[str, int, Iterator[str]]]:
    """Title, number of entries, and the entries, the most urgent sections first."""
    since = model.inputs.generated - WEEK_S
    recent = [group for group in turn_groups(model) if group.turn.after.time >= since]
    changed = [group for group in recent if group.turn.cause not in NO_CHANGE]
    broke = [one for one in changed if not one.turn.better]
    fixed = [one for one in changed if one.turn.better]
    same = [one for one in recent if one.turn.cause in NO_CHANGE]
    unowned = model.owners.get(NOBODY, ())
    hardware = hardware_lines(model)
    attention, unanswered = model.attention, model.unanswered
    yield "Broke in the last 7 days", len(broke), map(_turned, broke)
    yield "Needs attention", len(attention), (_attention(model, item) for item in attention)
    yield "Fixed in the last 7 days", len(fixed), map(_turned, fixed)
    yield "Failures without an owner", len(unowned), map(_unowned, unowned)
    yield "Without a verdict", len(unanswered), (f"- {unanswered_line(one, MAX_TEXT)}" for one in unanswered)
    yield "Last runs on hardware", len(hardware), map(_hardware, hardware)
    yield "Different verdicts with the same inputs", len(same), map(_turned, same)


def _unowned(failure: OwnedFailure) -> str:
    return f"- {_text(failure.check, 60)}: {_text(failure.reason)}"


def _attention(model: ReportModel, item: Attention) -> str:
    row = model.row(item.cells[0])
    title = model.names[row.cell.id] if row else item.cells[0]
    more = f" and {len(item.cells) - 1} more" if len(item.cells) > 1 else ""
    evidence = f" ({EVIDENCE[item.evidence].label})" if item.evidence else ""
    return (
        f"- {STYLES[item.mark].label}: {_text(item.check, 60)}{evidence} of {_text(title, 80)}{more}: "
        f"{_text(item.reason)}"
    )


def _hardware(line: HardwareLine) -> str:
    title = line.row.cell.name
    state = (", stale" if line.run.stale else "") + (", claimed" if line.run.claimed else "")
    return f"- {moment(line.run.time)}: {_text(line.result.check, 60)} of {_text(title, 80)}{state}"


def _turned(group: TurnGroup) -> str:
    turn = group.turn
    more = f" and {len(group.rows) - 1} more" if len(group.rows) > 1 else ""
    cell = group.rows[0].cell
    causes = "; ".join(turn.difference.changes[:2]) or turn.cause.value
    return (
        f"- {moment(turn.after.time)}: {_text(turn.check, 60)} of {_text(cell.name, 80)}{more}: "
        f"{_text(causes)}"
    )


def _text(text: str, limit: int = MAX_TEXT) -> str:
    return escape(clip(" ".join(text.split()), limit))


def _cut(text: str) -> str:
    """At most the bytes that are kept for it."""
    return text.encode()[: RESERVE - 8].decode("utf-8", "ignore")


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode("utf-8", "backslashreplace")) + 1 for line in lines)
