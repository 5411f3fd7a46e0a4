"""`npu-matrix cleanup`: remove containers, environments and cached files that nothing uses any more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_INCOMPLETE
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.builds.cleanup.cleanup_candidates import CleanupCandidate


@click.command(
    "cleanup",
    epilog="\b\nExamples:\n  npu-matrix cleanup --dry-run\n  npu-matrix cleanup\n"
    "  npu-matrix cleanup --older-than 3d\n  npu-matrix cleanup --all",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be removed and what would stay; remove nothing."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also remove environments and images that stored outcomes use, and the whole cache; "
    "both are rebuilt when they are needed.",
)
@click.option(
    "--older-than",
    default="14d",
    show_default=True,
    metavar="SPAN",
    help="Minimum unused time of environments and images that no outcome refers to.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Settings, *, dry_run: bool, everything: bool, older_than: str, as_json: bool) -> int:
    """Remove what runs left behind and nothing uses any more.

    Removed are containers, networks, images, environments, temporary folders, working folders of tasks that
    did not complete, and cached data: downloaded releases, analysis results, simulated runtimes. Anything
    that a running process uses is left alone.

    Never removed are the ledger, its artifacts, calibrations and reports, lock files, and the cache of uv,
    which other programs share (`uv cache prune` cleans it).

    Exits with 4 when something could not be removed.
    """
    from harness.builds.cleanup.cleanup_candidates import removal_order, remove_candidate
    from harness.workspace.results.cleanup_search import cleanup_policy, find_leftovers

    found, notices = find_leftovers(settings, cleanup_policy(settings, older_than, everything=everything))
    failed: dict[str, str] = {}
    for engine, one in [(engine, one) for engine, things in found for one in removal_order(things)]:
        problem = "" if dry_run else remove_candidate(one, engine)
        if problem:
            failed[one.name] = problem
    for engine, _things in found:
        if engine is not None:
            engine.close()
    everything_found = [one for _engine, things in found for one in things]
    if as_json:
        click.echo(json.dumps(_report(everything_found, failed, notices, dry_run=dry_run), indent=2))
    else:
        _print(everything_found, failed, notices, dry_run=dry_run)
    return EXIT_INCOMPLETE if failed else 0


def _report(
    found: list[CleanupCandidate], failed: dict[str, str], notices: list[str], *, dry_run: bool
) -> dict[str, object]:
    return {
        "schema": {"name": "npu-matrix.cleanup", "version": 1},
        "dry_run": dry_run,
        "notices": notices,
        "found": [
            {
                "kind": one.kind,
                "name": one.name,
                "goes": one.removable,
                "removed": one.removable and not dry_run and one.name not in failed,
                "reason": one.reason,
                "problem": failed.get(one.name, "") if one.removable else "",
                "bytes": one.bytes_freed,
            }
            for one in found
        ],
    }


def _print(
    found: list[CleanupCandidate], failed: dict[str, str], notices: list[str], *, dry_run: bool
) -> None:
    verb = "would remove" if dry_run else "removed"
    freed = kept = 0
    for one in found:
        if one.removable and one.name in failed:
            click.echo(f"not removed: {one.kind} {one.name}: {failed[one.name]}", err=True)
        elif one.removable:
            freed += one.bytes_freed
            click.echo(f"{verb} {one.kind} {one.name} ({_mebibytes(one.bytes_freed)}): {one.reason}")
        else:
            kept += one.bytes_freed
            if dry_run:
                click.echo(f"would keep {one.kind} {one.name} ({_mebibytes(one.bytes_freed)}): {one.reason}")
    gone = sum(one.removable and one.name not in failed for one in found)
    click.echo(f"{verb} {gone} of {len(found)}, {_mebibytes(freed)}; {_mebibytes(kept)} kept")
    for notice in notices:
        click.echo(f"note: {notice}")


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
