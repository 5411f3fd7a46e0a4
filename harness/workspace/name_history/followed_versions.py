"""The releases of a consumer and the versions of a provider, from clones or from the package index."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from harness.code_graph.stored_facts import code_digest
from harness.compat.api.consumers import CONSUMERS
from harness.compat.api.last_release import earlier_releases
from harness.compat.name_survival.file_index import FileIndex
from harness.compat.name_survival.name_survival import (
    ConsumerRelease,
    NameSurvival,
    ProviderVersion,
    overridden_methods,
    survival_of_names,
)
from harness.compat.name_survival.tree_surface import TreeSurface
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.package_uses import find_uses
from harness.compat.uses.use import Use
from harness.digest import digest_bytes, digest_file
from harness.errors import InputError, Location
from harness.matrix.cells.pins import normal_package
from harness.matrix.model.definitions import Axis
from harness.matrix.version_matrix import Matrix
from harness.settings import Settings
from harness.sources.git.commit_history import commits_in, one_commit
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_clone, mirror_folders
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import progress_logger, run_quietly
from harness.workspace.patches.patch_target import matrix_versions

#: Folders of a repository in which its packages are.
_SOURCE_FOLDERS = ("", "src/", "python/")
NEWEST_RELEASES = 20


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A consumer or provider. package: its name, or that of the axis. clone: None without one."""

    package: str
    axis: Axis | None
    clone: Repository | None

    @property
    def top(self) -> str:
        """The top-level name to import."""
        return self.package.replace("-", "_")


