"""Finds the revision of an upstream's tests for a cell, and exports the files that they need."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.digest import digest_json
from harness.errors import InputError
from harness.matrix.model.suite_facet import SuiteFacet
from harness.matrix.reading.read_suites import BY_CELL, BY_PACKAGE
from harness.sources.git.git_repository import GitTree, Repository
from harness.sources.git.mirrors import MIRRORS, find_clone, find_mirror, mirror_folders
from harness.sources.tree import EXECUTABLE, SYMLINK, blob_id
from harness.upstream_tests.suite_measurements import Tag

#: Where builds of torch_npu, and packages made with setuptools_scm, name the commit they were built from.
_COMMIT_OF_BUILD = re.compile(r"""(?:git_version|commit_id|__commit_id__)\s*=\s*['"]g?([0-9a-f]{8,40})['"]""")
_VERSION_FILES = ("version.py", "_version.py")
_REMEDY = (
    f"Run `npu-matrix mirrors update`, or set {MIRRORS} to a folder with a clone or bare mirror of it, then "
    "run again."
)


@dataclass(frozen=True, kw_only=True)
class NoSource:
    """Why the tests of a suite cannot be read here, and what to do."""

    why: str
    fix: str = _REMEDY


@dataclass(frozen=True, kw_only=True)
class SuiteSource:
    """The commit with the tests. rule: how it was found, in words. exact: whether it is the revision that the
    cell has, not only a tag of its version."""

    tree: GitTree
    rule: str
    exact: bool
    tag: Tag | None = None

    @property
    def commit(self) -> str:
        """The full commit id."""
        return self.tree.commit


def find_source(suite: SuiteFacet, packages: Path | None) -> SuiteSource | NoSource:
    """The revision of the suite for the cell. packages: the folder with the installed packages, if any."""
    mirrors = mirror_folders()
    tried: list[str] = []
    for rule in suite.revision:
        found, what = _by_rule(suite, rule, packages, mirrors)
        if found is not None:
            return _in_submodule(suite, found, mirrors) if suite.submodule else found
        tried.append(what)
    address = suite.repositories[0] if suite.repositories else "the upstream"
    return NoSource(why=f"no mirror of {address} has the tests: {'; '.join(tried)}")


def _by_rule(
    suite: SuiteFacet, rule: str, packages: Path | None, mirrors: Sequence[Path]
) -> tuple[SuiteSource | None, str]:
    if rule in {BY_CELL, BY_PACKAGE}:
        commit = suite.commit if rule == BY_CELL else commit_of_build(packages, suite.package)
        of = "the cell" if rule == BY_CELL else f"the installed {suite.package or 'package'}"
        if not commit:
            return None, f"{of} names no commit"
        repository = find_mirror(mirrors, commit)
        if repository is None:
            return None, f"commit {commit[:12]} of {of}"
        return SuiteSource(tree=repository.tree(commit), rule=f"commit of {of}", exact=True), ""
    pattern = rule.replace("{version}", suite.version)
    for address in suite.repositories:
        clone = find_clone(mirrors, address)
        tag = newest_tag(clone, pattern) if clone is not None else ""
        if clone is not None and tag:
            exact = "*" not in pattern
            tree = clone.tree(f"refs/tags/{tag}")
            named = Tag(repository=address, name=tag, commit=tree.commit)
            return SuiteSource(tree=tree, rule=f"tag {tag}", exact=exact, tag=named), ""
    return None, f"a tag {pattern}"


def newest_tag(clone: Repository, pattern: str) -> str:
    """The tag with the newest commit that matches the glob pattern, or ""."""
    if clone.has_tag(pattern):
        return pattern
    found = []
    for tag in fnmatch.filter(clone.tags(), pattern):
        commit = clone.commit(f"refs/tags/{tag}")
        found.append((clone.objects[commit].commit_time, tag))
    return max(found)[1] if found else ""


def commit_of_build(packages: Path | None, distribution: str) -> str:
    """The commit that an installed package says it was built from, or ""."""
    if packages is None or not distribution:
        return ""
    folder = packages / distribution.replace("-", "_")
    for name in _VERSION_FILES:
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        match = _COMMIT_OF_BUILD.search(text)
        if match:
            return match[1]
    return ""


