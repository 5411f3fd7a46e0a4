"""Finds what killed runs left and what no outcome needs, decides what to remove, and removes it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from harness.builds.cell.container_environment import BYTECODE_CHARACTERS
from harness.builds.cell.environment_files import FINISHED
from harness.builds.engines.engine import Engine, EngineResource
from harness.builds.ownership.owner_labels import OWNER, PARENT, ProcessOwner, ProcessView, is_orphaned
from harness.builds.ownership.temporary_folders import (
    ABANDONED_AFTER_S,
    is_folder_orphaned,
    last_change_time,
    list_temporary_folders,
    remove_temporary_folder,
    temporary_parents,
)
from harness.errors import HarnessError

# Folders that are renamed when they are complete, which takes minutes at most.
UNFINISHED = (
    *("bundle/.bundle-*", "sim/.build-*", "sim/*/toolkit/.toolkit-*", ".libraries-*"),
    *("sources/.fetching-*", "sources/*/.fetching-*", "wheels/.fetching-*"),
)
DAY_SECONDS = 86400.0
UNUSED_AFTER_S = 14 * DAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class CleanupCandidate:
    """Something that cleanup may remove, with the decision and its reason.

    paths: the files and folders to remove. resource: the container, network or image to remove.
    bytes_freed: what the removal frees, without files that are also linked from elsewhere.
    """

    kind: str
    name: str
    removable: bool
    reason: str
    bytes_freed: int = 0
    resource: EngineResource | None = None
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CleanupPolicy:
    """What to keep.

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

    def judge(self, *, is_needed: bool, last_use: float, event: str = "last used") -> tuple[bool, str]:
        """Whether to remove something, and why or why not.

        is_needed: whether an outcome refers to it. last_use: Unix time of `event`.
        """
        if self.everything:
            return True, "removal of everything was requested"
        if is_needed:
            return False, "an outcome needs it"
        age = self.now - last_use
        return (
            age >= self.unused_after_s,
            f"no outcome needs it; it was {event} {age / DAY_SECONDS:.1f} days ago",
        )

    def judge_cached(self, *, is_needed: bool, last_use: float, event: str = "last used") -> tuple[bool, str]:
        """`judge` for entries of the cache, which are kept while a process uses the cache."""
        if self.cache_in_use:
            return False, "a running process uses this cache"
        return self.judge(is_needed=is_needed, last_use=last_use, event=event)


def judge_environments(cache: Path, policy: CleanupPolicy) -> tuple[CleanupCandidate, ...]:
    """Decide which environments below `cache` to remove."""
    folders = [folder for folder in sorted((cache / "cells").glob("*")) if folder.is_dir()]
    return tuple(
        _folder_candidate("environment", folder, _judge_environment(folder, policy)) for folder in folders
    )


def _judge_environment(folder: Path, policy: CleanupPolicy) -> tuple[bool, str]:
    if not (folder / FINISHED).is_file():
        removable, reason = True, "its build was never completed"
    else:
        removable, reason = policy.judge_cached(
            is_needed=folder.name in policy.environments, last_use=_last_start(folder)
        )
    return (False, "a process runs in it") if removable and has_process_below(folder) else (removable, reason)


def _folder_candidate(
    kind: str, folder: Path, decision: tuple[bool, str], name: str = ""
) -> CleanupCandidate:
    removable, reason = decision
    return CleanupCandidate(
        kind=kind,
        name=name or folder.name,
        removable=removable,
        reason=reason,
        bytes_freed=freed_bytes(folder),
        paths=(folder,),
    )


def judge_unfinished_folders(cache: Path, policy: CleanupPolicy) -> tuple[CleanupCandidate, ...]:
    """Incomplete folders below `cache`; those that are too old to be completed can be removed."""
    candidates = []
    for folder in [folder for pattern in UNFINISHED for folder in sorted(cache.glob(pattern))]:
        changed = last_change_time(folder)
        if changed is None:
            continue
        age = policy.now - changed
        removable = age > ABANDONED_AFTER_S and folder.is_dir() and not folder.is_symlink()
        reason = f"started {age / 3600:.1f} hours ago and never completed"
        name = str(folder.relative_to(cache))
        candidates.append(_folder_candidate("folder", folder, (removable, reason), name))
    return tuple(candidates)