class NameHistory:
    """Follows the uses of a consumer over versions of a provider."""

    def __init__(self, settings: Settings, matrix: Matrix) -> None:
        self._settings, self._matrix = settings, matrix
        self._surfaces: dict[Path, ApiSurface] = {}

    def survival(
        self, consumer: str, provider: str, revisions: str, releases: Sequence[str], count: int
    ) -> NameSurvival:
        """The history. releases: versions or revisions of the consumer; () for the newest `count` ones.

        revisions: A..B, commits of a clone of the provider or releases. InputError if one is not known.
        """
        user, giver = self.find(consumer), self.find(provider)
        chosen = list(releases) or self._newest(user, count)
        if not chosen:
            raise InputError(
                f"no release of {consumer} is known",
                why="there is no clone of it, and the matrix has no version of it",
                fix="name versions with --release, or run npu-matrix mirrors update",
            )
        first, dots, last = revisions.partition("..")
        if not dots or not first:
            raise InputError(f"{revisions!r} is not a range", fix="write A..B, such as 0.11.0..0.13.0")
        known = [self._release(user, giver, name, first) for name in chosen]
        found = [one for one in known if one is not None]
        if not found:
            raise InputError(f"no sources of {consumer} are available", fix="npu-matrix mirrors update")
        versions, read = self._versions(giver, first, last)
        files = FileIndex(read, self._cache, methods=overridden_methods(found))
        files.load(content for version in versions for content in version.changes.values() if content)
        show = progress_logger(f"{consumer} on {provider}, versions")
        try:
            return survival_of_names(
                consumer,
                giver.package,
                revisions,
                found,
                versions,
                TreeSurface(files, [giver.top]),
                lambda done: show(done, len(versions)),
            )
        finally:
            files.save()

    def find(self, name: str) -> Followed:
        """A package, an axis of the matrix, or the folder of a clone."""
        folder = Path(name)
        if "/" in name and folder.is_dir():
            return Followed(package=folder.name.removesuffix(".git"), axis=None, clone=Repository(folder))
        axes = self._matrix.axes
        wanted = normal_package(name)
        axis = next(
            (
                one
                for key, one in axes.items()
                if wanted in {normal_package(key), normal_package(one.package)}
            ),
            None,
        )
        clone = find_clone(mirror_folders(), axis.repository) if axis and axis.repository else None
        return Followed(
            package=normal_package(axis.package or name) if axis else wanted, axis=axis, clone=clone
        )

    def _newest(self, user: Followed, count: int) -> list[str]:
        """The newest versions of the matrix, oldest first, and the head of the clone."""
        name = user.axis.name if user.axis else user.package
        known = [one.partition("@")[0] for one in matrix_versions(self._settings, name)]
        tags = self._tagged(user)
        versions = sorted({*known, *tags}, key=_order)[-count:] if user.axis else []
        return [*versions, *(["HEAD"] if user.clone else [])][-count:]

    def _tagged(self, user: Followed) -> list[str]:
        """The versions of the tags of the clone."""
        if user.clone is None or user.axis is None or not user.axis.tag:
            return []
        before, _, after = user.axis.tag.partition("{version}")
        names = (tag for tag in user.clone.tags() if tag.startswith(before) and tag.endswith(after))
        texts = [name[len(before) : len(name) - len(after)] for name in names]
        return [text for text in texts if _is_version(text)]

    def _release(self, user: Followed, giver: Followed, name: str, start: str) -> ConsumerRelease | None:
        file = self._sources(user, name)
        if file is None:
            return None
        surface = ApiSurface(file)
        uses = self._cache.get(
            "uses-of",
            [digest_file(file), giver.top],
            tuple[Use, ...],
            lambda: find_uses(surface, {giver.top}, self._cache).uses,
        )
        made_for = self._made_for(user, giver, name) or self._sources(giver, start)
        return ConsumerRelease(
            label=f"{user.package} {name}",
            surface=surface,
            uses=uses,
            made_for=self._surface(made_for) if made_for else None,
        )

    def _surface(self, file: Path) -> ApiSurface:
        if file not in self._surfaces:
            self._surfaces[file] = ApiSurface(file)
        return self._surfaces[file]

    def _made_for(self, user: Followed, giver: Followed, name: str) -> Path | None:
        consumer = next((one for one in CONSUMERS if one.package == user.package), None)
        version = consumer.made_for(name).get(giver.package) if consumer and _is_version(name) else None
        return self._sources(giver, version) if version else None

    def _sources(self, one: Followed, name: str) -> Path | None:
        """The sources of a version or revision as a zip; None if they are not available."""
        if one.clone is not None:
            commit = self._commit(one, name)
            if commit:
                found = self._fetcher_of(one.clone).commit(commit)
                return found.file if found else None
        if not _is_version(name):
            return None
        release = self._fetcher.find(one.package, name)
        return release.file if release else None

    def _commit(self, one: Followed, name: str) -> str:
        """The commit of a revision or of the tag of a version, "" if the clone has none."""
        clone = one.clone
        if clone is None:
            return ""
        tag = one.axis.tag.format_map({"version": name}) if one.axis and one.axis.tag else ""
        if tag and clone.has_tag(tag):
            return clone.commit(tag)
        try:
            return clone.commit(name)
        except InputError:
            return ""

    def _fetcher_of(self, clone: Repository) -> ReleaseFetcher:
        return ReleaseFetcher(
            cache=self._settings.cache, command=run_quietly, mirrors=(clone.path.parent, *mirror_folders())
        )

    @cached_property
    def _fetcher(self) -> ReleaseFetcher:
        return ReleaseFetcher(cache=self._settings.cache, command=run_quietly, mirrors=mirror_folders())

    @cached_property
    def _cache(self) -> AnalysisCache:
        return AnalysisCache(folder=self._settings.cache / "pairs", code=_history_code())

    def _versions(
        self, giver: Followed, first: str, last: str
    ) -> tuple[Sequence[ProviderVersion], Callable[[str], bytes]]:
        """The versions, oldest first, with the function that reads a content."""
        start, end = self._commit(giver, first), self._commit(giver, last or "HEAD")
        if giver.clone is not None and start and end:
            return [*_commits(giver.clone, giver.top, start, end)], partial(_blob, giver.clone)
        if not (_is_version(first) and _is_version(last)):
            raise InputError(
                f"{giver.package} has no revision {first if not start else last!r}",
                why="there is no clone of it that has it" if giver.clone else "there is no clone of it",
                fix="npu-matrix mirrors update, --mirrors FOLDER, or releases such as 0.11.0..0.13.0",
            )
        releases = _Releases(self._fetcher, giver.package, first, last)
        return [*releases.versions()], releases.read


