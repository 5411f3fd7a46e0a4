"""Opens the ledger's database. Creates, migrates or, if it is damaged, renames and replaces it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from harness.errors import InfrastructureError, InputError, Location
from harness.ledger.ledger_schema import APPLICATION_ID, LATEST, migrate, schema_version

BUSY_SECONDS = 30.0
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
SIDE_FILES = ("-wal", "-shm")
_MAKE_WRITABLE = "make the state folder writable, or choose another one with --state"
_REPLACE_DAMAGED = "run again: the damaged file is renamed and a new one is created"
FIXES = {
    sqlite3.SQLITE_FULL: "free space on this disk, then run again: no recorded outcome is lost",
    sqlite3.SQLITE_READONLY: _MAKE_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _MAKE_WRITABLE,
    sqlite3.SQLITE_BUSY: "wait for the other process that writes this ledger, or stop it",
    sqlite3.SQLITE_CORRUPT: _REPLACE_DAMAGED,
    sqlite3.SQLITE_NOTADB: _REPLACE_DAMAGED,
}


@dataclass(frozen=True, kw_only=True)
class DatabaseDamage:
    """A damaged database: the path to which it was renamed, and what is wrong with it."""

    renamed_to: Path
    why: str


@contextmanager
def database_errors(path: Path, doing: str) -> Iterator[None]:
    """Convert errors of SQLite and of the file system to errors that tell the user what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise InfrastructureError(
            f"cannot {doing} the ledger",
            where=Location(path),
            why=f"SQLite reports: {error}",
            fix=FIXES.get(
                _primary_code(error), "check the disk, or choose another state folder with --state"
            ),
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"cannot {doing} the ledger",
            where=Location(path),
            why=error.strerror or str(error),
            fix=_MAKE_WRITABLE,
        ) from error


def connect(path: Path) -> sqlite3.Connection:
    """Open the database with a write-ahead log and full synchronisation: a commit survives power loss."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            error = sqlite3.DatabaseError(answer)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        _refuse_other_schema(connection, path)
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_database(path: Path, *, had_content: bool) -> tuple[sqlite3.Connection, DatabaseDamage | None]:
    """Open or create the database at `path`; a damaged file is first renamed, with the date in its name.

    had_content: whether outcomes were stored here before, so that an empty file is a damaged one.
    """
    with database_errors(path, "open"):
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = _connect_or_explain(path, had_content=had_content)
        if not isinstance(opened, str):
            return opened, None
        # One process renames the damaged file; the others then open the new one.
        with filelock.FileLock(path.with_name(path.name + ".recovery"), timeout=BUSY_SECONDS):
            opened = _connect_or_explain(path, had_content=had_content)
            if not isinstance(opened, str):
                return opened, None
            renamed_to = _rename_damaged(path)
            return connect(path), DatabaseDamage(renamed_to=renamed_to, why=opened)


def _connect_or_explain(path: Path, *, had_content: bool) -> sqlite3.Connection | str:
    """A connection, or how the database is damaged; SQLite would take an empty file for a new database."""
    if had_content and path.exists() and not path.stat().st_size:
        return "the file is empty"
    try:
        return connect(path)
    except sqlite3.DatabaseError as error:
        if _primary_code(error) not in DAMAGED:
            raise
        return str(error)


def _rename_damaged(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    renamed_to = path.with_name(f"{path.name}.corrupt-{stamp}")
    count = 1
    while renamed_to.exists():
        count += 1
        renamed_to = path.with_name(f"{path.name}.corrupt-{stamp}-{count}")
    for suffix in SIDE_FILES:
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(renamed_to.with_name(renamed_to.name + suffix))
    path.rename(renamed_to)
    return renamed_to


def _refuse_other_schema(connection: sqlite3.Connection, path: Path) -> None:
    version = schema_version(connection)
    if version > LATEST:
        raise InputError(
            f"the ledger has schema {version}, but this program supports schemas up to {LATEST}",
            where=Location(path),
            why="a newer npu-matrix wrote it",
            fix="use that version, or another state folder with --state",
        )
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise InputError(
            "this SQLite database is not a ledger",
            where=Location(path),
            why=f"it has tables, and application id {application:#x} instead of {APPLICATION_ID:#x}",
            fix="choose another state folder with --state",
        )


def _primary_code(error: sqlite3.Error) -> int:
    # The higher bytes only say which variant of the error it is.
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
