"""Finds what dead runs left and what no outcome needs, decides what to remove, and removes it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from harness.builds.cell.container_environment import BYTECODE_CHARACTERS
from harness.builds.cell.venv_environment import FINISHED
from harness.builds.engines.engine import Engine, EngineResource
from harness.builds.ownership.owner_labels import OWNER, PARENT, ProcessOwner, ProcessView, is_orphaned
from harness.builds.ownership.temporary_folders import (
    ABANDONED_AFTER_S,
    PREFIX,
    is_folder_orphaned,
    last_change_time,
    list_temporary_folders,
    remove_temporary_folder,
)
from harness.errors import HarnessError

# Folders that are renamed when they are complete, which takes minutes at most.
UNFINISHED = (
    *("bundle/.bundle-*", "sim/.build-*", "sim/*/toolkit/.toolkit-*", ".libraries-*"),
    *("sources/.fetching-*", "sources/.asking-*"),
)
UNUSED_AFTER_S = 14 * 86400.0


@dataclass(frozen=True, kw_only=True)
class StoredEnvironment:
    """The folder of an environment.

    bytes_freed: what its removal frees, without files that are also linked from elsewhere (the installer's
    cache, another environment). used: when it was built or last started.
    """

    digest: str
    path: Path
    finished: bool
    bytes_freed: int
    used: float


@dataclass(frozen=True, kw_only=True)
class CleanupCandidate:
    """One resource that could go: what it is, whether it goes, and why or why not."""

    kind: str
    name: str
    removable: bool
    reason: str
    bytes_freed: int = 0
    resource: EngineResource | None = None
    environment: StoredEnvironment | None = None
    folder: Path | None = None
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CleanupPolicy:
    """What has to be kept.

    environments, images, runtimes: what stored outcomes refer to, by digest, image id and folder name.
    unused_after_s: how long to keep what no outcome refers to. everything: also remove what outcomes refer
    to. cache_in_use: whether a running process uses the cache.
    """

    environments: Collection[str] = ()
    images: Collection[str] = ()
    runtimes: Collection[str] = ()
    unused_after_s: float = UNUSED_AFTER_S
    everything: bool = False
    cache_in_use: bool = False
    now: float = field(default_factory=time.time)


def stored_environments(cache: Path) -> tuple[StoredEnvironment, ...]:
    """Every environment below `cache`, by digest."""
    return tuple(
        StoredEnvironment(
            digest=folder.name,
            path=folder,
            finished=(folder / FINISHED).is_file(),
            bytes_freed=freed_bytes(folder),
            used=_last_use(folder),
        )
        for folder in sorted((cache / "cells").glob("*"))
        if folder.is_dir()
    )


def judge_environments(
    stored: Iterable[StoredEnvironment], policy: CleanupPolicy, busy: Callable[[Path], bool]
) -> tuple[CleanupCandidate, ...]:
    """Decide which environments to remove. busy: whether a process runs in an environment."""
    found = []
    for one in stored:
        goes, reason = _environment(one, policy)
        if goes and busy(one.path):
            goes, reason = False, "a process runs in it"
        found.append(
            CleanupCandidate(
                kind="environment",
                name=one.digest,
                removable=goes,
                reason=reason,
                bytes_freed=one.bytes_freed,
                environment=one,
            )
        )
    return tuple(found)


def _environment(one: StoredEnvironment, policy: CleanupPolicy) -> tuple[bool, str]:
    if not one.finished:
        return True, "its build was never completed"
    days = (policy.now - one.used) / 86400.0
    if policy.cache_in_use:
        return False, "a running process uses this cache"
    if policy.everything:
        return True, "everything was asked for"
    if one.digest in policy.environments:
        return False, "an outcome needs it"
    if policy.now - one.used < policy.unused_after_s:
        return False, f"no outcome needs it, but it was used {days:.1f} days ago"
    return True, f"no outcome needs it, and it was last used {days:.1f} days ago"


def judge_unfinished_folders(cache: Path, policy: CleanupPolicy) -> tuple[CleanupCandidate, ...]:
    """Incomplete folders that are too old to be completed."""
    found = []
    for folder in [folder for pattern in UNFINISHED for folder in sorted(cache.glob(pattern))]:
        used = last_change_time(folder)
        if used is None:
            continue
        age = policy.now - used
        found.append(
            CleanupCandidate(
                kind="folder",
                name=str(folder.relative_to(cache)),
                removable=age > ABANDONED_AFTER_S and folder.is_dir() and not folder.is_symlink(),
                reason=f"started {age / 3600:.1f} hours ago and never completed",
                bytes_freed=freed_bytes(folder),
                folder=folder,
            )
        )
    return tuple(found)


def judge_temporary_folders(
    view: ProcessView, temporary: Path | None = None, prefix: str = PREFIX
) -> tuple[CleanupCandidate, ...]:
    """Decide which temporary folders of this user to remove."""
    found = []
    for folder in list_temporary_folders(temporary or Path(tempfile.gettempdir()), prefix):
        decided = is_folder_orphaned(folder, view)
        if decided is None:
            continue
        goes, reason = decided
        found.append(
            CleanupCandidate(
                kind="scratch",
                name=str(folder),
                removable=goes,
                reason=reason,
                bytes_freed=freed_bytes(folder),
                folder=folder,
            )
        )
    return tuple(found)


def judge_bytecode_folders(cache: Path, policy: CleanupPolicy) -> tuple[CleanupCandidate, ...]:
    """Compiled modules of images; they are removed when no outcome refers to the image."""
    needed = {image.removeprefix("sha256:")[:BYTECODE_CHARACTERS] for image in policy.images if image}
    found = []
    for folder in sorted((cache / "bytecode").glob("*")):
        used = last_change_time(folder)
        if used is None:
            continue
        age = policy.now - used
        goes, reason = True, "no outcome needs its image"
        if policy.cache_in_use:
            goes, reason = False, "a running process uses this cache"
        elif policy.everything:
            reason = "everything was asked for"
        elif folder.name in needed:
            goes, reason = False, "an outcome needs its image"
        elif age < policy.unused_after_s:
            goes, reason = False, f"{reason}, but it is {age / 86400:.1f} days old"
        size = freed_bytes(folder)
        found.append(
            CleanupCandidate(
                kind="bytecode",
                name=folder.name,
                removable=goes,
                reason=reason,
                bytes_freed=size,
                folder=folder,
            )
        )
    return tuple(found)


def judge_engine_resources(
    resources: Sequence[EngineResource], policy: CleanupPolicy, view: ProcessView
) -> tuple[CleanupCandidate, ...]:
    """Decide which containers, networks and images of npu-matrix to remove."""
    needed = _with_parents(resources, policy.images)
    return tuple(
        CleanupCandidate(
            kind=resource.kind,
            name=resource.name or resource.id,
            removable=goes,
            reason=reason,
            bytes_freed=resource.bytes,
            resource=resource,
        )
        for resource in resources
        for goes, reason in [
            _image(resource, needed, policy, view)
            if resource.kind == "image"
            else is_orphaned(resource.labels, view, policy.now)
        ]
    )


def _image(
    resource: EngineResource, needed: Collection[str], policy: CleanupPolicy, view: ProcessView
) -> tuple[bool, str]:
    owner = ProcessOwner.parse(resource.labels.get(OWNER, ""))
    if owner is not None and view.state(owner) == "alive":
        return False, f"its owner, process {owner.pid}, is alive"
    if policy.everything:
        return True, "everything was asked for"
    if resource.id in needed:
        return False, "an outcome needs it"
    days = (policy.now - resource.created) / 86400.0
    if policy.now - resource.created < policy.unused_after_s:
        return False, f"no outcome needs it, but it was built {days:.1f} days ago"
    return True, f"no outcome needs it, and it was built {days:.1f} days ago"


def _with_parents(resources: Sequence[EngineResource], images: Collection[str]) -> set[str]:
    """The ids of these images and of all images below them."""
    below = {
        resource.id: resource.labels.get(PARENT, "") for resource in resources if resource.kind == "image"
    }
    needed: set[str] = set()
    waiting = list(images)
    while waiting:
        one = waiting.pop()
        if one and one not in needed:
            needed.add(one)
            waiting.append(below.get(one, ""))
    return needed


def remove_candidate(found: CleanupCandidate, engine: Engine | None) -> str:
    """Remove a candidate; returns "" or why it could not be removed."""
    if found.environment is not None:
        return remove_environment(found.environment)
    if found.resource is not None and engine is not None:
        try:
            engine.remove(found.resource)
        except HarnessError as error:
            return str(error)
        return ""
    try:
        if found.folder is not None:
            (remove_temporary_folder if found.kind == "scratch" else shutil.rmtree)(found.folder)
        for path in found.paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        return str(error)
    return ""


def remove_environment(environment: StoredEnvironment, in_use: Collection[str] = ()) -> str:
    """Remove an environment; returns "" or why it was not removed."""
    if environment.digest in in_use:
        return "an outcome needs it"
    lock = filelock.FileLock(environment.path.with_suffix(".lock"), timeout=0)
    try:
        with lock:
            # First make it incomplete, so that an interrupted removal leaves nothing that looks complete.
            (environment.path / FINISHED).unlink(missing_ok=True)
            shutil.rmtree(environment.path)
    except filelock.Timeout:
        return "it is being built"
    except OSError as error:
        return str(error)
    return ""


def removal_order(found: Sequence[CleanupCandidate]) -> tuple[CleanupCandidate, ...]:
    """What to remove, in the order that engines need: containers, networks, images from the top."""
    rank = {"container": 0, "network": 1, "image": 2}
    depth = _depths([one.resource for one in found if one.resource is not None and one.kind == "image"])
    return tuple(
        sorted(
            (one for one in found if one.removable),
            key=lambda one: (rank.get(one.kind, 3), -depth.get(one.resource.id if one.resource else "", 0)),
        )
    )


def _depths(images: Sequence[EngineResource]) -> Mapping[str, int]:
    below = {image.id: image.labels.get(PARENT, "") for image in images}

    def depth(one: str) -> int:
        count, seen = 0, set()
        while one in below and one not in seen:
            seen.add(one)
            one, count = below[one], count + 1
        return count

    return {image: depth(image) for image in below}


def has_process_below(folder: Path, proc: Path = Path("/proc/self").parent) -> bool:
    """Whether a process of this host was started from a program below `folder`."""
    start = f"{folder}{os.sep}"
    for entry in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if any(word.decode(errors="replace").startswith(start) for word in words):
                return True
    return False


def _last_use(folder: Path) -> float:
    """When it was built or last started; each start of its interpreter reads `pyvenv.cfg`."""
    times = [folder.stat().st_mtime]
    for name in (FINISHED, "venv/pyvenv.cfg"):
        with contextlib.suppress(OSError):
            status = (folder / name).stat()
            times += [status.st_mtime, status.st_atime]
    return max(times)


def walk_contents(entry: Path) -> Iterator[Path]:
    """A path and everything below it. Unlike `rglob` it does not fail when files are removed meanwhile."""
    yield entry
    for folder, folders, files in os.walk(entry):
        yield from (Path(folder, name) for name in (*folders, *files))


def freed_bytes(entry: Path) -> int:
    """The bytes that removing a file or folder frees; files with other links free nothing."""
    total = 0
    for path in walk_contents(entry):
        with contextlib.suppress(OSError):
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
    return total
