"""The page about time: what broke and why, what was fixed, and when hardware last ran what."""

from __future__ import annotations

from harness.report.model.commit_notes import CommitRange
from harness.report.model.report_model import CLOCK_SLACK_S, ReportModel
from harness.report.model.turn_groups import (
    NO_CHANGE,
    WEEK_S,
    TurnGroup,
    WeekSummary,
    hardware_lines,
    summarise_since,
    turn_groups,
)
from harness.report.model.turning_points import RunOfTurn, TurnCause
from harness.report.model.visible_text import clip, counted, moment, visible
from harness.report.pages.page_templates import PageWriter, anchor_of, environment

MAX_GROUPS = 200
MAX_LINES = 400
MAX_CELLS = 6
DAY_S = 86400.0


def time_page(model: ReportModel, writer: PageWriter) -> str:
    """The page as HTML."""
    groups = turn_groups(model)
    hardware = hardware_lines(model)
    changed = [group for group in groups if group.turn.cause not in NO_CHANGE]
    template = environment(writer, up="").get_template("time.html")
    return template.render(
        model=model,
        headline=week_words(summarise_since(groups, model.inputs.generated - WEEK_S)),
        sections=[
            ("broke", "What broke, and why", [one for one in changed if not one.turn.better]),
            ("fixed", "What was fixed", [one for one in changed if one.turn.better]),
            (
                "chance",
                "Verdicts that differ with the same inputs",
                [one for one in groups if one.turn.cause in NO_CHANGE],
            ),
        ],
        why=why_words,
        who=commit_lines,
        run=run_words,
        href=lambda row, check: f"cells/{row.slug}.html#{anchor_of(check)}",
        age=lambda when: age_words(model.inputs.generated, when),
        ahead=lambda when: when > model.inputs.generated + CLOCK_SLACK_S,
        hardware=hardware[:MAX_LINES],
        more_hardware=max(0, len(hardware) - MAX_LINES),
        never=model.planned - len(hardware),
        most=MAX_GROUPS,
        most_cells=MAX_CELLS,
    )


def week_words(week: WeekSummary) -> str:
    """The summary of the last week, for the headline."""
    if not (week.broke or week.fixed or week.by_chance):
        return "In the last 7 days no verdict changed between pass and failure."
    chance = f"; {week.by_chance} changed with the same inputs" if week.by_chance else ""
    broke = counted(week.broke, "check of a cell", "checks of cells")
    fixed = counted(week.fixed, "was", "were")
    return f"In the last 7 days {broke} broke and {fixed} fixed{chance}."


def why_words(group: TurnGroup) -> str:
    """Why the verdict changed, in a sentence."""
    turn = group.turn
    times = f"passed {turn.attempts.passed} and failed {counted(turn.attempts.failed, 'time')}"
    if turn.cause is TurnCause.FLAKY:
        return f"Not a change: with the same inputs it {times}, so it is flaky."
    if turn.cause is TurnCause.MACHINE:
        places = (_names(turn.attempts.passed_on), _names(turn.attempts.failed_on))
        return f"The machine: the same inputs pass on {places[0]} and fail on {places[1]}."
    if turn.cause is TurnCause.UNKNOWN:
        return "Not known: the inputs of one of the two runs are not stored."
    return "An input changed:"


def _names(machines: tuple[str, ...]) -> str:
    return visible(clip(", ".join(machines), 120))


def commit_lines(commits: CommitRange) -> list[str]:
    """The commits that can have changed the input, one line each, and how many are left out."""
    where = f"{commits.upstream} " if commits.upstream else ""
    lines = [
        f"{where}{one.id[:12]} {one.author}, {one.date[:10]}: {one.subject}" for one in commits.commits[:3]
    ]
    more = commits.more + max(0, len(commits.commits) - 3)
    lines += [f"and {counted(more, 'more commit')}"] if more else []
    return lines or ([commits.missing] if commits.missing else [])


def run_words(run: RunOfTurn) -> str:
    """A run with its commit and machine."""
    commit = f", commit {run.revision[:9]}{'+' if run.revision.endswith('+') else ''}" if run.revision else ""
    machine = f", on {run.machine}" if run.machine else ""
    return f"{run.run_id or 'unknown'} ({moment(run.time)}{commit}{machine})"


def age_words(now: float, when: float) -> str:
    """How long ago something was measured: `today`, `3 days ago`; "" if the time is not known."""
    days = int((now - when) / DAY_S)
    if when <= 0 or now + CLOCK_SLACK_S < when:
        return ""
    return "today" if days == 0 else f"{days} day{'s' if days > 1 else ''} ago"
