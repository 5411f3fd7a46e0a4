"""Many small answers in one file: a package costs only the files of it that nobody has read yet."""

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
from typing import Any, Self

from harness.code_graph.stored_facts import code_digest
from harness.digest import digest_json

WAIT_S = 30.0
#: Variables of one statement; SQLite allows 999 in every version.
AT_ONCE = 500


class SqliteCache:
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


@dataclass(frozen=True, kw_only=True)
class AnalysisCache:
    """Answers in a folder, each under the digest of its question and of all that it was read from.

    code: digest of the code that answers; another code asks again.
    """

    folder: Path
    code: str

    def get(self, question: str, about: Sequence[str], make: Callable[[], Any]) -> Any:
        """The answer (JSON), made when it is not there yet or cannot be read."""
        key = digest_json([question, self.code, list(sys.version_info[:2]), list(about)])
        file = self.folder / f"{key.removeprefix('sha256:')}.json"
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            answer = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as temporary:
            json.dump(answer, temporary)
        # Whoever comes second writes the same.
        Path(temporary.name).replace(file)
        return answer

    def get_many(self, questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """The answers (JSON) to many small questions, those made that are not there yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = digest_json([self.code, list(sys.version_info[:2])])
        with SqliteCache(self.folder / "files.sqlite", about) as shelf:
            known = shelf.get(questions)
            made = {key: make() for key, make in questions.items() if key not in known}
            shelf.put(made)
        return {**known, **made}


@functools.cache
def analysis_code() -> str:
    """Digest of the code that reads packages and checks uses: `surface` and `uses`, and what they reach."""
    return code_digest("harness.compat.surface*", "harness.compat.uses*")
