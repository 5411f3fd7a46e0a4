"""Survival of patches over a range of commits: the verdict on each patch at each commit.

A verdict is computed once for every distinct pair of a patch and the content of its files. A commit that does
not change these files costs only a table look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.errors import InfrastructureError
from harness.patchstack.apply.classify import LoadedPatch, classify
from harness.patchstack.apply.patch_verdict import SEVERITY, ClassifiedPatch, PatchVerdict
from harness.patchstack.stacks.patch_selection import VariantGroup
from harness.serialisation import JsonValue
from harness.sources.git.commit_history import FOLDER, Commit, PathEntry, PathFinder, commits_in, one_commit
from harness.sources.git.git_repository import Repository
from harness.sources.tree import EXECUTABLE, REGULAR, SYMLINK, Tree

LEGEND = tuple(verdict.value for verdict in PatchVerdict)
_INDEX = {verdict: number for number, verdict in enumerate(PatchVerdict)}
#: File contents cached while walking a range; neighbouring commits and patches share most of them.
_CACHED_FILES = 256


@dataclass(frozen=True, kw_only=True)
class VerdictChange:
    """A commit that broke or fixed a patch: the verdicts on its first parent and on itself."""

    commit: Commit
    before: PatchVerdict
    after: PatchVerdict

    def to_json(self) -> dict[str, JsonValue]:
        """The commit and both verdicts."""
        return {**self.commit.to_json(), "from": self.before.value, "to": self.after.value}


@dataclass(frozen=True, kw_only=True)
class VariantHistory:
    """One variant of a patch over the range: its file, its versions, and a verdict for each commit."""

    file: str
    versions: str
    verdicts: tuple[PatchVerdict, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """The verdicts as indexes into the legend, newest commit first."""
        return {
            "file": self.file,
            "versions": self.versions,
            "verdicts": [_INDEX[verdict] for verdict in self.verdicts],
        }


@dataclass(frozen=True, kw_only=True)
class PatchHistory:
    """One patch over the range.

    verdicts: for each commit, newest first, the best verdict of the variants.
    breaks, fixes: commits that broke and fixed the patch compared with their first parent, oldest first.
    newest: the full verdict on the newest commit.
    """

    patch: str
    verdicts: tuple[PatchVerdict, ...]
    breaks: tuple[VerdictChange, ...]
    fixes: tuple[VerdictChange, ...]
    newest: ClassifiedPatch
    variants: tuple[VariantHistory, ...] = ()

    @property
    def share(self) -> float:
        """The fraction of the commits to which the patch applies, 0 to 1."""
        return sum(verdict.applies for verdict in self.verdicts) / len(self.verdicts)


@dataclass(frozen=True, kw_only=True)
class Survival:
    """All patches over all commits, newest first.

    pairs: the number of (patch, commit) pairs. distinct: the number of verdicts that were computed for them.
    """

    revisions: str
    commits: tuple[Commit, ...]
    patches: tuple[PatchHistory, ...]
    pairs: int
    distinct: int

    def to_json(self) -> dict[str, JsonValue]:
        """Commits, newest first, and for each patch one index into `legend` per commit."""
        return {
            "schema": {"name": "npu-matrix/survival", "version": 1},
            "range": self.revisions,
            "commits": [commit.to_json() for commit in self.commits],
            "legend": list(LEGEND),
            "patches": [
                {
                    "id": patch.patch,
                    "verdicts": [_INDEX[verdict] for verdict in patch.verdicts],
                    "applies_to": round(patch.share, 4),
                    "first_break": patch.breaks[0].to_json() if patch.breaks else None,
                    "first_fix": patch.fixes[0].to_json() if patch.fixes else None,
                    "breaks": [change.to_json() for change in patch.breaks],
                    "fixes": [change.to_json() for change in patch.fixes],
                    "newest": patch.newest.to_json(),
                    "bodies": [variant.to_json() for variant in patch.variants],
                }
                for patch in self.patches
            ],
            "pairs": self.pairs,
            "distinct": self.distinct,
        }


def survival_of_commits(
    repository: Repository,
    revisions: str,
    patches: Sequence[LoadedPatch],
    progress: Callable[[int, int], None] | None = None,
    logical: Sequence[VariantGroup] = (),
) -> Survival:
    """The verdict on every patch at every commit of `revisions` (`A..B`).

    logical: groups of variants that have one history each. `progress` is called with (done, total).
    InputError if the repository or a revision cannot be read, or the range is empty.
    """
    commits = commits_in(repository, revisions)
    table = _Table(repository, patches)
    by_id = {}
    all_commits = [*commits, *_parents_outside(repository, commits)]
    repository.fetch_absent(table.contents(all_commits))
    for number, commit in enumerate(all_commits, start=1):
        by_id[commit.id] = table.column(commit)
        if progress:
            progress(number, len(commits))
    newest = verdicts_at(repository, commits[0].id, patches)
    return _assembled(revisions, commits, patches, by_id, newest, table.distinct, logical)


def survival_of_releases(
    name: str,
    releases: Sequence[tuple[str, Tree]],
    patches: Sequence[LoadedPatch],
    logical: Sequence[VariantGroup] = (),
) -> Survival:
    """The same for releases instead of commits. releases: (version, tree), newest first."""
    commits = tuple(
        Commit(id=version, parents=parents, tree="", date="", subject=f"{name} {version}")
        for (version, _tree), parents in zip(
            releases, [*((older,) for older, _tree in releases[1:]), ()], strict=True
        )
    )
    by_id = {
        version: tuple(classify(patch, tree, explain=False) for patch in patches)
        for version, tree in releases
    }
    newest = tuple(classify(patch, releases[0][1]) for patch in patches)
    return _assembled(name, commits, patches, by_id, newest, len(releases) * len(patches), logical)


def _assembled(
    revisions: str,
    commits: tuple[Commit, ...],
    patches: Sequence[LoadedPatch],
    by_id: Mapping[str, tuple[ClassifiedPatch, ...]],
    newest: tuple[ClassifiedPatch, ...],
    distinct: int,
    logical: Sequence[VariantGroup],
) -> Survival:
    groups = logical or [
        VariantGroup(name=patch.name, variants=((at, ""),)) for at, patch in enumerate(patches)
    ]
    columns = {id(column): tuple(_best(column, group) for group in groups) for column in by_id.values()}
    best = {commit: columns[id(column)] for commit, column in by_id.items()}
    changed = list(_changes(commits, best))
    histories = []
    for number, group in enumerate(groups):
        verdict_changes = [
            change
            for commit, before, after in changed
            if (change := _verdict_change(commit, before[number], after[number]))
        ]
        histories.append(
            PatchHistory(
                patch=group.name,
                verdicts=tuple(best[commit.id][number].verdict for commit in commits),
                breaks=tuple(change for change in verdict_changes if change.before.applies),
                fixes=tuple(change for change in verdict_changes if change.after.applies),
                newest=_best(newest, group),
                variants=tuple(
                    VariantHistory(
                        file=patches[at].name,
                        versions=versions,
                        verdicts=tuple(by_id[commit.id][at].verdict for commit in commits),
                    )
                    for at, versions in (group.variants if logical else ())
                ),
            )
        )
    return Survival(
        revisions=revisions,
        commits=commits,
        patches=tuple(histories),
        pairs=len(commits) * len(patches),
        distinct=distinct,
    )


def _best(column: tuple[ClassifiedPatch, ...], group: VariantGroup) -> ClassifiedPatch:
    """The best verdict of the variants, because the variant that fits is applied."""
    return min(
        (column[at] for at, _versions in group.variants), key=lambda classified: SEVERITY[classified.verdict]
    )


def verdicts_at(
    repository: Repository, revision: str, patches: Sequence[LoadedPatch]
) -> tuple[ClassifiedPatch, ...]:
    """The verdict on each patch alone at one commit, with reasons."""
    return _Table(repository, patches, explain=True).column(one_commit(repository, revision))


def _parents_outside(repository: Repository, commits: tuple[Commit, ...]) -> list[Commit]:
    """The first parents of the range's oldest commits, which are outside the range."""
    inside = {commit.id for commit in commits}
    parents = {commit.parents[0] for commit in commits if commit.parents} - inside
    return [one_commit(repository, commit) for commit in sorted(parents) if repository.has(commit)]


