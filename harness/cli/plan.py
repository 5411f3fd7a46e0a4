"""`npu-matrix plan`: which tasks answer which cells."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from harness.cli.bench import open_bench
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.plan.task import Plan


@click.command(
    "plan",
    epilog="\b\nExamples:\n  npu-matrix plan\n  npu-matrix plan --only 'gspo-*' --check lint\n"
    "  npu-matrix plan --json | jq '.tasks | length'",
)
@click.option("--only", multiple=True, metavar="GLOB", help="Cells to plan; may be repeated.")
@click.option(
    "--check", "checks", multiple=True, help="Checks to plan, with what they need; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.plan).")
@click.pass_obj
def command(settings: Settings, only: tuple[str, ...], checks: tuple[str, ...], as_json: bool) -> None:
    """Show which tasks answer which cells, which are known already, and what the rest costs."""
    plan = open_bench(settings, only=only, checks=checks).plan
    known = _known_keys(settings, plan)
    if as_json:
        click.echo(json.dumps({**plan.to_json(), "known": sorted(known)}, indent=2))
        return
    for line in _lines(plan, known):
        click.echo(line)


def _known_keys(settings: Settings, plan: Plan) -> set[str]:
    """Keys that have a reusable outcome; a ledger that does not exist yet is not created for looking."""
    from harness.ledger.store import Ledger

    state = settings.path("state")
    if not (state / "ledger.sqlite3").exists():
        return set()
    with Ledger.open(state) as ledger:
        return set(ledger.get_many(plan.tasks))


def _lines(plan: Plan, known: set[str]) -> list[str]:
    by_cell: dict[str, list[Any]] = {}
    for entry in plan.entries:
        by_cell.setdefault(entry.cell_id, []).append(entry)
    width = max(len(cell) for cell in by_cell)
    lines = []
    for cell_id, entries in by_cell.items():
        planned = [_mark(entry.check, entry.key in known) for entry in entries if entry.key]
        left_out = Counter(entry.skip.reason for entry in entries if entry.skip)
        tail = "; ".join(f"{count} not run: {reason}" for reason, count in left_out.items())
        lines.append(f"{cell_id:<{width}}  {' '.join(planned)}{'  (' + tail + ')' if tail else ''}")
    todo = [task for key, task in plan.tasks.items() if key not in known]
    wanted = sum(bool(entry.key) for entry in plan.entries)
    lines.append(
        f"{len(by_cell)} cells, {wanted} answers wanted, {len(plan.tasks)} distinct tasks, "
        f"{len(todo)} to run (about {sum(task.expected_s for task in todo):.0f} s of work); * = known already"
    )
    lines.extend(f"note: {notice}" for notice in plan.notices)
    return lines


def _mark(check: str, is_known: bool) -> str:
    return f"{check}*" if is_known else check