def judge_temporary_folders(view: ProcessView, temporary: Path | None = None) -> tuple[CleanupCandidate, ...]:
    """Decide which temporary folders of this user to remove."""
    parents = (temporary,) if temporary else temporary_parents()
    return tuple(
        _folder_candidate("scratch", folder, decision, str(folder))
        for parent in parents
        for folder in list_temporary_folders(parent)
        if (decision := is_folder_orphaned(folder, view)) is not None
    )


def judge_bytecode_folders(cache: Path, policy: CleanupPolicy) -> tuple[CleanupCandidate, ...]:
    """Decide which folders with the compiled modules of an image to remove."""
    needed = {image.removeprefix("sha256:")[:BYTECODE_CHARACTERS] for image in policy.images if image}
    candidates = []
    for folder in sorted((cache / "bytecode").glob("[!.]*")):
        changed = last_change_time(folder)
        if changed is not None:
            decision = policy.judge_cached(
                is_needed=folder.name in needed, last_use=changed, event="last changed"
            )
            candidates.append(_folder_candidate("bytecode", folder, decision))
    return tuple(candidates)


def judge_engine_resources(
    resources: Sequence[EngineResource], policy: CleanupPolicy, view: ProcessView
) -> tuple[CleanupCandidate, ...]:
    """Decide which containers, networks and images of npu-matrix to remove."""
    parents = _image_parents(resources)
    needed = {ancestor for image in policy.images for ancestor in _with_ancestors(image, parents)}
    return tuple(
        CleanupCandidate(
            kind=resource.kind,
            name=resource.name or resource.id,
            removable=removable,
            reason=reason,
            bytes_freed=resource.bytes,
            resource=resource,
        )
        for resource in resources
        for removable, reason in [
            _judge_image(resource, needed, policy, view)
            if resource.kind == "image"
            else is_orphaned(resource.labels, view, policy.now)
        ]
    )


def _judge_image(
    resource: EngineResource, needed: Collection[str], policy: CleanupPolicy, view: ProcessView
) -> tuple[bool, str]:
    owner = ProcessOwner.parse(resource.labels.get(OWNER, ""))
    if owner is not None and view.state(owner) == "alive":
        return False, f"its owner, process {owner.pid}, is alive"
    return policy.judge(is_needed=resource.id in needed, last_use=resource.created, event="created")


def _image_parents(resources: Sequence[EngineResource]) -> dict[str, str]:
    """Image id -> id of the image that it was built on, "" if that is not known."""
    return {image.id: image.labels.get(PARENT, "") for image in resources if image.kind == "image"}


def _with_ancestors(image: str, parents: Mapping[str, str]) -> list[str]:
    """An image id and the ids of all images below it."""
    chain: list[str] = []
    while image and image not in chain:
        chain.append(image)
        image = parents.get(image, "")
    return chain


def remove_candidate(candidate: CleanupCandidate, engine: Engine | None) -> str:
    """Remove a candidate; returns "" or why it could not be removed."""
    try:
        if candidate.resource is not None and engine is not None:
            engine.remove(candidate.resource)
        for path in candidate.paths:
            if candidate.kind == "environment":
                _remove_environment(path)
            elif candidate.kind == "scratch":
                remove_temporary_folder(path)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except filelock.Timeout:
        return "it is being built"
    except (HarnessError, OSError) as error:
        return str(error)
    return ""


def _remove_environment(folder: Path) -> None:
    with filelock.FileLock(folder.with_suffix(".lock"), timeout=0):
        # First make it incomplete, so that an interrupted removal leaves nothing that looks complete.
        (folder / FINISHED).unlink(missing_ok=True)
        shutil.rmtree(folder)


def removal_order(candidates: Sequence[CleanupCandidate]) -> tuple[CleanupCandidate, ...]:
    """The removable candidates in the order that engines require; images from the top layer down."""
    rank = {"container": 0, "network": 1, "image": 2}
    parents = _image_parents([one.resource for one in candidates if one.resource is not None])

    def position(one: CleanupCandidate) -> tuple[int, int]:
        depth = len(_with_ancestors(one.resource.id, parents)) if one.resource is not None else 0
        return rank.get(one.kind, 3), -depth

    return tuple(sorted((one for one in candidates if one.removable), key=position))


def has_process_below(folder: Path) -> bool:
    """Whether a process of this host was started from a program below `folder`."""
    start = f"{folder}{os.sep}"
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if any(word.decode(errors="replace").startswith(start) for word in words):
                return True
    return False


def _last_start(folder: Path) -> float:
    """When an environment was built or last started; each start of its interpreter reads `pyvenv.cfg`."""
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
