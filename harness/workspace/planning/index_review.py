"""Which stored outcomes of a plan rest on archives that the package index has replaced."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from harness.ledger.store import Ledger
from harness.measurements import OldMeasurementsError, read_shape
from harness.outcome import Outcome, State
from harness.plan.tasks.task import Plan, Task
from harness.sources.packages.index_lookup import PackageIndex
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.release_archive import ReadsReleases, ReleaseArchive, TargetPlatform
from harness.sources.packages.replaced_archives import replaced_archives
from harness.sources.packages.resolve_measurements import ResolveMeasured
from harness.workspace.downloads import run_quietly

#: A run must not wait for an index that does not respond.
INDEX_TIMEOUT_S = 10


@dataclass(frozen=True, kw_only=True)
class IndexReview:
    """Which stored outcomes rest on archives that the package index has replaced.

    outdated: key -> why its stored outcome is not reused. asked: for how many archives the index was asked.
    unreached: for how many of them it did not respond.
    """

    outdated: Mapping[str, str] = field(default_factory=dict)
    asked: int = 0
    unreached: int = 0

    def __str__(self) -> str:
        if not self.asked:
            return "no stored outcome names an archive to ask for"
        text = f"asked for {self.asked} archives; {len(self.outdated)} outcomes rest on replaced ones"
        return text + (f"; no response for {self.unreached} archives" if self.unreached else "")


def review_index(plan: Plan, ledger: Ledger) -> IndexReview:
    """Ask the index whether it has replaced an archive on which a stored outcome of the plan rests.

    Only the user's own indexes are asked, for the releases that checks of the plan read.
    """
    outcomes = ledger.get_many(key for key, task in plan.tasks.items() if "platform" in task.facets)
    measured = {key: _measured(plan.tasks[key], outcome) for key, outcome in outcomes.items()}
    by_platform: dict[TargetPlatform, set[ReleaseArchive]] = defaultdict(set)
    for key, found in measured.items():
        if found and found.archives_read:
            platform = read_shape(TargetPlatform, plan.tasks[key].facets["platform"])
            by_platform[platform].update(found.archives_read)
    settings = replace(index_environment(os.environ), retries=0, timeout_s=INDEX_TIMEOUT_S)
    changes = replaced_archives(by_platform, PackageIndex(settings=settings, command=run_quietly))
    replaced = {archive.sha256: sha256 for archive, sha256 in changes.replaced.items()}
    reasons = {key: _reason(found, replaced) for key, found in measured.items() if found}
    return IndexReview(
        outdated={key: reason for key, reason in reasons.items() if reason},
        asked=changes.asked,
        unreached=len(changes.unreached),
    )


def _measured(task: Task, outcome: Outcome) -> ReadsReleases | None:
    if outcome.state is not State.COMPLETED:
        return None
    try:
        measured = task.check.read(outcome)
    except OldMeasurementsError:
        return None
    return measured if isinstance(measured, ReadsReleases) else None


def _reason(measured: ReadsReleases, replaced: Mapping[str, str]) -> str:
    """Why an outcome is not reused. A lock also rests on archives that only other checks read."""
    archives: Iterable[ReleaseArchive] = measured.archives_read
    if isinstance(measured, ResolveMeasured):
        archives = measured.locked_archives.values()
    changed = next((archive for archive in archives if archive.sha256 in replaced), None)
    if changed is None:
        return ""
    return f"the package index has another {changed.file} now (sha256 {replaced[changed.sha256][:12]})"
