"""Facts about a git checkout that is not ours: files, remotes, tags, commits. Nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from harness.sources.git.run_git import run_git

#: The mode of a submodule in git's index.
_SUBMODULE = "160000"


class GitCheckout:
    """The checkout in a folder, which may be no git repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        done = run_git(root, "rev-parse", "--show-toplevel")
        self.is_git = done.returncode == 0
        #: The top folder of the repository, which may be above `root`.
        self.top = Path(os.fsdecode(done.stdout).rstrip("\n")) if self.is_git else root

    def files(self) -> Iterable[str]:
        """The files below the folder that git tracks or would add."""
        return [
            name
            for name in self._text("ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
            if name
        ]

    def commit(self, name: str) -> str:
        """The commit of a name, or ""."""
        return self._text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")

    def nearest_tag(self, pattern: str) -> str:
        """The nearest tag before HEAD that matches the glob, or ""."""
        return self._text("describe", "--tags", "--abbrev=0", f"--match={pattern}", "HEAD")

    def merge_base(self, one: str, other: str) -> str:
        """The newest common commit, or ""."""
        return self._text("merge-base", one, other)

    def branch(self) -> str:
        """The branch that others are merged into: that of `origin`, else the current one, else ""."""
        remote = self._text("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
        return remote.removeprefix("origin/") or self._text("symbolic-ref", "--quiet", "--short", "HEAD")

    def count(self, base: str, head: str) -> int | None:
        """The number of commits of `head` that `base` does not have; None if they have no common commit."""
        if not self.merge_base(base, head):
            return None
        return int(self._text("rev-list", "--count", f"{base}..{head}") or 0)

    def remotes(self) -> dict[str, str]:
        """Name -> address."""
        lines = self._text("config", "--get-regexp", r"^remote\..*\.url$").splitlines()
        pairs = [line.partition(" ") for line in lines]
        return {name.removeprefix("remote.").removesuffix(".url"): url for name, _, url in pairs}

    def submodules(self) -> Iterator[tuple[str, str, int]]:
        """The name of each submodule's repository, "@" and its commit, and the line of .gitmodules."""
        listed = self._text("config", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.(path|url)$")
        pairs = [line.partition(" ") for line in listed.splitlines()]
        values = {key: value for key, _, value in pairs}
        for key, path in values.items():
            url = values.get(f"{key.removesuffix('.path')}.url", "") if key.endswith(".path") else ""
            entry = self._text("ls-files", "--stage", "--", path) if url else ""
            mode, _, rest = entry.partition(" ")
            if mode == _SUBMODULE:
                name = PurePosixPath(url.replace(":", "/")).name.removesuffix(".git")
                yield name, f"@{rest.split()[0]}", self._line_of(path)

    def _line_of(self, path: str) -> int:
        """The line of .gitmodules with this path."""
        lines = (self.root / ".gitmodules").read_text("utf-8", "replace").splitlines()
        return next((number for number, line in enumerate(lines, 1) if line.strip().endswith(path)), 1)

    def _text(self, *arguments: str) -> str:
        done = run_git(self.root, *arguments)
        return os.fsdecode(done.stdout).strip() if done.returncode == 0 else ""
