"""`npu-matrix gate`: what a change newly breaks, against its base."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import EXIT_INTERRUPTED, InputError, Location
from harness.settings import Settings
from harness.workspace.elsewhere import joined_plans, with_answers_from_elsewhere
from harness.workspace.open_ledger import ledger_file, open_ledger
from harness.workspace.open_plan import Bench, expectations, open_bench
from harness.workspace.reporting import OPTIONS

if TYPE_CHECKING:
    from harness.devices.host.inventory import HostReport
    from harness.ledger.plan_record import PlanRecord
    from harness.ledger.run_record import Run
    from harness.ledger.store import Ledger
    from harness.outcome import Outcome
    from harness.plan.tasks.task import Plan
    from harness.verdict.gate.gate import CellCheck, GateInputs, GateReport, Side


#: Logs that are looked into; more failures than that are not told apart by reading on.
MOST_LOGS = 50


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
    from harness.workspace.reruns import run_again

    own = open_bench(settings, only=options["only"], checks=options["checks"])
    with open_ledger(settings) as ledger:
        for shard in options["shards"]:
            ledger.merge(ledger_file(Path(shard)))
        bench, hosts = with_answers_from_elsewhere(own, ledger, options["only"], options["checks"])
        report = judge_gate(inputs := _inputs(bench, hosts, ledger, base, options))
        for number in range(1, options["reruns"] + 1):
            # What another host answered, only that host can run again.
            keys = [key for key in undecided(report, inputs.flakes) if key in own.plan.tasks]
            if not keys:
                break
            click.echo(f"attempt {number} of {options['reruns']} more on {len(keys)} failed tasks", err=True)
            if run_again(own, ledger, keys):
                return EXIT_INTERRUPTED
            report = judge_gate(inputs := _inputs(bench, hosts, ledger, base, options))
    _tell(report, options)
    return report.exit_code


def _inputs(
    bench: Bench, hosts: Mapping[str, HostReport], ledger: Ledger, base: str, options: Mapping[str, Any]
) -> GateInputs:
    from harness.verdict.gate.gate import GateInputs
    from harness.verdict.ledger_outcomes import flake_decisions, read_answers, sides

    answers = read_answers(bench.plan, ledger)
    expected = expectations(bench.matrix, bench.settings["profile"])
    base_name, base_plan, base_sides = _base(bench, hosts, ledger, base)
    changes, places = _blame(bench, base_plan)
    selected = {cell.id for cell in bench.plan.cells}
    checks = {entry.check for entry in bench.plan.entries}
    whole = len(selected) == len(bench.matrix.cells(bench.settings["profile"]).cells)
    head = sides(bench.plan, answers.outcomes, expected)
    return GateInputs(
        base_name=base_name,
        head=head,
        logs=_logs(bench, head, answers.outcomes, ledger),
        base=base_sides,
        base_keys={
            name: entry.key
            for name, entry in base_plan.entries_by_name.items()
            # A check that is gone from the code is missed unless others were asked for by name.
            if (entry.check in checks or not options["checks"]) and (whole or entry.cell_id in selected)
        },
        flakes=flake_decisions(bench.plan, answers, ledger, now=time.time()),
        changes=changes,
        places=places,
        problems=_idle_expectations(bench),
        notices=bench.plan.notices,
        strict_coverage=options["strict_coverage"],
        impacted_only=options["impacted"],
        profile=bench.plan.profile,
        options=bench.settings.flags(*OPTIONS),
    )


def _logs(
    bench: Bench, head: Mapping[CellCheck, Side], outcomes: Mapping[str, Outcome], ledger: Ledger
) -> dict[CellCheck, tuple[Sequence[str], Sequence[str]]]:
    """What the logs of failed tasks say, as far as they are on this machine."""
    from harness.errors import InfrastructureError
    from harness.verdict.triage.catalogue import LOCAL_NAME, catalogue_with
    from harness.verdict.triage.diagnosis import triage_file
    from harness.verdict.triage.diagnosis_text import in_short

    found: dict[CellCheck, tuple[Sequence[str], Sequence[str]]] = {}
    for name, side in head.items():
        outcome = outcomes.get(side.key)
        failed = side.verdict.status.value in {"fail", "error"}
        if not failed or outcome is None or outcome.log is None or len(found) >= MOST_LOGS:
            continue
        with contextlib.suppress(InfrastructureError, InputError):
            log = ledger.artifacts.get(outcome.log)
            found[name] = in_short(triage_file(log, catalogue_with(bench.settings.root / LOCAL_NAME)))
    return found


def _base(
    bench: Bench, hosts: Mapping[str, HostReport], ledger: Ledger, base: str
) -> tuple[str, PlanRecord, dict[CellCheck, Side]]:
    """Its name, its plan, and what is known of its entries."""
    from harness.plan.change.revision import resolve_revision
    from harness.workspace.changed_since import plan_of_revision

    settings = bench.settings
    path = Path(base)
    # A folder may be called as a branch is: without a ledger in it, the branch is meant.
    if _has_ledger(path):
        return _base_of_ledger(base, ledger_file(path))
    run = ledger.run(base)
    if run is not None:
        plan = _readable(run)
        return f"run {base}", plan, _answered(plan, ledger, run.run_id)
    try:
        revision = resolve_revision(settings.root, base)
    except InputError:
        if path.is_dir():
            ledger_file(path)
        raise
    here = plan_of_revision(bench, revision, (), ())
    socs = {host.soc: host for host in hosts.values()}
    plans = {soc: plan_of_revision(replace(bench, host=host), revision, (), ()) for soc, host in socs.items()}
    plan = joined_plans(here, {cell: plans[host.soc] for cell, host in hosts.items()})
    return str(revision), plan, _answered(plan, ledger, None)


def _has_ledger(path: Path) -> bool:
    from harness.ledger.store import FILE_NAME

    return (path / FILE_NAME).is_file() or (path.is_file() and path.suffix == ".sqlite3")


def _base_of_ledger(base: str, file: Path) -> tuple[str, PlanRecord, dict[CellCheck, Side]]:
    from harness.ledger.store import Ledger

    _check_ledger(file)
    with Ledger.open(file.parent) as other:
        run = other.latest_run()
        if run is None:
            raise InputError(
                "no run is in this ledger", where=Location(file), fix="name one that holds a run"
            )
        plan = _readable(run)
        return f"{base} (run {run.run_id})", plan, _answered(plan, other, run.run_id)


def _readable(run: Run) -> PlanRecord:
    """The plan of the run; InputError when it has none to hold anything against."""
    _stored_plan(run.plan)
    return run.plan


def _check_ledger(file: Path) -> None:
    """Opening a ledger repairs a damaged one; somebody else's is only read."""
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("SELECT count(*) FROM outcomes").fetchone()
    except sqlite3.DatabaseError as error:
        raise InputError("this is no ledger", where=Location(file), why=str(error)) from error


