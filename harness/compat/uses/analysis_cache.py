"""A cache of analysis results in a SQLite file."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from pydantic import TypeAdapter

from harness.cache_seal import sealed, unsealed
from harness.code_graph.stored_facts import code_digest
from harness.digest import digest_json

WAIT_S = 30.0
#: Variables in one statement; every version of SQLite allows 999.
BATCH_SIZE = 500
T = TypeVar("T")


class SqliteCache:
    """A context manager for texts by key in a SQLite file.

    code: digest of the code that computes the texts; texts of other code are not returned, and neither are
    texts without the seal of this user. A file that cannot be read or written behaves like an empty cache.
    """

    def __init__(self, file: Path, code: str) -> None:
        self._file = file
        self._code = code
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        for _ in range(2):
            try:
                self._database = sqlite3.connect(self._file, timeout=WAIT_S, isolation_level=None)
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS results"
                    "(code TEXT, key TEXT, value TEXT, PRIMARY KEY (code, key)) WITHOUT ROWID"
                )
                break
            except sqlite3.OperationalError:
                self._close()
                break
            except sqlite3.DatabaseError:
                self._discard()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _discard(self) -> None:
        """Remove a damaged file. Another process that has it open keeps using the deleted file."""
        self._close()
        with contextlib.suppress(OSError):
            self._file.unlink()

    def get(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored texts of these keys."""
        requested = list(keys)
        found: dict[str, str] = {}
        try:
            for start in range(0, len(requested) if self._database else 0, BATCH_SIZE):
                batch = requested[start : start + BATCH_SIZE]
                marks = ",".join("?" * len(batch))
                rows = self._database.execute(  # type: ignore[union-attr]
                    # Only question marks are inserted into the statement.
                    f"SELECT key, value FROM results WHERE code = ? AND key IN ({marks})",  # noqa: S608
                    [self._code, *batch],
                )
                for key, stored in rows:
                    text = unsealed(self._name(key), stored) if isinstance(stored, str) else None
                    if text is not None:
                        found[key] = text
        except sqlite3.OperationalError:
            self._close()
            return {}
        except sqlite3.DatabaseError:
            self._discard()
            return {}
        return found

    def put(self, texts: Mapping[str, str]) -> None:
        """Store texts; existing texts of the same keys are replaced."""
        rows = [(self._code, key, sealed(self._name(key), text)) for key, text in texts.items()]
        if self._database is None or not rows:
            return
        with contextlib.suppress(sqlite3.Error):
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")

    def _name(self, key: str) -> str:
        return f"{self._code} {key}"


@dataclass(frozen=True, kw_only=True)
class AnalysisCache:
    """Results of analyses in a folder, each under the digest of everything that it was computed from.

    code: digest of the code that computes the results; other code computes them again.
    """

    folder: Path
    code: str

    def get(self, kind: str, inputs: Sequence[str], result_type: type[T], compute: Callable[[], T]) -> T:
        """The result of one analysis, computed when it is not stored."""
        key = digest_json([kind, *inputs])
        return self.get_many(result_type, {key: compute})[key]

    def get_many(self, result_type: type[T], computations: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """The results of many analyses by key; those that are not stored or cannot be read are computed."""
        known = self.load(result_type, computations)
        computed = {key: compute() for key, compute in computations.items() if key not in known}
        self.store(result_type, computed)
        return {**known, **computed}

    def load(self, result_type: type[T], keys: Iterable[str]) -> dict[str, T]:
        """The stored results with these keys that can be read."""
        adapter = TypeAdapter(result_type)
        known: dict[str, T] = {}
        with self._file() as stored:
            for key, text in stored.get(keys).items():
                with contextlib.suppress(ValueError):
                    known[key] = adapter.validate_json(text)
        return known

    def store(self, result_type: type[T], results: Mapping[str, T]) -> None:
        """Store results by key."""
        adapter = TypeAdapter(result_type)
        texts = {
            key: adapter.dump_json(result, exclude_defaults=True).decode() for key, result in results.items()
        }
        with self._file() as stored:
            stored.put(texts)

    def _file(self) -> SqliteCache:
        self.folder.mkdir(parents=True, exist_ok=True)
        return SqliteCache(self.folder / "files.sqlite", digest_json([self.code, list(sys.version_info[:2])]))


@functools.cache
def analysis_code() -> str:
    """Digest of the code that reads packages and checks uses: `surface` and `uses`, and what they reach."""
    return code_digest("harness.compat.surface*", "harness.compat.uses*")
