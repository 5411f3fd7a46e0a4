"""Commits a report to a branch, beside the reports of earlier runs. The work tree and the index stay.

git stores by content: a file that is equal in many reports is stored once. The report lies at the root of the
branch, so that pages of a repository can be served from it; earlier ones lie below `history/RUN`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import InputError, Location
from harness.report.model.visible_text import file_name

HISTORY = "history"
#: Pages of GitHub are made with Jekyll, which leaves out some names, unless this file exists.
NO_JEKYLL = ".nojekyll"
#: How many earlier reports the branch shows; older ones stay in its commits.
KEPT = 60
_BRANCH = re.compile(r"[A-Za-z0-9][\w./-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class PublishedReport:
    """The commit on the branch, and how many earlier reports it shows. unchanged: there is no new commit."""

    commit: str
    earlier: int
    unchanged: bool


def publish_to_branch(root: Path, branch: str, report: Path, run_id: str) -> PublishedReport:
    """Commit the folder of a report to a branch of the repository of `root`; nothing is pushed.

    InputError if `root` is no checkout, or if the branch is checked out or does not consist of reports.
    """
    import pygit2

    repository = _repository(root)
    name = _reference(repository, branch)
    parent = _tip(repository, name)
    old = parent.tree if parent is not None else None
    if old is not None and "report.json" not in old:
        raise InputError(
            f"the branch {branch!r} contains something that is not a report",
            where=Location(root),
            fix="choose another branch with --branch",
        )
    shown = _tree_of_folder(repository, report)
    earlier = _earlier(repository, old, file_name(run_id))
    tree = _with_history(repository, shown, earlier)
    if old is not None and tree == old.id:
        return PublishedReport(commit=str(parent.id), earlier=len(earlier), unchanged=True)
    signature = _signature(repository)
    commit = repository.create_commit(
        None,
        signature,
        signature,
        f"Report of run {run_id}\n",
        tree,
        [parent.id] if parent is not None else [],
    )
    if parent is None:
        repository.references.create(name, commit)
    else:
        repository.references[name].set_target(commit, f"npu-matrix report {run_id}")
    assert isinstance(commit, pygit2.Oid)
    return PublishedReport(commit=str(commit), earlier=len(earlier), unchanged=False)


def _repository(root: Path) -> Any:
    import pygit2

    found = pygit2.discover_repository(str(root))
    if found is None:
        raise InputError(
            "this folder is no checkout of a git repository",
            where=Location(root),
            fix="run the command in a checkout, or leave out --branch",
        )
    return pygit2.Repository(found)


def _reference(repository: Any, branch: str) -> str:
    import pygit2

    name = f"refs/heads/{branch}"
    if not _BRANCH.fullmatch(branch) or not pygit2.reference_is_valid_name(name):
        raise InputError(f"{branch!r} is not the name of a branch", fix="for example: --branch status-page")
    try:
        current = repository.head.name if not repository.head_is_unborn else ""
    except pygit2.GitError:
        current = ""
    if current == name:
        raise InputError(
            f"the branch {branch!r} is checked out",
            why="the report would replace the files of the project",
            fix="choose another branch with --branch",
        )
    return name


def _tip(repository: Any, name: str) -> Any:
    import pygit2

    return repository.references[name].peel(pygit2.Commit) if name in repository.references else None


def _tree_of_folder(repository: Any, folder: Path) -> dict[str, tuple[Any, int]]:
    """The entries of a folder, whose files and folders are stored; links are left out."""
    import pygit2

    found: dict[str, tuple[Any, int]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            continue
        if path.is_dir():
            inside = _tree(repository, _tree_of_folder(repository, path))
            found[path.name] = (inside, pygit2.enums.FileMode.TREE)
        else:
            found[path.name] = (repository.create_blob_fromdisk(str(path)), pygit2.enums.FileMode.BLOB)
    return found


def _tree(repository: Any, entries: Mapping[str, tuple[Any, int]]) -> Any:
    builder = repository.TreeBuilder()
    for name, (oid, mode) in entries.items():
        builder.insert(name, oid, mode)
    return builder.write()


def _earlier(repository: Any, old: Any, now: str) -> dict[str, Any]:
    """Name of the run -> tree of its report, newest first: those of the branch, and the one at its root."""
    if old is None:
        return {}
    found = {}
    root = {entry.name: (entry.id, entry.filemode) for entry in old if entry.name not in {HISTORY, NO_JEKYLL}}
    last = _run_at_root(repository, old)
    if last and last != now:
        found[last] = _tree(repository, root)
    if HISTORY in old:
        kept = [entry for entry in repository[old[HISTORY].id] if entry.type_str == "tree"]
        found |= {entry.name: entry.id for entry in sorted(kept, key=lambda entry: entry.name, reverse=True)}
    found.pop(now, None)
    return dict(list(found.items())[:KEPT])


def _run_at_root(repository: Any, old: Any) -> str:
    """The name of the run whose report is at the root of the branch, from its report.json."""
    from harness.report.formats.json_export import run_of_report

    return file_name(run_of_report(bytes(repository[old["report.json"].id].data)))


def _with_history(repository: Any, shown: Mapping[str, tuple[Any, int]], earlier: Mapping[str, Any]) -> Any:
    import pygit2

    entries = {**shown, NO_JEKYLL: (repository.create_blob(b""), pygit2.enums.FileMode.BLOB)}
    if earlier:
        inside = {name: (oid, pygit2.enums.FileMode.TREE) for name, oid in earlier.items()}
        page = repository.create_blob(_listing(list(earlier)).encode())
        inside["index.html"] = (page, pygit2.enums.FileMode.BLOB)
        entries[HISTORY] = (_tree(repository, inside), pygit2.enums.FileMode.TREE)
    return _tree(repository, entries)


def _listing(runs: Sequence[str]) -> str:
    links = "".join(
        f'<li><a href="{html.escape(run)}/index.html">{html.escape(run)}</a></li>' for run in runs
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Earlier reports</title>'
        f'<h1>Earlier reports</h1><p><a href="../index.html">the last one</a></p><ul>{links}</ul></html>\n'
    )


def _signature(repository: Any) -> Any:
    import pygit2

    try:
        return repository.default_signature
    except (KeyError, ValueError, pygit2.GitError):
        return pygit2.Signature("npu-matrix", "npu-matrix@localhost")
