"""`npu-matrix suites`: results of upstreams' test suites as a table, JUnit, and for PyTorch's CI relay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.verdict.suite_known_failures import KnownFailures
    from harness.workspace.results.suite_results import SuiteOfCell

#: How many kinds of failures the table lists, unless more are asked for.
MOST_FAILURES = 30


@click.group(
    "suites",
    epilog="\b\nExamples:\n  npu-matrix suites table\n  npu-matrix suites junit upstream-tests.xml\n"
    "  npu-matrix suites relay --details-url URL > result.json",
)
def command() -> None:
    """Show and export the results of upstreams' own test suites.

    `npu-matrix --profile upstream run` runs the suites.
    """


@command.command("table")
@click.option("--run", "run_id", help="Use the outcomes of this run. Default: the latest run.")
@click.option(
    "--failures",
    "most",
    type=click.IntRange(min=0),
    default=MOST_FAILURES,
    show_default=True,
    help="Failures to list.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.suites).")
@click.pass_obj
def table(settings: Settings, /, run_id: str | None, most: int, as_json: bool) -> int:
    """Print a table of all suites, and their failures by message.

    The most frequent failures are first.

    Exits with 1 if a test failed that is not known to fail, or passed although it is; with 3 if the run has
    no outcome of a suite.
    """
    from harness.serialisation import dumps
    from harness.workspace.results.suite_exports import SuitesReport, counts, failure_groups, table_lines

    run, suites, files = _opened(settings, run_id)
    found = tuple(counts(one, files) for one in suites)
    groups = failure_groups(suites)
    if as_json:
        click.echo(dumps(SuitesReport(run=run, suites=found, failures=tuple(groups)), indent=2))
    else:
        for line in table_lines(found, groups, most):
            click.echo(line)
    if not found:
        return EXIT_NOTHING_SELECTED
    return EXIT_UNEXPECTED if any(one.new or one.repaired for one in found) else EXIT_OK


@command.command("junit")
@click.argument("target", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--run", "run_id", help="Use the outcomes of this run. Default: the latest run.")
@click.pass_obj
def junit(settings: Settings, /, target: Path, run_id: str | None) -> int:
    """Write FILE in JUnit's format, with one case for each test.

    Known failures are skipped cases with their reason; a known failure that passes is a failed case.
    """
    from harness.workspace.results.suite_exports import suites_junit

    _, suites, files = _opened(settings, run_id)
    target.write_bytes(suites_junit(suites, files))
    click.echo(f"{target}: {sum(len(one.cases) for one in suites)} tests of {len(suites)} suites")
    return EXIT_OK if suites else EXIT_NOTHING_SELECTED


@command.command("relay")
@click.option("--details-url", required=True, help="The page with the details: that of the CI job.")
@click.option("--run", "run_id", help="Use the outcomes of this run. Default: the latest run.")
@click.pass_obj
def relay(settings: Settings, /, details_url: str, run_id: str | None) -> int:
    """Print JSON for PyTorch's cross-repository CI relay.

    The format is that of RFC-0050. Nothing is sent. The conclusion is `success` only if every suite
    ran and nothing was unexpected.
    """
    from harness.serialisation import dumps
    from harness.workspace.results.suite_exports import counts, relay_report

    _, suites, files = _opened(settings, run_id)
    report = relay_report([counts(one, files) for one in suites], details_url)
    click.echo(dumps(report, indent=2))
    return EXIT_OK if suites else EXIT_NOTHING_SELECTED


def _opened(
    settings: Settings, run_id: str | None
) -> tuple[str, Sequence[SuiteOfCell], Sequence[KnownFailures]]:
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.planning.open_plan import known_failures_of
    from harness.workspace.results.stored_run import open_run
    from harness.workspace.results.suite_results import suites_of_run

    with open_ledger(settings) as ledger:
        stored = open_run(settings, ledger, run_id)
    return stored.run.run_id, tuple(suites_of_run(stored)), known_failures_of(stored.matrix)