def _changes(
    commits: Sequence[Commit], by_id: Mapping[str, tuple[ClassifiedPatch, ...]]
) -> Iterator[tuple[Commit, tuple[ClassifiedPatch, ...], tuple[ClassifiedPatch, ...]]]:
    """Commits whose verdicts differ from those of the first parent, oldest first, with both columns."""
    for commit in reversed(commits):
        before = by_id.get(commit.parents[0]) if commit.parents else None
        after = by_id[commit.id]
        if before is not None and before is not after:
            yield commit, before, after


def _verdict_change(commit: Commit, before: ClassifiedPatch, after: ClassifiedPatch) -> VerdictChange | None:
    if before.verdict.applies == after.verdict.applies:
        return None
    return VerdictChange(commit=commit, before=before.verdict, after=after.verdict)


class _Table:
    """Verdicts, cached by patch and by the content of the files that the patch touches."""

    def __init__(
        self, repository: Repository, patches: Sequence[LoadedPatch], *, explain: bool = False
    ) -> None:
        self._explain = explain
        self._patches = patches
        paths = [patch.patch.paths if patch.patch else () for patch in patches]
        self._finder = PathFinder(repository, sorted({path for some in paths for path in some}))
        self._keys = paths
        self._known: list[dict[tuple[PathEntry | None, ...], ClassifiedPatch]] = [{} for _ in patches]
        self._columns: dict[int, tuple[ClassifiedPatch, ...]] = {}
        #: Blob id -> file content.
        self.blob = lru_cache(maxsize=_CACHED_FILES)(repository.blob)

    @property
    def distinct(self) -> int:
        """How many verdicts were computed."""
        return sum(len(known) for known in self._known)

    def contents(self, commits: Iterable[Commit]) -> Iterator[str]:
        """The ids of all files of these commits that the verdicts read, some of them several times."""
        for commit in commits:
            yield from (entry.id for entry in self._finder.find(commit.tree).values() if entry.id)

    def column(self, commit: Commit) -> tuple[ClassifiedPatch, ...]:
        """The verdict on every patch at one commit; commits with equal relevant files share one object."""
        entries = self._finder.find(commit.tree)
        column = self._columns.get(id(entries))
        if column is None:
            column = tuple(self._verdict(number, entries, commit) for number in range(len(self._patches)))
            self._columns[id(entries)] = column
        return column

    def _verdict(self, number: int, entries: Mapping[str, PathEntry], commit: Commit) -> ClassifiedPatch:
        key = tuple(map(entries.get, self._keys[number]))
        known = self._known[number].get(key)
        if known is None:
            tree = _PartialTree(label=commit.id[:12], entries=entries, blobs=self)
            known = classify(self._patches[number], tree, self, explain=self._explain)
            self._known[number][key] = known
        return known


@dataclass(frozen=True, kw_only=True)
class _PartialTree:
    """The part of a commit's tree that the patches read."""

    label: str
    entries: Mapping[str, PathEntry]
    blobs: _Table

    def paths(self) -> Iterator[str]:
        return (path for path, entry in self.entries.items() if entry.mode != FOLDER)

    def mode(self, path: str) -> str | None:
        entry = self.entries.get(path)
        if entry is None or entry.mode == FOLDER:
            return None
        if entry.mode == SYMLINK:
            return SYMLINK
        return EXECUTABLE if entry.mode == EXECUTABLE else REGULAR

    def is_folder(self, path: str) -> bool:
        entry = self.entries.get(path)
        return entry is not None and entry.mode == FOLDER

    def read(self, path: str) -> bytes:
        entry = self.entries[path]
        data = self.blobs.blob(entry.id)
        if data is None:
            raise InfrastructureError(
                f"{path} of commit {self.label} is not in this repository",
                why=f"the object {entry.id} is missing: a partial or damaged clone",
                fix="fetch the missing objects (`git fetch --refetch`), or use a full mirror",
            )
        return data
