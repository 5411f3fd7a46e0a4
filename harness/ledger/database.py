"""Opening the ledger's database: created, migrated, or set aside when it is damaged."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from harness.errors import HarnessError, InfrastructureError, InputError, Location
from harness.ledger.ledger_schema import APPLICATION_ID, LATEST, migrate, schema_version

BUSY_SECONDS = 30.0
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
SIDE_FILES = ("-wal", "-shm")


@dataclass(frozen=True, kw_only=True)
class DatabaseDamage:
    """A database that could not be used: where it is kept now, and what is wrong with it."""

    aside: Path
    why: str


@contextmanager
def database_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's and the file system's errors into errors a user can act on."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(error, path, doing) from error
    except OSError as error:
        raise InfrastructureError(
            f"cannot {doing} the ledger",
            where=Location(path),
            why=error.strerror or str(error),
            fix="make the state folder writable, or choose another one with --state",
        ) from error


def connect(path: Path) -> sqlite3.Connection:
    """A connection with a write-ahead log, fully synchronised: a commit survives kill -9 and power loss."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        problem = _damage(connection)
        if problem:
            raise _damaged(problem)
        _refuse_foreign(connection, path)
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_database(path: Path, *, emptied: bool) -> tuple[sqlite3.Connection, DatabaseDamage | None]:
    """Open or create the database at `path`; a damaged one is kept beside it under a dated name.

    emptied: the caller knows that a ledger was here before, so a file without content is a damaged one.
    """
    with database_errors(path, "open"):
        path.parent.mkdir(parents=True, exist_ok=True)
        problem = _lost_content(path) if emptied else ""
        if not problem:
            try:
                return connect(path), None
            except sqlite3.DatabaseError as error:
                if _code(error) not in DAMAGED:
                    raise
        # One process sets the file aside; the others find a sound one when it is their turn.
        with filelock.FileLock(path.with_name(path.name + ".recovery"), timeout=BUSY_SECONDS):
            return _recover(path, emptied=emptied)


def _recover(path: Path, *, emptied: bool) -> tuple[sqlite3.Connection, DatabaseDamage | None]:
    problem = _lost_content(path) if emptied else ""
    if not problem:
        try:
            return connect(path), None
        except sqlite3.DatabaseError as error:
            if _code(error) not in DAMAGED:
                raise
            problem = str(error)
    aside = _set_aside(path)
    return connect(path), DatabaseDamage(aside=aside, why=problem)


def _lost_content(path: Path) -> str:
    """Why a file that held a ledger holds none now; to SQLite an empty file is a new database."""
    if not path.exists():
        return ""
    return "" if path.stat().st_size else "the file is empty"


def _set_aside(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    count = 1
    while aside.exists():
        count += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{count}")
    for suffix in SIDE_FILES:
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(aside.with_name(aside.name + suffix))
    path.rename(aside)
    return aside


def _damage(connection: sqlite3.Connection) -> str:
    with closing(connection.execute("PRAGMA quick_check(1)")) as cursor:
        (answer,) = cursor.fetchone()
    return "" if answer == "ok" else str(answer)


def _damaged(problem: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(problem)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    version = schema_version(connection)
    if version > LATEST:
        raise InputError(
            f"the ledger has schema {version}; this program knows schemas up to {LATEST}",
            where=Location(path),
            why="a newer npu-matrix wrote it",
            fix="use that version, or keep a ledger of your own with --state",
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


def _code(error: sqlite3.Error) -> int:
    # The low byte is the primary code; the rest says which variant of it.
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


FIXES = {
    sqlite3.SQLITE_FULL: "free space on this disk, then run again: nothing recorded is lost",
    sqlite3.SQLITE_READONLY: "make the state folder writable, or choose another one with --state",
    sqlite3.SQLITE_CANTOPEN: "make the state folder writable, or choose another one with --state",
    sqlite3.SQLITE_BUSY: "wait for the other process that writes this ledger, or stop it",
    sqlite3.SQLITE_CORRUPT: "run again: the damaged file is kept aside and a new one is started",
    sqlite3.SQLITE_NOTADB: "run again: the damaged file is kept aside and a new one is started",
}


def _explain(error: sqlite3.Error, path: Path, doing: str) -> HarnessError:
    return InfrastructureError(
        f"cannot {doing} the ledger",
        where=Location(path),
        why=f"SQLite says: {error}",
        fix=FIXES.get(_code(error), "check the disk, or choose another state folder with --state"),
    )
