"""Caches of analysis results: one file per result, and a database for many small results."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from harness.code_graph.stored_facts import code_digest
from harness.digest import digest_json
from harness.serialisation import JsonValue

WAIT_S = 30.0
#: Variables in one statement; every version of SQLite allows 999.
BATCH_SIZE = 500
T = TypeVar("T")


class SqliteCache:
    """A context manager for JSON values by text key in a SQLite file.

    code: digest of the code that computes the values; values of other code are not returned. A file that
    cannot be read or written behaves like an empty cache.
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
                self._close()
                # The file is damaged. Another process that has it open keeps using the deleted file.
                with contextlib.suppress(OSError):
                    self._file.unlink()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def get(self, keys: Iterable[str]) -> dict[str, JsonValue]:
        """The stored values of these keys."""
        missing = list(keys)
        found: dict[str, JsonValue] = {}
        try:
            for start in range(0, len(missing) if self._database else 0, BATCH_SIZE):
                batch = missing[start : start + BATCH_SIZE]
                marks = ",".join("?" * len(batch))
                rows = self._database.execute(  # type: ignore[union-attr]
                    # Only question marks are inserted into the statement.
                    f"SELECT key, value FROM results WHERE code = ? AND key IN ({marks})",  # noqa: S608
                    [self._code, *batch],
                )
                found |= {key: json.loads(value) for key, value in rows}
        except (sqlite3.Error, ValueError):
            self._close()
            return {}
        return found

    def put(self, values: Mapping[str, JsonValue]) -> None:
        """Store values; existing values of the same keys are replaced."""
        rows = [(self._code, key, json.dumps(value)) for key, value in values.items()]
        if self._database is None or not rows:
            return
        with contextlib.suppress(sqlite3.Error):
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")


@dataclass(frozen=True, kw_only=True)
class JsonForm(Generic[T]):
    """How values of one type are written to JSON and read back."""

    write: Callable[[T], JsonValue]
    read: Callable[[Any], T]


@dataclass(frozen=True, kw_only=True)
class AnalysisCache:
    """Results of analyses in a folder, each under the digest of everything that it was computed from.

    code: digest of the code that computes the results; other code computes them again.
    """

    folder: Path
    code: str

    def get(self, kind: str, inputs: Sequence[str], form: JsonForm[T], compute: Callable[[], T]) -> T:
        """The result of one analysis, computed when it is not stored or cannot be read."""
        key = digest_json([kind, self.code, list(sys.version_info[:2]), list(inputs)])
        file = self.folder / f"{key.removeprefix('sha256:')}.json"
        try:
            return form.read(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            result = compute()
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as temporary:
            json.dump(form.write(result), temporary)
        # Two processes that compute the same result write the same content.
        Path(temporary.name).replace(file)
        return result

    def get_many(self, form: JsonForm[T], computations: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """The results of many small analyses by key; those that are not stored are computed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        code = digest_json([self.code, list(sys.version_info[:2])])
        with SqliteCache(self.folder / "files.sqlite", code) as stored:
            known = {key: form.read(value) for key, value in stored.get(computations).items()}
            computed = {key: compute() for key, compute in computations.items() if key not in known}
            stored.put({key: form.write(value) for key, value in computed.items()})
        return {**known, **computed}


@functools.cache
def analysis_code() -> str:
    """Digest of the code that reads packages and checks uses: `surface` and `uses`, and what they reach."""
    return code_digest("harness.compat.surface*", "harness.compat.uses*")
