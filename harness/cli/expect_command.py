"""`npu-matrix expect`: the list of expected failures, the states of their issues, and drafts of reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_INCOMPLETE, EXIT_OK, EXIT_UNEXPECTED
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.verdict.expectations import ExpectationSurvey


@click.group(
    "expect",
    epilog="\b\nExamples:\n  npu-matrix expect list\n  npu-matrix expect update --dry-run\n"
    "  npu-matrix expect update --owner me --until 2027-03-31 --reason 'moved upstream' --source URL\n"
    "  npu-matrix expect tests --dry-run\n  npu-matrix expect refresh\n"
    "  npu-matrix expect draft verl-0-9-1-sim loss --language zh",
)
def command() -> None:
    """List and update the expected failures in matrix.yaml."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.expectations).")
@click.pass_obj
def list_command(settings: Settings, as_json: bool) -> int:
    """List every expectation with its cells. Exits with 1 when one has expired or matches no cell."""
    from harness.plan.tasks.check_registry import all_checks
    from harness.serialisation import dumps
    from harness.verdict.expectations import ExpectationList, survey_expectations
    from harness.workspace.planning.open_plan import open_matrix

    found = survey_expectations(open_matrix(settings), {check.name for check in all_checks()}, settings.root)
    if as_json:
        click.echo(dumps(ExpectationList(expectations=found), indent=2))
    else:
        for line in _lines(found):
            click.echo(line)
    return EXIT_UNEXPECTED if any(one.fault for one in found) else EXIT_OK


def _lines(found: Sequence[ExpectationSurvey]) -> list[str]:
    lines = []
    for one in found:
        lines.append(f"{one.id}: {one.check} {one.state}, until {one.until}, owner {one.owner}")
        lines += [f"  at: {one.where}", f"  why: {one.reason}", f"  see: {one.source}"]
        lines += [f"  cell: {cell}" for cell in one.cells]
        if one.fault:
            lines.append(
                f"  error: it {one.fault}" if not one.fault.startswith("expired") else f"  error: {one.fault}"
            )
    faults = sum(bool(one.fault) for one in found)
    return [*lines, f"{len(found)} expectations, {faults} with problems"]


@command.command("refresh")
@click.pass_obj
def refresh(settings: Settings, /) -> int:
    """Ask GitHub for the states of the upstream issues.

    These are the issues that expectations name as their source. The states are written to
    upstream-issues.json next to matrix.yaml, with their date; reports show them as last seen and ask nobody.
    GITHUB_API_URL names another server, GITHUB_TOKEN a token for it. Exits with 4 if an issue could not be
    asked for; its last state is kept.
    """
    from harness.sources.issue_states import (
        issues_in,
        read_issue_states,
        refresh_issue_states,
        write_issue_states,
    )
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.results.run_report import issue_states_file

    file = issue_states_file(settings)
    sources = [expectation.source for expectation in open_matrix(settings).expectations.values()]
    urls = dict.fromkeys(url for source in sources for url in issues_in(source))
    known = read_issue_states(file)
    states, failed = refresh_issue_states(urls, known)
    if any(one.checked for one in states.values()):
        write_issue_states(file, states.values())
    for url, one in states.items():
        before = known[url].state if url in known else ""
        change = f" (was {before})" if before and before != one.state else ""
        problem = f": not asked: {failed[url]}" if url in failed else ""
        click.echo(f"{url}: {one.state or 'unknown'}{change}{problem}")
    click.echo(f"{len(states)} issues, {len(failed)} without an answer")
    return EXIT_INCOMPLETE if failed else EXIT_OK


@command.command("draft")
@click.argument("cell")
@click.argument("check")
@click.option("--run", "run_id", help="Use the outcome of this run. Default: the latest run.")
@click.option("--language", type=click.Choice(["en", "zh"]), default="en", show_default=True)
@click.option("--bisected", default="", help="The first bad commit, if it is known.")
@click.pass_obj
def draft(
    settings: Settings, /, cell: str, check: str, run_id: str | None, language: str, bisected: str
) -> None:
    """Print the draft of a report to an upstream project.

    It is about a check of a cell, and has the versions, the commands that reproduce the failure, the log, and
    what changed before it. Secrets are masked. Nothing is sent: read the draft, then paste it into the form
    of the project.
    """
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.results.report_draft import report_draft
    from harness.workspace.results.stored_run import open_run

    with open_ledger(settings) as ledger:
        stored = open_run(settings, ledger, run_id)
        text = report_draft(settings, ledger, stored, cell, check, language=language, bisected=bisected)
    click.echo(text, nl=False)