def _in_submodule(suite: SuiteFacet, parent: SuiteSource, mirrors: Sequence[Path]) -> SuiteSource | NoSource:
    commit = parent.tree.object_id(suite.submodule)
    if commit is None:
        return NoSource(
            why=f"commit {parent.commit[:12]} has no submodule {suite.submodule}",
            fix="correct 'submodule' of the suite in matrix.yaml",
        )
    repository = find_mirror(mirrors, commit)
    if repository is None:
        address = suite.submodule_repositories[0]
        return NoSource(why=f"no mirror of {address} has commit {commit[:12]}, which {parent.rule} names")
    rule = f"submodule of {parent.commit[:12]} ({parent.rule})"
    return SuiteSource(tree=repository.tree(commit), rule=rule, exact=parent.exact, tag=parent.tag)


def moved(tag: Tag) -> str:
    """Why the tests that a tag named are not those that it names today, or ""; "" too without a mirror."""
    clone = find_clone(mirror_folders(), tag.repository)
    if clone is None or not clone.has_tag(tag.name):
        return ""
    now = clone.commit(f"refs/tags/{tag.name}")
    return "" if now == tag.commit else f"the tag {tag.name} was moved from {tag.commit[:12]} to {now[:12]}"


@dataclass(frozen=True, kw_only=True)
class ExportedTree:
    """The exported files of a suite. blobs: path -> git id of its content. tests: the test files to run."""

    folder: Path
    blobs: Mapping[str, str]
    tests: tuple[str, ...]


def export_tree(source: SuiteSource, suite: SuiteFacet, cache: Path) -> ExportedTree:
    """Write the files that the suite names into a folder of the cache.

    InputError if a path of the suite matches nothing.
    """
    blobs = dict(_files(source.tree, suite.tree))
    tests = test_files(sorted(blobs), suite)
    folder = cache / "upstream-tests" / "trees" / digest_json([source.commit, sorted(blobs.items())])[:32]
    if not _is_intact(folder, source.tree, blobs):
        shutil.rmtree(folder, ignore_errors=True)
        source.tree.repository.fetch_absent(blobs.values())
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".tree-", dir=folder.parent))
        try:
            for path in blobs:
                _write(source.tree, path, work / path)
            work.chmod(0o755)
            work.rename(folder)
        except OSError:
            # Another process may have been first, with the same content.
            if not _is_intact(folder, source.tree, blobs):
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return ExportedTree(folder=folder, blobs=blobs, tests=tests)


def _is_intact(folder: Path, tree: GitTree, blobs: Mapping[str, str]) -> bool:
    """Whether the folder has these files: a test, or another program, may have changed it."""
    try:
        return folder.is_dir() and all(
            tree.mode(path) == SYMLINK or blob_id((folder / path).read_bytes()) == blob
            for path, blob in blobs.items()
        )
    except OSError:
        return False


def _files(tree: GitTree, prefixes: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in tree.paths():
        if any(one in {"", "."} or path == one or path.startswith(f"{one}/") for one in prefixes):
            yield path, tree.object_id(path) or ""


def test_files(paths: Sequence[str], suite: SuiteFacet) -> tuple[str, ...]:
    """The test files among `paths` that the suite names; InputError if one of its paths names none."""
    found: dict[str, None] = {}
    for pattern in suite.paths:
        matching = [path for path in paths if _names(pattern, path)]
        if not matching:
            raise InputError(
                f"{pattern!r} of the suite {suite.name} names no test file",
                why="the revision of the upstream that this cell has does not contain it",
                fix="correct 'paths' of the suite in matrix.yaml, or limit it with 'when'",
            )
        found.update(dict.fromkeys(matching))
    left_out = [one.test for one in suite.left_out if "::" not in one.test]
    return tuple(path for path in found if not any(fnmatch.fnmatchcase(path, one) for one in left_out))


def _names(pattern: str, path: str) -> bool:
    if path == pattern or ("*" in pattern and fnmatch.fnmatchcase(path, pattern)):
        return True
    name = path.rpartition("/")[2]
    is_test = name.startswith("test_") or name.endswith("_test.py")
    return path.startswith(f"{pattern}/") and is_test and name.endswith(".py")


def _write(tree: GitTree, path: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    data, mode = tree.read(path), tree.mode(path)
    if mode == SYMLINK:
        link = os.fsdecode(data)
        inside = os.path.normpath(PurePosixPath(path).parent / link)
        # A link out of the tree would let a test read and write files of this machine.
        if not inside.startswith(("/", "..")):
            target.symlink_to(link)
        return
    target.write_bytes(data)
    if mode == EXECUTABLE:
        target.chmod(0o755)
