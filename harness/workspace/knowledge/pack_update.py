"""Adds the releases that a package index lists to a surface pack, and can be interrupted at any time."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.compat.knowledge.pack_build import BuildPlan, PackageBuild, known_files
from harness.compat.knowledge.pack_file import PackagedFiles, PackFile, write_pack
from harness.errors import HarnessError
from harness.gc_pause import gc_paused
from harness.sources.packages.index_listing import ListedRelease, listed_releases
from harness.sources.packages.index_settings import IndexSettings
from harness.sources.packages.release_fetcher import ReleaseFetcher, Sources, portability
from harness.workspace.downloads import run_quietly
from harness.workspace.knowledge.tagged_releases import tagged_releases

#: The packages of the stack, those whose releases are read fastest first.
PACKAGES = (
    *("vllm-ascend", "verl", "mbridge", "mindspeed", "tensordict", "peft", "accelerate", "triton-ascend"),
    *("triton", "torchvision", "torchaudio", "megatron-core", "torch-npu", "vllm", "transformers", "ray"),
    *("numpy", "torch"),
)
SINCE = "2024-01-01"
#: Of the years before, the last release of each minor release: since when an old name exists.
MINORS_YEARS = 2
#: What was read of a package is written to the pack at least this often, in seconds.
CHECKPOINT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class UpdateRequest:
    """What to read. seconds: how long to read; the releases that remain are read by the next update.

    mirrors: folders of clones, for packages whose releases are tags. began_with: see `PackFile.began_with`.
    """

    packages: tuple[str, ...] = PACKAGES
    mirrors: tuple[Path, ...] = ()
    began_with: str = ""
    since: str = SINCE
    seconds: float = float("inf")


@dataclass(kw_only=True)
class PackageUpdate:
    """What became of one package. problem: why its releases could not be listed, or ""."""

    package: str
    added: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    problem: str = ""


#: Called with a package and what has just happened.
Progress = Callable[[str, str], None]


def update_pack(
    target: Path, start: Path | None, request: UpdateRequest, settings: IndexSettings, progress: Progress
) -> list[PackageUpdate]:
    """Add the releases of an index to the pack `target`.

    start: the pack to begin with, None for an empty one. The pack is replaced in one step after each package,
    and every few minutes within one; after an interruption the next update continues there.
    """
    deadline = time.monotonic() + request.seconds
    minors_since = f"{int(request.since[:4]) - MINORS_YEARS:04}{request.since[4:]}"
    plan = BuildPlan(since=request.since, minors_since=minors_since, deadline=deadline)
    done = []
    for package in request.packages:
        tagged = tagged_releases(package, request.mirrors)
        try:
            listed = tagged.releases if tagged else listed_releases(package, settings)
        except HarnessError as error:
            done.append(PackageUpdate(package=package, problem=str(error).splitlines()[0]))
            progress(package, done[-1].problem)
            continue
        with gc_paused(), tempfile.TemporaryDirectory(prefix="surfaces-") as folder:
            fetcher = ReleaseFetcher(cache=Path(folder), command=run_quietly, mirrors=request.mirrors)
            commits = tagged.commits if tagged else {}
            one = _PackageUpdater(package, target, start, fetcher, commits, progress, request.began_with)
            done.append(one.update(listed, plan))
        start = target if target.is_file() else start
    return done


class _PackageUpdater:
    """Reads the releases of one package and writes them to the pack."""

    def __init__(
        self,
        package: str,
        target: Path,
        start: Path | None,
        fetcher: ReleaseFetcher,
        commits: Mapping[str, str],
        progress: Progress,
        began_with: str,
    ) -> None:
        self._began_with = began_with
        self._package, self._target, self._start = package, target, start
        self._fetcher, self._commits, self._progress = fetcher, commits, progress
        self._written = time.monotonic()
        self._stored: PackagedFiles | None = None
        self._update = PackageUpdate(package=package)

    def update(self, listed: Sequence[ListedRelease], plan: BuildPlan) -> PackageUpdate:
        known = known_files(_opened(self._start), self._package)
        before = _read_versions(known)
        self._stored = known
        build = PackageBuild(
            self._package, known, self._fetch, plan, lambda text: self._reported(text, build)
        )
        try:
            build.add(listed)
        finally:
            # Also after Ctrl-C: what was read is kept.
            self._write(build)
        found = build.files()
        self._update.added = [one for one in _read_versions(found) if one not in before]
        self._update.unread = [one.version for one in found.releases if one.unread]
        return self._update

    def _fetch(self, release: ListedRelease) -> Sources:
        commit = self._commits.get(release.version, "")
        if commit and (found := self._fetcher.commit(commit)):
            return found
        files = sorted(release.files, key=portability)
        return self._fetcher.sources_of_files(self._package, release.version, files)

    def _reported(self, text: str, build: PackageBuild) -> None:
        self._progress(self._package, text)
        # Downloaded files are not needed any more; all releases together would fill a disk.
        shutil.rmtree(self._fetcher.cache / "sources", ignore_errors=True)
        if time.monotonic() - self._written > CHECKPOINT_S:
            self._write(build)

    def _write(self, build: PackageBuild) -> None:
        files = build.files()
        if files != self._stored and files.releases:
            write_pack(self._target, {self._package: files}, _opened(self._start), self._began_with)
            self._start, self._stored = self._target, files
        self._written = time.monotonic()


def _opened(file: Path | None) -> PackFile | None:
    return PackFile(file) if file is not None else None


def _read_versions(files: PackagedFiles | None) -> list[str]:
    return [one.version for one in files.releases if not one.unread] if files else []
