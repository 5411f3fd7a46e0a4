"""`npu-matrix cleanup`: remove what dead runs left and nobody uses, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import EXIT_INCOMPLETE, HarnessError, InputError
from harness.settings import Settings
from harness.workspace.open_ledger import open_ledger

if TYPE_CHECKING:
    from harness.builds.cleanup.cleanup_candidates import CleanupCandidate, CleanupPolicy
    from harness.builds.engines.engine import Engine, EngineResource


@click.command(
    "cleanup",
    epilog="\b\nExamples:\n  npu-matrix cleanup --dry-run\n  npu-matrix cleanup\n"
    "  npu-matrix cleanup --older-than 3d\n  npu-matrix cleanup --all",
)
@click.option("--dry-run", is_flag=True, help="Say what would go and what stays, and remove nothing.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also environments and images that outcomes refer to, and all that the cache keeps; "
    "it is made again when it is needed.",
)
@click.option(
    "--older-than",
    default="14d",
    show_default=True,
    metavar="SPAN",
    help="How long something that no outcome refers to has to be unused.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Settings, *, dry_run: bool, everything: bool, older_than: str, as_json: bool) -> int:
    """Remove what dead runs left and nobody uses, and nothing else.

    Containers, networks, images, environments, temporary folders, folders of tasks that did not complete, and
    what the cache keeps to save work: fetched releases, answers, simulated runtimes. Nothing of a run that
    lives is touched.

    What stays: the ledger, its artifacts, calibrations and reports, which are results; lock files, which are
    empty; uv's own cache, which other programs use too (`uv cache prune`).

    Exits with 4 when something that should go could not be removed.
    """
    from harness.builds.cleanup.cleanup_candidates import removal_order, remove_candidate

    found, notices = _look(settings, _standing(settings, older_than, everything=everything))
    failed: dict[str, str] = {}
    for engine, one in [(engine, one) for engine, resources in found for one in removal_order(resources)]:
        problem = "" if dry_run else remove_candidate(one, engine)
        if problem:
            failed[one.name] = problem
    for engine, _things in found:
        if engine is not None:
            engine.close()
    everything_found = [one for _engine, resources in found for one in resources]
    if as_json:
        click.echo(json.dumps(_report(everything_found, failed, notices, dry_run=dry_run), indent=2))
    else:
        _print(everything_found, failed, notices, dry_run=dry_run)
    return EXIT_INCOMPLETE if failed else 0


def _standing(settings: Settings, older_than: str, *, everything: bool) -> CleanupPolicy:
    from harness.builds.cleanup.cleanup_candidates import CleanupPolicy
    from harness.builds.ownership.cache_use import cache_in_use
    from harness.plan.covering.time_budget import parse_span

    try:
        seconds = parse_span(older_than)
    except ValueError as error:
        raise InputError(str(error)) from None
    environments, images, runtimes = set(), set(), set()
    # A state folder without a ledger refers to nothing; looking must not make one.
    if (settings.path("state") / "ledger.sqlite3").is_file():
        with open_ledger(settings) as ledger:
            for outcome in ledger.history(check="environment", limit=-1):
                container = outcome.measurements.get("container")
                environments.add(_word(outcome.measurements, "digest"))
                images.add(_word(container if isinstance(container, dict) else {}, "image"))
                runtimes.add(Path(_word(outcome.measurements, "runtime")).name)
    return CleanupPolicy(
        environments=environments,
        images=images,
        runtimes=runtimes,
        unused_after_s=seconds,
        everything=everything,
        cache_in_use=cache_in_use(settings.cache),
    )


def _word(found: Mapping[str, Any], name: str) -> str:
    """A text of an outcome, which may have been merged from anybody's ledger."""
    value = found.get(name)
    return value if isinstance(value, str) else ""


def _look(
    settings: Settings, policy: CleanupPolicy
) -> tuple[list[tuple[Engine | None, list[CleanupCandidate]]], list[str]]:
    """What each place holds; an engine that does not answer is a notice, as it may simply not be in use."""
    from harness.builds.cleanup.cache_retention import judge_cache, judge_state
    from harness.builds.cleanup.cleanup_candidates import (
        has_process_below,
        judge_bytecode_folders,
        judge_engine_resources,
        judge_environments,
        judge_temporary_folders,
        judge_unfinished_folders,
        stored_environments,
    )
    from harness.builds.engines.open_engine import known_engines
    from harness.builds.ownership.owner_labels import ProcessView
    from harness.run.scheduling.run_lock import is_held

    cache, state = settings.cache, settings.path("state")
    here = [
        *judge_environments(stored_environments(cache), policy, has_process_below),
        *judge_unfinished_folders(cache, policy),
        *judge_temporary_folders(ProcessView()),
        *judge_bytecode_folders(cache, policy),
        *judge_cache(cache, policy),
        *judge_state(state, policy, in_use=is_held(state)),
    ]
    found: list[tuple[Engine | None, list[CleanupCandidate]]] = [(None, here)]
    notices = []
    for engine in known_engines():
        resources, notice = _things(engine)
        found.append((engine, list(judge_engine_resources(resources, policy, ProcessView()))))
        notices += notice
    return found, notices


def _things(engine: Engine) -> tuple[Sequence[EngineResource], list[str]]:
    try:
        return engine.resources(), []
    except HarnessError as error:
        return (), [f"{engine.name} was not looked at: {error.problems[0].what}"]


def _report(
    found: list[CleanupCandidate], failed: dict[str, str], notices: list[str], *, dry_run: bool
) -> dict[str, Any]:
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
    click.echo(f"{verb} {gone} of {len(found)}, {_mebibytes(freed)}; what stays holds {_mebibytes(kept)}")
    for notice in notices:
        click.echo(f"note: {notice}")


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
