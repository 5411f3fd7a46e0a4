"""Many small answers in one file: a package costs only the files of it that nobody has read yet."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WAIT_S = 30.0
#: Variables of one statement; SQLite allows 999 in every version.
AT_ONCE = 500


class Shelf:
    """A context in which answers (JSON) can be looked up and kept, each by its question.

    about: what all of them depend on, such as the code that answers. A file that cannot be read or written is
    an empty shelf: the answers are made again.
    """

    def __init__(self, file: Path, about: str) -> None:
        self._file = file
        self._about = about
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        for _ in range(2):
            try:
                self._database = sqlite3.connect(self._file, timeout=WAIT_S, isolation_level=None)
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS answers"
                    "(about TEXT, question TEXT, answer TEXT, PRIMARY KEY (about, question)) WITHOUT ROWID"
                )
                break
            except sqlite3.OperationalError:
                self._close()
                break
            except sqlite3.DatabaseError:
                self._close()
                # Damaged. Another process that has it open goes on with what it has.
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

    def get(self, questions: Iterable[str]) -> dict[str, Any]:
        """The answers that are there."""
        wanted = list(questions)
        found: dict[str, Any] = {}
        try:
            for start in range(0, len(wanted) if self._database else 0, AT_ONCE):
                part = wanted[start : start + AT_ONCE]
                marks = ",".join("?" * len(part))
                rows = self._database.execute(  # type: ignore[union-attr]
                    # Only question marks are put in.
                    f"SELECT question, answer FROM answers WHERE about = ? AND question IN ({marks})",  # noqa: S608
                    [self._about, *part],
                )
                found |= {question: json.loads(answer) for question, answer in rows}
        except (sqlite3.Error, ValueError):
            self._close()
            return {}
        return found

    def put(self, answers: Mapping[str, Any]) -> None:
        """Keep answers; those to the same questions are replaced."""
        rows = [(self._about, question, json.dumps(answer)) for question, answer in answers.items()]
        if self._database is None or not rows:
            return
        with contextlib.suppress(sqlite3.Error):
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")
