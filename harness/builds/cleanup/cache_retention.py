"""What the cache and state folders contain besides environments: releases, computed results, task folders.

All of it is made again when it is needed, so it is removed when it was not used for some time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.builds.cleanup.cleanup_candidates import (
    CleanupCandidate,
    CleanupPolicy,
    freed_bytes,
    walk_contents,
)

# Folder of the cache -> what each of its entries is.
STORES: Mapping[str, str] = {
    "bundle": "copies of the code that runs inside cells",
    "code": "analyses of the code of npu-matrix",
    "layers": "lock files of image layers",
    "pairs": "compatibility results of pairs of packages",
    "patch-facts": "summaries of patches",
    "sim": "simulated CANN runtimes",
    "sources": "downloaded releases",
    "survival": "histories of patches",
}
# The cache of uv, which is removed as a whole.
PACKAGES, PACKAGES_ARE = "uv", "packages downloaded for images"
WORK, WORK_IS = "work", "folders of tasks that did not complete"


def judge_cache(cache: Path, policy: CleanupPolicy) -> tuple[CleanupCandidate, ...]:
    """For each store of the cache: the entries to remove and the entries to keep."""
    found: list[CleanupCandidate] = []
    for name, what in STORES.items():
        # The names of incomplete entries start with a dot: `cleanup_candidates.judge_unfinished_folders`.
        entries = [path for path in _entries(cache / name) if not path.name.startswith(".")]
        found += _parts("cache", name, what, entries, policy, policy.runtimes if name == "sim" else ())
    packages = [cache / PACKAGES] if (cache / PACKAGES).is_dir() else []
    found += _parts("cache", PACKAGES, PACKAGES_ARE, packages, policy)
    return tuple(found)


def judge_state(state: Path, policy: CleanupPolicy, *, in_use: bool) -> tuple[CleanupCandidate, ...]:
    """Folders and logs of tasks that failed or were killed. in_use: a process uses the state."""
    of_state = replace(policy, cache_in_use=in_use)
    return tuple(_parts("state", WORK, WORK_IS, _entries(state / WORK), of_state))


def _parts(
    kind: str,
    name: str,
    what: str,
    entries: Sequence[Path],
    policy: CleanupPolicy,
    needed: Collection[str] = (),
) -> list[CleanupCandidate]:
    going = [] if policy.cache_in_use else [one for one in entries if _goes(one, policy, needed)]
    staying = [one for one in entries if one not in set(going)]
    days = f"{policy.unused_after_s / 86400:.1f} days"
    used = "a running process uses them" if policy.cache_in_use else f"used within {days}, or needed"
    unused = "everything was asked for" if policy.everything else f"not used for {days}"
    return [
        CleanupCandidate(
            kind=kind,
            name=name,
            removable=goes,
            reason=f"{len(part)} of {len(entries)} {what}: {reason}",
            bytes_freed=sum(map(freed_bytes, part)),
            paths=tuple(part),
        )
        for goes, part, reason in ((True, going, unused), (False, staying, used))
        if part
    ]


def _goes(entry: Path, policy: CleanupPolicy, needed: Collection[str]) -> bool:
    if policy.everything:
        return True
    return entry.name not in needed and policy.now - _last_use(entry) >= policy.unused_after_s


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _last_use(entry: Path) -> float:
    """When a file of it was last written or read."""
    times = [0.0]
    for path in walk_contents(entry):
        with contextlib.suppress(OSError):
            status = path.lstat()
            times += [status.st_mtime] if path.is_dir() else [status.st_mtime, status.st_atime]
    return max(times)
