"""Finds leftovers of finished or killed runs on this host and in the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.builds.cleanup.cache_retention import judge_cache, judge_state
from harness.builds.cleanup.cleanup_candidates import (
    CleanupCandidate,
    CleanupPolicy,
    judge_bytecode_folders,
    judge_engine_resources,
    judge_environments,
    judge_temporary_folders,
    judge_unfinished_folders,
)
from harness.builds.engines.engine import Engine, EngineResource
from harness.builds.engines.open_engine import known_engines
from harness.builds.ownership.cache_use import cache_in_use
from harness.builds.ownership.owner_labels import ProcessView
from harness.errors import HarnessError, InputError
from harness.plan.covering.time_budget import parse_duration
from harness.run.scheduling.run_lock import is_held
from harness.settings import Settings
from harness.workspace.open_ledger import open_ledger


def cleanup_policy(settings: Settings, older_than: str, *, everything: bool) -> CleanupPolicy:
    """What stored outcomes and running processes still use, and how long unused files are kept."""
    try:
        seconds = parse_duration(older_than)
    except ValueError as error:
        raise InputError(str(error)) from None
    environments, images, runtimes = set(), set(), set()
    # Do not create a ledger in a state folder that has none.
    if (settings.path("state") / "ledger.sqlite3").is_file():
        with open_ledger(settings) as ledger:
            for outcome in ledger.history(check="environment", limit=-1):
                container = outcome.measurements.get("container")
                environments.add(_text_field(outcome.measurements, "digest"))
                images.add(_text_field(container if isinstance(container, dict) else {}, "image"))
                runtimes.add(Path(_text_field(outcome.measurements, "runtime")).name)
    return CleanupPolicy(
        environments=environments,
        images=images,
        runtimes=runtimes,
        unused_after_s=seconds,
        everything=everything,
        cache_in_use=cache_in_use(settings.cache),
    )


def _text_field(found: Mapping[str, object], name: str) -> str:
    """A text field of an outcome, or "": outcomes from other ledgers may have any content."""
    value = found.get(name)
    return value if isinstance(value, str) else ""


def find_leftovers(
    settings: Settings, policy: CleanupPolicy
) -> tuple[list[tuple[Engine | None, list[CleanupCandidate]]], list[str]]:
    """The candidates of this host and of each engine, and notices for engines that do not respond."""
    cache, state = settings.cache, settings.path("state")
    here = [
        *judge_environments(cache, policy),
        *judge_unfinished_folders(cache, policy),
        *judge_temporary_folders(ProcessView()),
        *judge_bytecode_folders(cache, policy),
        *judge_cache(cache, policy),
        *judge_state(state, policy, in_use=is_held(state)),
    ]
    found: list[tuple[Engine | None, list[CleanupCandidate]]] = [(None, here)]
    notices = []
    for engine in known_engines():
        resources, notice = _resources(engine)
        found.append((engine, list(judge_engine_resources(resources, policy, ProcessView()))))
        notices += notice
    return found, notices


def _resources(engine: Engine) -> tuple[Sequence[EngineResource], list[str]]:
    try:
        return engine.resources(), []
    except HarnessError as error:
        return (), [f"{engine.name} was not searched: {error.problems[0].what}"]
