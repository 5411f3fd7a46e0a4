"""`npu-matrix gate`: what a change newly breaks, against its base."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import EXIT_INTERRUPTED, InputError, Location
from harness.settings import Settings
from harness.workspace.open_ledger import ledger_file, open_ledger
from harness.workspace.planning.open_plan import open_plan
from harness.workspace.planning.other_host_plans import add_outcomes_of_other_hosts
from harness.workspace.results.gate_comparison import gate_inputs

if TYPE_CHECKING:
    from harness.verdict.gate.gate import GateReport


@click.command(
    "gate",
    epilog="\b\nExamples:\n  npu-matrix run && npu-matrix gate --base origin/main\n"
    "  npu-matrix gate --base 20261120T080000-1a2b3c4d --json\n"
    "  npu-matrix gate --base origin/main --reruns 6\n"
    "  npu-matrix gate --base main --merge shard-1/ --merge shard-2/ --github\n"
    "  npu-matrix gate --base previous/ledger.sqlite3 --comment comment.md --sarif gate.sarif",
)
@click.option(
    "--base", required=True, help="A git revision, a run of this ledger, or another ledger (file or folder)."
)
@click.option("--only", multiple=True, metavar="GLOB", help="Cells to judge; a,b or repeated.")
@click.option("--check", "checks", multiple=True, help="Checks to judge, with what they need.")
@click.option(
    "--merge", "shards", multiple=True, metavar="LEDGER", help="Take over a shard's outcomes first."
)
@click.option(
    "--reruns",
    type=click.IntRange(0, 20),
    default=0,
    metavar="N",
    help="Run new failures up to N times more, on the same keys: that decides whether they are chance.",
)
@click.option("--strict-coverage", is_flag=True, help="What this host cannot run is red too.")
@click.option("--impacted", is_flag=True, help="Ask no answer of what has the same key on the base.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.gate).")
@click.option("--github", is_flag=True, help="Also print annotations and write the job summary.")
@click.option("--comment", type=click.Path(dir_okay=False), help="Write the body of a PR comment here.")
@click.option("--sarif", type=click.Path(dir_okay=False), help="Write SARIF here.")
@click.pass_obj
def command(settings: Settings, /, base: str, **options: Any) -> int:
    """Hold what the ledger says of this checkout's plan against its base, and exit with a documented code.

    New failures block; known ones (on the list, alike on the base, or of a key this change does not touch) do
    not. A failure on the list that passes blocks until it is taken off. What was planned and has no answer is
    red. Nothing is executed: run first, on as many machines as you like, and merge their ledgers. Only with
    --reruns, new failures are run again here; none of them is excused without a history of chance failures.

    For a revision its own plan is computed by its own code; name only revisions you would run.
    """
    from harness.verdict.gate.gate import judge_gate, undecided
    from harness.workspace.execution.rerun_tasks import rerun_tasks

    own = open_plan(settings, only=options["only"], checks=options["checks"])
    with open_ledger(settings) as ledger:
        for shard in options["shards"]:
            ledger.merge(ledger_file(Path(shard)))
        context, hosts = add_outcomes_of_other_hosts(own, ledger, options["only"], options["checks"])
        report = judge_gate(inputs := gate_inputs(context, hosts, ledger, base, options))
        for number in range(1, options["reruns"] + 1):
            # What another host answered, only that host can run again.
            keys = [key for key in undecided(report, inputs.flakes) if key in own.plan.tasks]
            if not keys:
                break
            click.echo(f"attempt {number} of {options['reruns']} more on {len(keys)} failed tasks", err=True)
            if rerun_tasks(own, ledger, keys):
                return EXIT_INTERRUPTED
            report = judge_gate(inputs := gate_inputs(context, hosts, ledger, base, options))
    _tell(report, options)
    return report.exit_code


def _tell(report: GateReport, options: Mapping[str, Any]) -> None:
    from harness.verdict.gate.gate_format import FORMATS

    click.echo(FORMATS["json" if options["as_json"] else "text"](report), nl=False)
    if options["github"]:
        if not options["as_json"]:
            click.echo(FORMATS["github"](report), nl=False)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            _write(Path(summary), FORMATS["markdown"](report), append=True)
    for name in ("comment", "sarif"):
        if options[name]:
            _write(Path(options[name]), FORMATS[name](report))


def _write(file: Path, text: str, *, append: bool = False) -> None:
    try:
        with file.open("a" if append else "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise InputError(
            "cannot write here", where=Location(file), why=error.strerror or str(error)
        ) from error
