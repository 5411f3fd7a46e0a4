"""`npu-matrix first-contact`: the first measurements of a host with NPUs, in one file that can be sent."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.selection_options import only_option
from harness.cli.stated_exit import StatedExit
from harness.errors import EXIT_INCOMPLETE, EXIT_OK, EXIT_UNEXPECTED, InputError
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.devices.host.host_findings import HostFinding
    from harness.plan.tasks.task import Task
    from harness.workspace.execution.first_contact import ContactedCheck, ContactSummary
    from harness.workspace.planning.open_plan import PlanContext

#: Its outcomes are in a ledger of its own, which becomes the file.
STATE = "npu-matrix-first-contact"
MOST_SHOWN = 12
#: Why a check did not end.
LATE = "it was interrupted; the same command goes on"
EXIT_TEXTS = {
    EXIT_OK: "everything was measured and passed",
    EXIT_UNEXPECTED: "a check failed on this device: the file says which",
    EXIT_INCOMPLETE: "something was not measured: the file says what and why",
}


@click.command(
    "first-contact",
    epilog="\b\nExamples:\n  npu-matrix first-contact\n  npu-matrix first-contact --only 'verl-0-9-0*'\n"
    "  npu-matrix --engine found --found-python /usr/local/bin/python3 first-contact\n"
    "  npu-matrix --runner a2-host first-contact --sign ~/.ssh/npu-matrix --out a2-host.tar.gz\n\n"
    "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in EXIT_TEXTS.items()),
)
@only_option(
    "Cells to choose from. Default: all cells on NPUs; the newest that this host can run is measured."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("first-contact.tar.gz"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--minutes",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="When this time is up, nothing more is measured, and the file has what there is.",
)
@click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="KEYFILE",
    help="Sign hardware outcomes with this OpenSSH key, for the runner of the setting `runner`.",
)
@click.option(
    "--predict/--no-predict",
    default=True,
    help="Also run the checks on the simulated device, to see what it predicts wrongly. Default: do so.",
)
@click.pass_obj
def command(
    settings: Settings, /, only: tuple[str, ...], out: Path, minutes: int, key: Path | None, *, predict: bool
) -> int:
    """Measure a host with NPUs for the first time, and write one file that can be sent and merged.

    It shows what `doctor` finds, builds the newest row that this host can run (with `--engine found`: takes
    what is installed, and changes nothing) and with which it reaches the device, and measures there:
    the constants that the numerics checks assume, a sample of operators against float64, collective
    operations between two cards, and the loss battery. Then it compares them with the predictions of the
    simulated device. The file has outcomes, logs and facts, without credentials; `npu-matrix ledger merge
    FILE` adds them to another ledger.
    """
    from harness.cli.run_execution import execute_plan
    from harness.devices.cards.card_leases import CardLeases
    from harness.run.executors.executor import LocalExecutor
    from harness.workspace.execution.first_contact import (
        contact_cells,
        contacted,
        open_contact,
        summary_of,
        time_up,
        why_unmeasured,
    )
    from harness.workspace.execution.run_setup import exclusive_run, local_site
    from harness.workspace.results.sent_ledger import ensure_writable, write_sent_ledger

    ensure_writable(out)
    if settings.lacks_matrix:
        settings = settings.with_shipped_matrix()
    # Nothing else of this host may get into the file.
    state = settings.path("state") / "first-contact" if settings.is_explicit("state") else Path(STATE)
    settings = settings.overridden({"state": str(state), "reports": str(state / "report")})
    findings = _examine(settings)
    deadline = time.monotonic() + 60.0 * minutes
    cells = contact_cells(settings, only)
    passed_over: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        interrupted = stack.enter_context(exclusive_run(settings))

        def stopped() -> bool:
            return interrupted() or time.monotonic() > deadline

        for cell in cells:
            context = open_contact(settings, cell)
            _print_row(context)
            executor = LocalExecutor(local_site(settings, cards=context.host.usable_chips), settings.jobs)
            with contextlib.closing(executor):
                result, _ = execute_plan(
                    context, executor, stopped, rerun=frozenset(), keep_going=True, events=None
                )
            why = why_unmeasured(context, result)
            if not why or stopped() or cell == cells[-1]:
                break
            passed_over[cell] = why
            click.echo(f"\nthe device was not reached with this row, so the next one is tried: {why}")
        leases = CardLeases.of_host(os.environ).list_leases()
        late = LATE if interrupted() else time_up(minutes, context.host, leases)
        work = settings.path("state") / "predictions"
        checks = contacted(context, result, work, predicted=predict and not stopped(), late=late)
    summary = summary_of(context, checks, findings, passed_over)
    if key is not None:
        _sign(settings, key, context.plan.tasks.values())
    sent = write_sent_ledger(settings, summary, out)
    _print_checks(checks)
    for secret in (*sent.secret, *sent.secret_runs):
        click.echo(f"left out of the file, because it contains a credential: {secret}")
    click.echo(f"\nfile: {out} ({sent.added} outcomes, {out.stat().st_size / 1e6:.1f} MB)")
    click.echo(f"to read it elsewhere: npu-matrix ledger merge {out.name}")
    return _exit(summary)


def _examine(settings: Settings) -> tuple[HostFinding, ...]:
    """What `doctor` finds, printed and returned."""
    from harness.cli.doctor_command import examine_this_host, print_findings

    findings = examine_this_host(settings)
    print_findings(findings)
    return findings


def _print_row(context: PlanContext) -> None:
    from harness.workspace.planning.found_cell import AS_FOUND

    (cell,) = context.plan.cells
    click.echo(f"\nrow: {cell.id} ({cell.title})")
    if AS_FOUND in context.matrix.stacks and cell.id.startswith(AS_FOUND):
        for note in context.matrix.stacks[AS_FOUND].notes:
            click.echo(f"  {note}")


def _sign(settings: Settings, key: Path, tasks: Iterable[Task]) -> None:
    from harness.workspace.results.outcome_signing import own_signer, sign_outcomes

    if not settings["runner"]:
        raise InputError("a signature needs the name of this host", fix="set it: --runner NAME")
    signer = own_signer(settings["runner"], key, tasks)
    report = sign_outcomes(settings, key, signer.name, {signer.name: signer})
    click.echo(f"{len(report.signed) + len(report.signed_before)} outcomes signed as {signer.name}")
    for outcome, why in report.refused:
        click.echo(f"  not signed: {outcome.check}: {why}")
    click.echo("who merges the file names this key in matrix.yaml:")
    click.echo(f"  runners: {{{signer.name}: {{kind: local, devices: [npu], keys: ['{signer.keys[0]}']}}}}")


def _print_checks(checks: Sequence[ContactedCheck]) -> None:
    click.echo("\nfirst contact:")
    for one in checks:
        click.echo(
            f"  {one.status:<13}{one.check} [{one.evidence or 'not measured'}] {' '.join(one.reasons[:2])}"
        )
        if one.unpredicted:
            click.echo(f"    {one.unpredicted}")
        wrong = [compared for compared in one.comparisons if not compared.right]
        if one.comparisons:
            click.echo(
                f"    the simulated device predicted {len(one.comparisons) - len(wrong)} of "
                f"{len(one.comparisons)} results"
            )
        for compared in wrong[:MOST_SHOWN]:
            click.echo(
                f"    predicted wrongly: {compared.what}: {compared.predicted}; here {compared.measured}"
            )
        if len(wrong) > MOST_SHOWN:
            click.echo(f"    and {len(wrong) - MOST_SHOWN} more, in the file")


def _exit(summary: ContactSummary) -> StatedExit:
    evidence = f"evidence: {summary.evidence}"
    if not summary.complete:
        return StatedExit(EXIT_INCOMPLETE, ("something was not measured", evidence))
    failed = [one.check for one in summary.checks if one.status != "pass"]
    if failed:
        return StatedExit(EXIT_UNEXPECTED, (f"not passed: {', '.join(failed)}", evidence))
    return StatedExit(EXIT_OK, ("everything was measured and passed", evidence))
