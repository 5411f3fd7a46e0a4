"""Prints the results of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from harness.devices.sim.refusals.permissive_calls import permissive_reasons
from harness.outcome import Status, unlisted_reasons
from harness.plan.tasks.task import Plan, reproduce_command
from harness.run.scheduling.run_result import RunResult
from harness.settings import Settings
from harness.verdict.plan_verdicts import RunSummary
from harness.verdict.verdict import Standing, Verdict
from harness.workspace.results.run_report import REPRODUCE_OPTIONS

MOST_PERMISSIVE = 3


def print_not_run(verdicts: Sequence[Verdict]) -> None:
    """Print why entries were not run: one line for each reason, grouped by remedy."""
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
    """Print unexpected verdicts with reasons, remedies and a command that reproduces them.

    Blocked verdicts of a cell with the same reason are printed together.
    """
    expected = {Standing.AS_EXPECTED, Standing.KNOWN}
    groups: dict[object, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.standing not in expected:
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


def print_unlisted(verdicts: Sequence[Verdict]) -> None:
    """Print which passed cells have versions that a published table does not list, with the source."""
    for verdict in verdicts:
        if verdict.status is Status.PASS:
            for reason in unlisted_reasons(verdict.reasons):
                click.echo(f"{verdict.cell_id}: {reason[0].lower()}{reason[1:]}")


def print_permissive(verdicts: Sequence[Verdict]) -> None:
    """Print how many checks passed with calls for which it is unknown whether torch_npu refuses them."""
    counts = Counter(
        reason
        for verdict in verdicts
        if verdict.status is Status.PASS
        for reason in permissive_reasons(verdict.reasons)
    )
    for reason, count in counts.most_common(MOST_PERMISSIVE):
        click.echo(f"{count} passed: {reason[0].lower()}{reason[1:]}")
    if len(counts) > MOST_PERMISSIVE:
        rest = sum(count for _reason, count in counts.most_common()[MOST_PERMISSIVE:])
        click.echo(f"{rest} more passed with other such calls; see the report")


def print_summary(
    settings: Settings, plan: Plan, verdicts: Sequence[Verdict], summary: RunSummary, result: RunResult
) -> None:
    """Print the results of a run, unexpected verdicts first."""
    print_unexpected(verdicts, profile=plan.profile, options=settings.flags(*REPRODUCE_OPTIONS))
    known = [verdict for verdict in verdicts if verdict.standing is Standing.KNOWN]
    if known:
        click.echo(f"\n{len(known)} known failure{'s' if len(known) != 1 else ''}, as expected")
    print_unlisted(verdicts)
    print_permissive(verdicts)
    print_not_run([verdict for verdict in verdicts if verdict.status.value == "not-run"])
    evidence = Counter(
        verdict.evidence.value for verdict in verdicts if verdict.status.value == "pass" and verdict.evidence
    )
    passed = ", ".join(f"{count} {kind}" for kind, count in sorted(evidence.items()))
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(summary.by_status.items()))
    click.echo(f"\n{statuses}; evidence of what passed: {passed or 'none'}")
    click.echo(f"{result.executed} executed, {result.reused} reused in {result.seconds:.1f} s")