def _commits(clone: Repository, top: str, start: str, end: str) -> Iterator[ProviderVersion]:
    """The commit `start` and those of `start..end`, each with its changes to the tree of the one before."""
    commits = [one_commit(clone, start), *reversed(commits_in(clone, f"{start}..{end}"))]
    numbers = {commit.id: number for number, commit in enumerate(commits)}
    folder = _source_folder(clone, end, top)
    before: Any = None
    for commit in commits:
        tree = clone.objects[commit.tree]
        yield ProviderVersion(
            id=commit.id,
            date=commit.date,
            subject=commit.subject,
            changes=_changed_files(tree, before, folder),
            parent=numbers.get(commit.parents[0], -1) if commit.parents and before is not None else -1,
        )
        before = tree


def _source_folder(clone: Repository, commit: str, top: str) -> str:
    tree = clone.tree(commit)
    for folder in _SOURCE_FOLDERS:
        if tree.is_folder(f"{folder}{top}"):
            return folder
    raise InputError(
        f"this repository has no package {top}",
        where=Location(clone.path),
        why=f"none of {', '.join(f'{folder}{top}' for folder in _SOURCE_FOLDERS)} is a folder",
        fix="name a repository of Python sources",
    )


def _changed_files(tree: Any, before: Any, folder: str) -> dict[str, str | None]:
    """Path below the folder -> content id, for files that differ from the tree before."""
    found: dict[str, str | None] = {}
    delta = before.diff_to_tree(tree) if before is not None else tree.diff_to_tree(swap=True)
    for one in delta.deltas:
        for file, is_new in ((one.old_file, False), (one.new_file, True)):
            path = file.path
            if path.endswith(".py") and path.startswith(folder):
                name = path[len(folder) :]
                missing = not is_new or one.status_char() == "D"
                if missing:
                    found.setdefault(name, None)
                else:
                    found[name] = str(file.id)
    return found


@cache
def _history_code() -> str:
    """Digest of the code that the stored facts were computed by."""
    return code_digest("harness.compat.name_survival*")


def _blob(clone: Repository, blob_id: str) -> bytes:
    return clone.blob(blob_id) or b""


class _Releases:
    """Releases of a package as versions; contents are named by release and member."""

    def __init__(self, fetcher: ReleaseFetcher, package: str, first: str, last: str) -> None:
        self._fetcher, self._package = fetcher, package
        self._first, self._last = first, last
        self._zips: dict[str, zipfile.ZipFile] = {}
        self._places: dict[str, tuple[str, str]] = {}

    def versions(self) -> Iterator[ProviderVersion]:
        """Final releases from the first to the last version, both included."""
        between = [
            text
            for text in earlier_releases(self._package, self._last, self._fetcher)
            if Version(text) > Version(self._first)
        ]
        known: Mapping[str, tuple[int, int]] = {}
        number = 0
        for text in (self._first, *between, self._last):
            sources = self._fetcher.find(self._package, text)
            if sources is None:
                continue
            contents = self._contents(text, sources.file)
            changes: dict[str, str | None] = {path: None for path in known if path not in contents}
            changes |= {
                path: self._content_id(text, path)
                for path, content in contents.items()
                if known.get(path) != content
            }
            yield ProviderVersion(
                id=text, date="", subject=f"{self._package} {text}", changes=changes, parent=number - 1
            )
            known, number = contents, number + 1

    def _contents(self, version: str, file: Path) -> dict[str, tuple[int, int]]:
        """The checksum and size of each member. Equal ones of one path are an equal file."""
        archive = zipfile.ZipFile(file)
        self._zips[version] = archive
        return {
            info.filename: (info.CRC, info.file_size)
            for info in archive.infolist()
            if info.filename.endswith(".py")
        }

    def _content_id(self, version: str, path: str) -> str:
        content = digest_bytes(self._zips[version].read(path))
        self._places.setdefault(content, (version, path))
        return content

    def read(self, content: str) -> bytes:
        """The text with this digest."""
        version, path = self._places[content]
        return self._zips[version].read(path)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _order(text: str) -> Version:
    return Version(text) if _is_version(text) else Version("0")