def _answered(plan: PlanRecord, ledger: Ledger, run_id: str | None) -> dict[CellCheck, Side]:
    """Base entries that have an answer, judged by the checks of today and with no expectations."""
    from harness.outcome import Status
    from harness.verdict.ledger_outcomes import read_answers, sides

    if not plan.entries:
        return {}
    stored = _stored_plan(plan)
    outcomes = dict(read_answers(stored, ledger).outcomes)
    if run_id is not None:
        outcomes |= {one.key: one for one in reversed(ledger.history(run_id=run_id, limit=100_000))}
    found = sides(stored, outcomes, lambda _cell, _check: None)
    unanswered = {Status.ERROR, Status.STALE}
    return {name: side for name, side in found.items() if side.verdict.status not in unanswered}


def _stored_plan(plan: PlanRecord) -> Plan:
    from harness.plan.tasks.check_registry import all_checks
    from harness.plan.tasks.task import plan_of_record

    return plan_of_record(plan, {check.name: check for check in all_checks()})


def _blame(bench: Bench, base: PlanRecord) -> tuple[dict[Any, Any], dict[Any, Any]]:
    from harness.plan.keys.key import key_changes
    from harness.verdict.gate.blame import place_to_blame

    earlier = base.tasks_by_name
    matrix = os.path.relpath(bench.settings.path("matrix"), bench.settings.root)
    cells = {cell.id: cell for cell in bench.plan.cells}
    changes: dict[CellCheck, Sequence[str]] = {}
    places: dict[CellCheck, Any] = {}
    for name, task in bench.plan.record().tasks_by_name.items():
        before = earlier.get(name)
        found = key_changes(before, task) if before and before.key != task.key else ()
        changes[name] = [str(change) for change in found]
        places[name] = place_to_blame(found, task, cells[name[0]], matrix)
    return changes, places


def _idle_expectations(bench: Bench) -> tuple[str, ...]:
    from harness.verdict.expectations import survey

    known = {check.name for check in _checks()}
    return tuple(
        f"{one.where}: the expectation {one.id!r} {one.fault}"
        for one in survey(bench.matrix, known, bench.settings.root)
        if one.fault
    )


def _checks() -> Sequence[Any]:
    from harness.plan.tasks.check_registry import all_checks

    return all_checks()


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
