"""What a cache and a state folder keep beside environments: releases, answers, runtimes, task folders.

All of it is made again when it is needed; what counts is when it was last used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.builds.upkeep.reaper import Found, Standing, own_bytes, with_contents

# Folder of the cache -> what each of its entries is.
STORES: Mapping[str, str] = {
    "bundle": "copies of what of this program runs inside cells",
    "layers": "locks of image layers",
    "pairs": "answers about pairs of packages",
    "patch-facts": "summaries of patches",
    "sim": "simulated CANN runtimes",
    "sources": "releases as they were fetched",
    "survival": "histories of patches",
}
# One entry as a whole: another program keeps order in it.
PACKAGES, PACKAGES_ARE = "uv", "packages that were fetched for images"
WORK, WORK_IS = "work", "folders of tasks that did not complete"


def kept_in_cache(cache: Path, standing: Standing) -> tuple[Found, ...]:
    """What becomes of each store of `cache`: up to two parts, what goes and what stays."""
    found: list[Found] = []
    for name, what in STORES.items():
        # Half-made entries are named with a dot: `reap.unfinished_folders`.
        entries = [path for path in _entries(cache / name) if not path.name.startswith(".")]
        found += _parts("cache", name, what, entries, standing, standing.runtimes if name == "sim" else ())
    packages = [cache / PACKAGES] if (cache / PACKAGES).is_dir() else []
    found += _parts("cache", PACKAGES, PACKAGES_ARE, packages, standing)
    return tuple(found)


def kept_in_state(state: Path, standing: Standing, *, in_use: bool) -> tuple[Found, ...]:
    """Folders and logs of tasks that failed or were killed; `in_use`: a run holds the state folder."""
    of_state = replace(standing, cache_in_use=in_use)
    return tuple(_parts("state", WORK, WORK_IS, _entries(state / WORK), of_state))


def _parts(
    kind: str,
    name: str,
    what: str,
    entries: Sequence[Path],
    standing: Standing,
    needed: Collection[str] = (),
) -> list[Found]:
    going = [] if standing.cache_in_use else [one for one in entries if _goes(one, standing, needed)]
    staying = [one for one in entries if one not in set(going)]
    days = f"{standing.unused_after_s / 86400:.1f} days"
    used = "a run that uses them is alive" if standing.cache_in_use else f"used within {days}, or needed"
    unused = "everything was asked for" if standing.everything else f"not used for {days}"
    return [
        Found(
            kind=kind,
            name=name,
            goes=goes,
            reason=f"{len(part)} of {len(entries)} {what}: {reason}",
            bytes_freed=sum(map(own_bytes, part)),
            paths=tuple(part),
        )
        for goes, part, reason in ((True, going, unused), (False, staying, used))
        if part
    ]


def _goes(entry: Path, standing: Standing, needed: Collection[str]) -> bool:
    if standing.everything:
        return True
    return entry.name not in needed and standing.now - _last_use(entry) >= standing.unused_after_s


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _last_use(entry: Path) -> float:
    """When it, or something in it, was last written, or a file of it read."""
    times = [0.0]
    for path in with_contents(entry):
        with contextlib.suppress(OSError):
            status = path.lstat()
            times += [status.st_mtime] if path.is_dir() else [status.st_mtime, status.st_atime]
    return max(times)
