"""Cleanup of the cache and state folders, except environments: releases, computed results, task folders.

All of these can be created again, so they are removed if they were not used for some time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.builds.cleanup.cleanup_candidates import (
    DAY_SECONDS,
    CleanupCandidate,
    CleanupPolicy,
    freed_bytes,
    walk_contents,
)

# Folder of the cache -> what its entries are.
STORES: Mapping[str, str] = {
    "bundle": "copies of the code that runs inside cells",
    "code": "analyses of the code of npu-matrix",
    "layers": "lock files of image layers",
    "mirrors": "mirrors of upstream repositories",
    "lint": "checks of verl that fail with configurations of launch scripts",
    "pairs": "compatibility results of pairs of packages",
    "patch-facts": "summaries of patches",
    "sim": "simulated CANN runtimes",
    "sources": "downloaded releases",
    "survival": "histories of patches",
    "wheels": "downloaded wheels",
}
# The cache of uv, which is removed as a whole.
PACKAGES, PACKAGES_ARE = "uv", "packages downloaded for images"
WORK, WORK_IS = "work", "folders of tasks that did not complete"


def judge_cache(cache: Path, policy: CleanupPolicy) -> tuple[CleanupCandidate, ...]:
    """For each store of the cache: the entries to remove and the entries to keep."""
    candidates: list[CleanupCandidate] = []
    for name, what in STORES.items():
        # Names that start with a dot are incomplete entries; see `judge_unfinished_folders`.
        entries = [path for path in _entries(cache / name) if not path.name.startswith(".")]
        candidates += _candidates(
            "cache", name, what, entries, policy, policy.runtimes if name == "sim" else ()
        )
    packages = [cache / PACKAGES] if (cache / PACKAGES).is_dir() else []
    candidates += _candidates("cache", PACKAGES, PACKAGES_ARE, packages, policy)
    return tuple(candidates)


def judge_state(state: Path, policy: CleanupPolicy, *, in_use: bool) -> tuple[CleanupCandidate, ...]:
    """Folders and logs of tasks that failed or were killed. in_use: a process uses the state."""
    of_state = replace(policy, cache_in_use=in_use)
    return tuple(_candidates("state", WORK, WORK_IS, _entries(state / WORK), of_state))


def _candidates(
    kind: str,
    name: str,
    what: str,
    entries: Sequence[Path],
    policy: CleanupPolicy,
    needed: Collection[str] = (),
) -> list[CleanupCandidate]:
    unused = [] if policy.cache_in_use else [one for one in entries if _is_unused(one, policy, needed)]
    used = [one for one in entries if one not in set(unused)]
    days = f"{policy.unused_after_s / DAY_SECONDS:.1f} days"
    why_used = "a running process uses them" if policy.cache_in_use else f"used within {days}, or needed"
    why_unused = "removal of everything was requested" if policy.everything else f"not used for {days}"
    return [
        CleanupCandidate(
            kind=kind,
            name=name,
            removable=removable,
            reason=f"{len(part)} of {len(entries)} {what}: {reason}",
            bytes_freed=sum(map(freed_bytes, part)),
            paths=tuple(part),
        )
        for removable, part, reason in ((True, unused, why_unused), (False, used, why_used))
        if part
    ]


def _is_unused(entry: Path, policy: CleanupPolicy, needed: Collection[str]) -> bool:
    if policy.everything:
        return True
    return entry.name not in needed and policy.now - _last_use(entry) >= policy.unused_after_s


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _last_use(entry: Path) -> float:
    """When a file of the entry was last written or read."""
    times = [0.0]
    for path in walk_contents(entry):
        with contextlib.suppress(OSError):
            status = path.lstat()
            times += [status.st_mtime] if path.is_dir() else [status.st_mtime, status.st_atime]
    return max(times)
