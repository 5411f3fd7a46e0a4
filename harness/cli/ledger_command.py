"""`npu-matrix ledger`: sign outcomes of this machine, and merge outcomes of other machines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.ledger.merge_report import MergeReport

#: How many claimed outcomes, damaged rows or missing files are listed; `--json` lists all.
MOST_LISTED = 20
MERGE_CODES = {
    EXIT_OK: "merged; claimed outcomes are listed, they count for nothing",
    EXIT_INCOMPLETE: "merged, but damaged rows, or outcomes or runs with credentials, were left out",
}
SIGN_CODES = {
    EXIT_OK: "every hardware outcome of this machine has a valid signature",
    EXIT_UNEXPECTED: "some outcomes were not signed; the reasons are printed",
    EXIT_NOTHING_SELECTED: "this machine recorded no hardware outcome",
}


@click.group("ledger", epilog="\b\nExamples:\n  npu-matrix ledger merge shard-*/.npu-matrix")
def command() -> None:
    """Sign outcomes of this machine, and merge outcomes of other machines."""


@command.command(
    "merge",
    epilog="\b\nExamples:\n  npu-matrix ledger merge shard-1/.npu-matrix shard-2/.npu-matrix\n"
    "  npu-matrix ledger merge host-a.sqlite3 --json\n\n"
    "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in MERGE_CODES.items()),
)
@click.argument("ledgers", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LEDGER...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.ledger-merge).")
@click.pass_obj
def merge(settings: Settings, ledgers: tuple[Path, ...], as_json: bool) -> None:
    """Add the outcomes of other ledgers to this ledger.

    Their runs, logs, artifacts and signatures are added too. LEDGER is a state folder, the ledger file in
    it, or the file that `npu-matrix first-contact` wrote, and is not changed. The next run reuses merged
    outcomes of tasks with the same key. Merging a ledger twice adds nothing.

    Hardware outcomes count only if a runner that matrix.yaml names signed them; others are shown as claimed.
    Other outcomes are believed, because any machine can measure them again: merge only ledgers of machines
    and jobs that you trust. Outcomes and runs that contain credentials are left out.
    """
    from harness.serialisation import dumps
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.results.foreign_secrets import ForeignSecrets
    from harness.workspace.results.sent_ledger import opened_ledger

    screen = ForeignSecrets()
    with contextlib.ExitStack() as stack:
        # All of them are opened before the first is merged.
        files = [stack.enter_context(opened_ledger(path)) for path in ledgers]
        ledger = stack.enter_context(open_ledger(settings))
        reports = {str(path): ledger.merge(file, screen) for path, file in zip(ledgers, files, strict=True)}
    if as_json:
        document = {
            "schema": {"name": "npu-matrix.ledger-merge", "version": 1},
            "added": {name: report.added for name, report in reports.items()},
            "ledgers": reports,
        }
        click.echo(dumps(document, indent=2))
    else:
        for name, report in reports.items():
            click.echo("\n".join(merge_lines(name, report)))
    complete = all(report.complete for report in reports.values())
    sys.exit(EXIT_OK if complete else EXIT_INCOMPLETE)


def merge_lines(name: str, report: MergeReport) -> list[str]:
    """What was taken from one ledger, and what is not believed, as lines of text."""
    before = report.read - report.added - len(report.secret)
    lines = [f"{name}: {report.added} outcomes added, {before} were here before"]
    if report.signed:
        lines.append(
            f"  {report.signed} hardware outcomes believed: signed by a runner that matrix.yaml names"
        )
    lines += _listed(
        "hardware outcomes claimed, not believed",
        [
            f"{one.check} (key {one.key[:12]}) of host {one.host[:12] or 'unknown'}"
            f"{f', runner {one.runner}' if one.runner else ''}: {one.why}"
            for one in report.claimed
        ],
    )
    lines += _listed("outcomes with credentials left out (rotate them, and run again there)", report.secret)
    lines += _listed("runs left out, because they contain credentials", report.secret_runs)
    lines += _listed("damaged rows left out", report.damaged)
    lines += _listed("files that this ledger lacks or that do not match their digests", report.missing_files)
    return lines


def _listed(title: str, items: Sequence[str]) -> list[str]:
    """The title and the items, of which other machines may have written parts."""
    from harness.verdict.triage.log_line import shown

    if not items:
        return []
    more = len(items) - MOST_LISTED
    return [
        f"  {len(items)} {title}:",
        *(f"    {shown(item)}" for item in items[:MOST_LISTED]),
        *([f"    and {more} more (--json lists all)"] if more > 0 else []),
    ]


@command.command(
    "sign",
    epilog="\b\nExamples:\n  npu-matrix --runner a2-host ledger sign ~/.ssh/npu-matrix\n\n"
    "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in SIGN_CODES.items()),
)
@click.argument("key", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="KEYFILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.ledger-sign).")
@click.pass_obj
def sign(settings: Settings, key: Path, as_json: bool) -> None:
    """Sign the hardware outcomes that this machine recorded.

    Other machines believe signed hardware outcomes after `ledger merge`, if their matrix.yaml names the
    public key for this runner (the setting `runner`). KEYFILE is an OpenSSH private key, or a public key
    whose private key is in the agent; only ssh-keygen reads it. The signatures are stored in this ledger.
    """
    from harness.serialisation import dumps
    from harness.workspace.results.outcome_signing import sign_outcomes

    report = sign_outcomes(settings, key, settings["runner"])
    if as_json:
        document = {
            "schema": {"name": "npu-matrix.ledger-sign", "version": 1},
            "runner": settings["runner"],
            "signed": [outcome.key for outcome in report.signed],
            "signed_before": [outcome.key for outcome in report.signed_before],
            "refused": [{"key": outcome.key, "why": why} for outcome, why in report.refused],
        }
        click.echo(dumps(document, indent=2))
    else:
        click.echo(f"{len(report.signed)} outcomes signed, {len(report.signed_before)} were signed before")
        for line in _listed(
            "not signed", [f"{one.check} (key {one.key[:12]}): {why}" for one, why in report.refused]
        ):
            click.echo(line)
    if report.refused:
        sys.exit(EXIT_UNEXPECTED)
    sys.exit(EXIT_OK if report.signed or report.signed_before else EXIT_NOTHING_SELECTED)
