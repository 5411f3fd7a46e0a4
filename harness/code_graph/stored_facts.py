"""Stores what was read of source files in the cache folder, so that a command reads only changed files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.atomic_write import replace_bytes
from harness.cache_seal import sealed, unsealed
from harness.code_graph.module_facts import ModuleFacts, facts_from_json, facts_to_json
from harness.code_graph.reachable_code import CodeGraph, ReachedCode, is_code
from harness.gc_pause import gc_paused
from harness.package import PACKAGE_ROOT

FOLDER = "code"
FACTS_FILE = "facts.json"
#: Two revisions of the package have about 1,300 files together; both stay stored while they are compared.
MOST_FACTS = 4000
MOST_RESULTS = 40


@functools.cache
def analyser_digest() -> str:
    """Digest of the code of this package. Stored facts are used only if the same code wrote them."""
    files = sorted((PACKAGE_ROOT / "code_graph").glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


@gc_paused()
def reached_code(
    roots: Mapping[str, Sequence[str]],
    *,
    stop: Sequence[str] = (),
    root: Path = PACKAGE_ROOT,
    cache: Path | None = None,
) -> Mapping[str, ReachedCode]:
    """Name of a group of roots -> the code that can be reached from them.

    cache: the cache folder, in which the result and what was read of the files are stored.
    """
    results = StoredResults(cache, root, json.dumps([roots, stop], sort_keys=True)) if cache else None
    known = results.get() if results else None
    if known is not None and known.keys() == roots.keys():
        return known
    facts = StoredFacts(cache) if cache else None
    graph = CodeGraph(root, facts)
    reached = {name: graph.digest(graph.reach(group, stop=stop)) for name, group in roots.items()}
    if facts and results:
        facts.save()
        results.put(reached)
    return reached


def code_digest(*roots: str, cache: Path | None = None) -> str:
    """Digest of all code that can be reached from the roots, as a part of the name of a cached result."""
    return reached_code({"": roots}, cache=cache)[""].digest


class StoredFacts:
    """The facts of files by content, in one file of the cache. A damaged file counts as empty."""

    def __init__(self, cache: Path) -> None:
        self._file = cache / FOLDER / FACTS_FILE
        self._known: dict[str, Any] | None = None
        self._changed = False

    def get(self, digest: str) -> ModuleFacts | None:
        """The facts of a file with this content; None if they are not stored."""
        data = self._load().get(digest)
        try:
            return facts_from_json(data) if data is not None else None
        except (KeyError, TypeError, AttributeError):
            return None

    def put(self, digest: str, facts: ModuleFacts) -> None:
        """Add the facts of a file; `save` writes them."""
        known = self._load()
        known[digest] = facts_to_json(facts)
        while len(known) > MOST_FACTS:
            del known[next(iter(known))]
        self._changed = True

    def save(self) -> None:
        """Write the file if facts were added. A cache that cannot be written is not an error."""
        if self._changed:
            write_json(self._file, {"of": analyser_digest(), "facts": self._known})
            self._changed = False

    def _load(self) -> dict[str, Any]:
        if self._known is None:
            stored = read_json(self._file)
            facts = stored.get("facts") if stored.get("of") == analyser_digest() else None
            self._known = facts if isinstance(facts, dict) else {}
        return self._known


class StoredResults:
    """The reachable code of the tree at `root`, one file for each content of the tree and each `question`."""

    def __init__(self, cache: Path, root: Path, question: str) -> None:
        self._folder = cache / FOLDER
        question_digest = hashlib.sha256(f"{analyser_digest()} {question}".encode()).hexdigest()[:16]
        self._file = self._folder / f"reached-{tree_digest(root)[:24]}-{question_digest}.json"

    def get(self) -> dict[str, ReachedCode] | None:
        """The stored result; None if there is none or it cannot be read."""
        stored = read_json(self._file)
        try:
            return {name: ReachedCode(**reached) for name, reached in stored["reached"].items()}
        except (KeyError, TypeError, AttributeError):
            return None

    def put(self, reached: Mapping[str, ReachedCode]) -> None:
        """Store the result and remove the oldest results."""
        write_json(self._file, {"reached": {name: vars(code) for name, code in reached.items()}})
        with contextlib.suppress(OSError):
            files = sorted(self._folder.glob("reached-*.json"), key=lambda file: file.stat().st_mtime)
            for file in files[:-MOST_RESULTS]:
                file.unlink()


def tree_digest(root: Path) -> str:
    """Digest of every file of a package that can change what its code does."""
    sha = hashlib.sha256()
    for file in sorted(_files(str(root))):
        path = Path(file)
        if is_code(path):
            with open(file, "rb") as stream:  # noqa: PTH123 - three times as fast as Path.read_bytes
                content = hashlib.sha256(stream.read()).digest()
            sha.update(file[len(str(root)) :].encode("utf-8", "surrogateescape") + b"\0" + content)
    return sha.hexdigest()


def _files(folder: str) -> list[str]:
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=True):
                if entry.name != "__pycache__":
                    found += _files(entry.path)
            elif entry.is_file():
                found.append(entry.path)
    return found


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file that `write_json` wrote for this user; empty if there is none."""
    try:
        text = unsealed(file.name, file.read_text("utf-8"))
        data = None if text is None else json.loads(text)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write_json(file: Path, data: Mapping[str, Any]) -> None:
    """Replace a file atomically, with a seal. A file that cannot be written is not an error."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        # Unlike `json.dump`, `json.dumps` uses the encoder that is written in C.
        text = sealed(file.name, json.dumps(data, separators=(",", ":")))
        replace_bytes(file, text.encode(), mode=0o600)
