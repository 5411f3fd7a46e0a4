"""`npu-matrix ledger`: merge outcomes of other machines into the ledger of this checkout."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.settings import Settings


@click.group("ledger", epilog="\b\nExamples:\n  npu-matrix ledger merge shard-*/.npu-matrix")
def command() -> None:
    """Merge outcomes of other machines into the ledger of this checkout."""


@command.command(
    "merge",
    epilog="\b\nExamples:\n  npu-matrix ledger merge shard-1/.npu-matrix shard-2/.npu-matrix\n"
    "  npu-matrix ledger merge host-a.sqlite3 --json",
)
@click.argument("ledgers", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LEDGER...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.ledger-merge).")
@click.pass_obj
def merge(settings: Settings, ledgers: tuple[Path, ...], as_json: bool) -> None:
    """Add the outcomes of other ledgers to this ledger.

    Their runs, logs and artifacts are added too. LEDGER is a state folder or the ledger file in it, and is
    not changed. The next run reuses merged outcomes of tasks with the same key. Merging a ledger twice adds
    nothing.
    """
    from harness.workspace.open_ledger import ledger_file, open_ledger

    files = [ledger_file(path) for path in ledgers]
    with open_ledger(settings) as ledger:
        added = {str(path): ledger.merge(file) for path, file in zip(ledgers, files, strict=True)}
    if as_json:
        report = {"schema": {"name": "npu-matrix.ledger-merge", "version": 1}, "added": added}
        click.echo(json.dumps(report, indent=2))
        return
    for name, count in added.items():
        click.echo(f"{name}: {count} outcomes added")
