"""Writes reports and prints what a run amounts to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness import __version__
from harness.outcome import Status
from harness.settings import Settings
from harness.workspace.open_plan import relative

if TYPE_CHECKING:
    from harness.ledger.store import Ledger
    from harness.matrix.version_matrix import Matrix
    from harness.plan.tasks.task import Plan
    from harness.report.model.report_inputs import PublishedInput, ReportInputs
    from harness.run.scheduling.run_result import RunResult
    from harness.verdict.run_summary import Summary
    from harness.verdict.verdict import Verdict


#: The settings another shell has to be told to see the same ledger; the profile is the plan's.
OPTIONS = ("matrix", "state", "cache", "engine", "base_image")


def gather_run(
    settings: Settings,
    matrix: Matrix,
    plan: Plan,
    verdicts: Sequence[Verdict],
    ledger: Ledger,
    run_id: str,
    executed: Collection[str],
    code: int,
    *,
    since: str | None = None,
    survival: Path | None = None,
    patches: tuple[Path, ...] = (),
) -> ReportInputs:
    """What the report of a run is made of; `since`: the run to hold it against, by default the one before."""
    from harness.report.model.earlier_runs import revision_of
    from harness.report.model.gather import Gathered, gather
    from harness.report.model.patch_facts import read_patch_facts
    from harness.report.model.report_inputs import ExcludedInput, RunFacts
    from harness.report.model.survival_facts import read_survival

    run = ledger.run(run_id)
    now = time.time()
    started = run.started if run else now
    facts = RunFacts(
        run_id=run_id,
        command=" ".join(("npu-matrix", *(run.argv if run else ()))),
        profile=plan.profile,
        revision=revision_of(run) if run else "",
        version=__version__,
        started=started,
        seconds=(run.finished if run and run.finished else now) - started,
        executed=len(executed),
        reused=len(plan.tasks) - len(executed),
        exit_code=code,
        options=settings.flags(*OPTIONS),
    )
    known = plan.profile in matrix.profiles
    excluded = tuple(
        ExcludedInput(
            axes=out.axes,
            reason=f"{out.reason} ({out.constraint}, {relative(out.where, settings.root)})",
            source=out.source,
        )
        for out in (matrix.cells(plan.profile).excluded if known else ())
    )
    host = {name: str(value) for name, value in (run.host if run else {}).items() if name != "revision"}
    return gather(
        plan,
        verdicts,
        ledger,
        Gathered(
            generated=now,
            run=facts,
            executed=executed,
            host=host,
            excluded=excluded,
            published=_published(matrix, plan),
            places={
                "cache": str(settings.cache),
                "state": str(settings.path("state")),
                "checkout": str(settings.root),
                "home": str(Path.home()),
            },
            since=since,
            survival=read_survival(survival) if survival else None,
            patches=read_patch_facts(patches) if patches else None,
        ),
    )


def _published(matrix: Matrix, plan: Plan) -> tuple[PublishedInput, ...]:
    """What the sources of stacks and recipes say, as the matrix has it: facts of a cell, never outcomes."""
    from harness.report.model.report_inputs import PublishedInput

    found = []
    for cell in plan.cells:
        stack, recipe = matrix.stacks.get(cell.stack), matrix.recipes.get(cell.recipe)
        if stack:
            said = ("these versions are what its source states", *stack.notes)
            found += [PublishedInput(cell_id=cell.id, what=what, source=stack.source) for what in said]
        if recipe:
            found += [
                PublishedInput(cell_id=cell.id, what=note, source=recipe.source) for note in recipe.notes
            ]
    return tuple(found)


def write_report(
    settings: Settings,
    matrix: Matrix,
    plan: Plan,
    verdicts: Sequence[Verdict],
    ledger: Ledger,
    run_id: str,
    executed: Collection[str],
    code: int,
    *,
    since: str | None = None,
    survival: Path | None = None,
    patches: tuple[Path, ...] = (),
) -> Path:
    """Write the report of a run; returns its folder."""
    from harness.builds.ownership.temporary_folders import temporary_folder
    from harness.ledger.junit.junit_files import write_junit
    from harness.report.model.gather import junit_cases, junit_suites
    from harness.report.model.report_model import build_model
    from harness.report.publish.publish import render_all
    from harness.workspace.patch_facts_record import recorded_facts
    from harness.workspace.survival_record import recorded_survival

    survival = survival or recorded_survival(settings, matrix)
    patches = patches or recorded_facts(settings, matrix)
    inputs = gather_run(
        settings,
        matrix,
        plan,
        verdicts,
        ledger,
        run_id,
        executed,
        code,
        since=since,
        survival=survival,
        patches=patches,
    )
    folder = settings.path("reports")
    with temporary_folder() as place:
        junit = place / "junit.xml"
        write_junit(junit, junit_cases(inputs), suite_properties=junit_suites(inputs))
        render_all(build_model(inputs), folder, {"junit.xml": junit.read_bytes()})
    return folder


def print_not_run(verdicts: Sequence[Verdict]) -> None:
    """A line for each reason; reasons that one remedy ends stand together under it."""
    reasons: dict[tuple[str, ...], Counter[str]] = {}
    for verdict in verdicts:
        reason = verdict.reasons[0] if verdict.reasons else "no reason given"
        reasons.setdefault(verdict.remedies, Counter())[reason] += 1
    for remedies, counts in reasons.items():
        if not remedies:
            for reason, count in counts.items():
                click.echo(f"not run: {count} x {reason}")
            continue
        more = len(counts) - 1
        others = f" (and {more} more such reason{'s' if more > 1 else ''})" if more else ""
        click.echo(f"not run: {counts.total()} x {next(iter(counts))}{others}")
        for remedy in remedies:
            click.echo(f"  do: {remedy}")


def print_unexpected(verdicts: Sequence[Verdict], *, profile: str, options: Sequence[str] = ()) -> None:
    """Each with its reason, remedy and reproduce command; what one thing blocks in a cell is told once."""
    from harness.plan.tasks.reproduce import reproduce_command
    from harness.verdict.verdict import Expectation

    quiet = {Expectation.AS_EXPECTED, Expectation.KNOWN}
    groups: dict[object, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.standing not in quiet:
            same = (verdict.cell_id, verdict.standing, verdict.reasons, verdict.remedies)
            groups.setdefault(same if verdict.status is Status.BLOCKED else id(verdict), []).append(verdict)
    for alike in groups.values():
        first, checks = alike[0], ",".join(verdict.check for verdict in alike)
        click.echo(f"\n{first.status.value}: {first.cell_id} {checks} ({first.standing.value})")
        for reason in first.reasons:
            click.echo(f"  {reason}")
        for remedy in first.remedies:
            click.echo(f"  do: {remedy}")
        again = reproduce_command(first.cell_id, checks, profile=profile, options=options)
        click.echo(f"  reproduce: {again}")


def print_summary(
    settings: Settings, plan: Plan, verdicts: Sequence[Verdict], summary: Summary, result: RunResult
) -> None:
    """What came out, everything unexpected first."""
    from harness.verdict.verdict import Expectation

    print_unexpected(verdicts, profile=plan.profile, options=settings.flags(*OPTIONS))
    known = [verdict for verdict in verdicts if verdict.standing is Expectation.KNOWN]
    if known:
        click.echo(f"\n{len(known)} known failure{'s' if len(known) != 1 else ''}, as expected")
    print_not_run([verdict for verdict in verdicts if verdict.status.value == "not-run"])
    evidence = Counter(
        verdict.evidence.value for verdict in verdicts if verdict.status.value == "pass" and verdict.evidence
    )
    passed = ", ".join(f"{count} {kind}" for kind, count in sorted(evidence.items()))
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(summary.by_status.items()))
    click.echo(f"\n{statuses}; evidence of what passed: {passed or 'none'}")
    click.echo(
        f"{result.executed} executed, {result.reused} reused in {result.seconds:.1f} s; "
        f"exit {summary.exit_code}: {'; '.join(summary.reasons)}"
    )
