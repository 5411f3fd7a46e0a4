"""Small git repositories for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pygit2


class History:
    """A repository to which commits are added as full trees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = pygit2.init_repository(str(folder), bare=True)
        self.ids: list[str] = []

    def commit(self, files: Mapping[str, bytes], subject: str = "", parents: list[str] | None = None) -> str:
        number = len(self.ids) + 1
        who = pygit2.Signature("A", "a@example.org", 1_700_000_000 + 60 * number, 60)
        before = [self.ids[-1]] if self.ids and parents is None else parents or []
        made = self.store.create_commit(
            None,
            who,
            who,
            subject or f"commit {number}",
            self._tree(files),
            [pygit2.Oid(hex=one) for one in before],
        )
        self.ids.append(str(made))
        self.store.references.create("refs/heads/main", made, force=True)
        return str(made)

    def _tree(self, files: Mapping[str, bytes]) -> pygit2.Oid:
        builder = self.store.TreeBuilder()
        folders: dict[str, dict[str, bytes]] = {}
        for path, data in files.items():
            top, slash, rest = path.partition("/")
            if slash:
                folders.setdefault(top, {})[rest] = data
            else:
                builder.insert(path, self.store.create_blob(data), pygit2.enums.FileMode.BLOB)
        for name, inside in folders.items():
            builder.insert(name, self._tree(inside), pygit2.enums.FileMode.TREE)
        return builder.write()