@command.command("tests")
@click.option("--run", "run_id", help="Use the outcomes of this run. Default: the latest run.")
@click.option("--suite", "names", multiple=True, help="Only this suite; may be repeated.")
@click.option("--owner", help="For new entries: who is responsible.")
@click.option("--until", help="For new entries: the date on which the whole file expires.")
@click.option("--source", help="For new entries: a link to where the failures are tracked.")
@click.option("--reason", default="", help="For new entries: why they fail. Default: what each says itself.")
@click.option("--dry-run", is_flag=True, help="Print the edit and write nothing.")
@click.pass_obj
def tests(
    settings: Settings,
    /,
    run_id: str | None,
    names: Sequence[str],
    owner: str | None,
    until: str | None,
    source: str | None,
    reason: str,
    dry_run: bool,
) -> int:
    """Update the known failures of upstreams' test suites.

    They are in the files known_failures/SUITE/*.yaml next to matrix.yaml, with one line for each test. Tests
    that do not fail any more are removed. New failures are added only with --owner, --until and --source.
    Read what is added: a known failure is a failure that nobody looks at until it changes.
    """
    import datetime as dt

    from harness.verdict.expectations import unified_difference
    from harness.verdict.suite_known_failures import KnownFailuresDetails
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.results.stored_run import open_run
    from harness.workspace.results.suite_results import plan_known_failures, suites_of_run, write_edits

    details = None
    if owner or until or source:
        if not (owner and until and source):
            raise click.UsageError("to add new failures, give --owner, --until and --source")
        try:
            end = dt.date.fromisoformat(until)
        except ValueError:
            raise click.BadParameter(
                f"{until!r} is no date such as 2027-01-31", param_hint="--until"
            ) from None
        details = KnownFailuresDetails(owner=owner, until=end, source=source, reason=reason)
    with open_ledger(settings) as ledger:
        stored = open_run(settings, ledger, run_id)
    suites = [one for one in suites_of_run(stored) if not names or one.suite.name in names]
    edits = plan_known_failures(settings, suites, details, dt.datetime.now(tz=dt.UTC).date())
    for edit in edits:
        shown = edit.path.relative_to(settings.path("matrix").parent).as_posix()
        click.echo(unified_difference(edit.before, edit.after, shown), nl=False)
    if not dry_run:
        write_edits(edits)
    click.echo(f"{len(suites)} suites of run {stored.run.run_id}: {len(edits)} files changed")
    return EXIT_OK


@command.command("update")
@click.option("--run", "run_id", help="Use the verdicts of this run. Default: the latest run.")
@click.option("--owner", help="For new entries: who is responsible.")
@click.option("--until", help="For new entries: when they expire, a date or 'axis specifier'.")
@click.option("--reason", help="For new entries: why the check fails.")
@click.option("--source", help="For new entries: a link to where the failure is tracked.")
@click.option("--dry-run", is_flag=True, help="Print the edit and write nothing.")
@click.pass_obj
def update(settings: Settings, /, run_id: str | None, dry_run: bool, **details: str | None) -> int:
    """Remove expectations that pass now, and add new failures.

    New failures are added only with --owner, --until, --reason and --source. The edit is printed and written
    to matrix.yaml; the rest of the file is unchanged. Checks without an outcome are never added.
    """
    from harness.matrix.editing.yaml_edit import read_matrix_text, write_matrix_text
    from harness.verdict.expectations import (
        ExpectationDetails,
        ExpectationsEdit,
        apply_edit,
        plan_expectations_edit,
        unified_difference,
    )
    from harness.verdict.verdict import Standing
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.results.stored_run import open_run

    given = {name: value for name, value in details.items() if value}
    if given and len(given) < len(details):
        missing = ", ".join(f"--{name}" for name in details if name not in given)
        raise click.UsageError(f"to add new failures, also give {missing}")
    owner = (
        ExpectationDetails(
            owner=given["owner"], until=given["until"], reason=given["reason"], source=given["source"]
        )
        if given
        else None
    )
    with open_ledger(settings) as ledger:
        stored = open_run(settings, ledger, run_id)
    cells = {cell.id: cell for cell in stored.matrix.all_cells}
    edit = plan_expectations_edit(stored.matrix, cells, stored.verdicts, owner)
    skipped = (
        sum(verdict.standing is Standing.UNEXPECTED for verdict in stored.verdicts) if owner is None else 0
    )
    if edit == ExpectationsEdit():
        click.echo(f"{settings['matrix']}: nothing to change after run {stored.run.run_id}")
        return _report_skipped(skipped)
    file = settings.path("matrix")
    before, line_end = read_matrix_text(file)
    after = apply_edit(before, edit, file)
    click.echo(unified_difference(before, after, settings["matrix"]), nl=False)
    if not dry_run:
        write_matrix_text(file, after, line_end)
    return _report_skipped(skipped)


def _report_skipped(count: int) -> int:
    if count:
        click.echo(
            f"{count} unexpected failures were not added; to add them as expected failures, give "
            "--owner, --until, --reason and --source"
        )
    return EXIT_OK
