"""The releases that a static check reads: those that `resolve` locked for its cell, archive by archive."""

from __future__ import annotations

from harness.check import TaskContext
from harness.measurements import read_shape
from harness.outcome import State
from harness.sources.git.mirrors import mirror_folders
from harness.sources.packages.release_archive import TargetPlatform
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT

RESOLVE = "resolve"


def releases_of_task(ctx: TaskContext) -> ReleaseFetcher:
    """Fetches releases for a check that is informed by `resolve`.

    Without a lock, because `resolve` failed, every release is looked up on the user's own index for the
    cell's platform.
    """
    outcome = ctx.inputs.get(RESOLVE)
    has_result = outcome is not None and outcome.state is State.COMPLETED
    resolved = RESOLVE_FORMAT.read(outcome.measurements) if outcome and has_result else None
    return ReleaseFetcher(
        cache=ctx.cache,
        command=ctx.command,
        mirrors=mirror_folders(),
        target=read_shape(TargetPlatform, ctx.facets["platform"]),
        indexes=resolved.reachable(ctx.facets["pins"].get("index", ())) if resolved else (),
        locked=resolved.locked_archives if resolved else {},
    )
