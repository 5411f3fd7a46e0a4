"""Opens the ledger's database: creates it, migrates it, and repairs it if it is damaged."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import filelock

from harness.errors import InfrastructureError, InputError, Location
from harness.ledger.ledger_schema import (
    APPLICATION_ID,
    LATEST,
    migrate,
    schema_objects,
    schema_version,
    versions_by_schema,
)
from harness.ledger.salvage import LostRow, Salvage, salvage
from harness.ledger.sealed_rows import broken_seals, install_seals
from harness.ledger.sql_functions import register_functions

BUSY_SECONDS = 30.0
#: Errors that have other causes than the content of the file.
NOT_DAMAGE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
    }
)
SIDE_FILES = ("-wal", "-shm", "-journal")
COPY_ATTEMPTS = 5
#: Damaged rows that a message names.
MOST_NAMED = 10
_MAKE_WRITABLE = "make the state folder writable, or choose another one with --state"
_REPLACE_DAMAGED = "run again: what can be believed is copied to a new ledger, the damaged file is kept"
FIXES = {
    sqlite3.SQLITE_READONLY: _MAKE_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _MAKE_WRITABLE,
    sqlite3.SQLITE_BUSY: "wait for the other process that writes this ledger, or stop it",
    sqlite3.SQLITE_CORRUPT: _REPLACE_DAMAGED,
    sqlite3.SQLITE_NOTADB: _REPLACE_DAMAGED,
}


@dataclass(frozen=True, kw_only=True)
class DatabaseDamage:
    """A damaged database: where the damaged file is now, what is wrong with it, and what was copied of it."""

    renamed_to: Path
    why: str
    salvaged: Salvage


@dataclass(frozen=True, kw_only=True)
class OpenedDatabase:
    """An open ledger. copy: the folder of the copy that is open because the ledger cannot be written."""

    connection: sqlite3.Connection
    damage: DatabaseDamage | None = None
    copy: Path | None = None

    @property
    def lost(self) -> tuple[LostRow, ...]:
        """The rows that were lost by the damage."""
        return self.damage.salvaged.lost if self.damage else ()


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


def open_database(path: Path, *, read_only: bool = False) -> OpenedDatabase:
    """Open or create the database at `path`.

    Of a damaged file the believable rows are copied to a new one, and the damaged file is kept under a name
    with the date. A ledger that this process cannot write is copied to a temporary folder and read there,
    with its journal, so that nothing that was committed is missing. read_only: change nothing here in any
    case, and raise InputError if nothing in the file can be believed.
    """
    # An empty file is a damaged one if it is read as a ledger, or if files of outcomes were stored beside it.
    had_content = read_only or (path.parent / "artifacts" / "sha256").is_dir()
    if path.exists() and not path.is_file():
        raise InfrastructureError(
            "cannot open the ledger",
            where=Location(path),
            why="it is a folder" if path.is_dir() else "it is not a file",
            fix="move it away, or choose another state folder with --state",
        )
    with database_errors(path, "open"):
        if read_only and not path.is_file():
            raise InputError("there is no ledger here", where=Location(path), fix="name the file of a ledger")
        if read_only or (path.is_file() and not _is_writable(path)):
            with ExitStack() as unless_opened:
                copy = Path(tempfile.mkdtemp(prefix="npu-matrix-ledger-"))
                unless_opened.callback(shutil.rmtree, copy, ignore_errors=True)
                opened = _open_writable(_copy_to(path, copy), had_content=had_content)
                unless_opened.callback(opened.connection.close)
                if read_only and opened.damage and opened.damage.salvaged.is_empty:
                    raise InputError(
                        "this file cannot be read as a ledger", where=Location(path), why=opened.damage.why
                    )
                opened.connection.execute("PRAGMA query_only = ON")
                unless_opened.pop_all()
            return replace(opened, copy=copy)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _open_writable(path, had_content=had_content)


def _open_writable(path: Path, *, had_content: bool) -> OpenedDatabase:
    opened = _connect_or_explain(path, had_content=had_content)
    if not isinstance(opened, str):
        return OpenedDatabase(connection=opened)
    # One process replaces the damaged file; the others then open the new one.
    with filelock.FileLock(path.with_name(path.name + ".recovery"), timeout=BUSY_SECONDS):
        opened = _connect_or_explain(path, had_content=had_content)
        if not isinstance(opened, str):
            return OpenedDatabase(connection=opened)
        damage = _replace_damaged(path, opened)
        return OpenedDatabase(connection=_connect(path), damage=damage)


def _connect_or_explain(path: Path, *, had_content: bool) -> sqlite3.Connection | str:
    """A connection, or how the database is damaged; SQLite would take an empty file for a new database."""
    if had_content and path.exists() and not path.stat().st_size:
        return "the file is empty"
    try:
        return _connect(path)
    except _DamageError as error:
        return str(error)
    except sqlite3.DatabaseError as error:
        if _primary_code(error) in NOT_DAMAGE:
            raise
        return str(error)
    except (UnicodeDecodeError, OverflowError) as error:
        return str(error)


class _DamageError(Exception):
    """The file is a ledger, but not as it was written."""


def _connect(path: Path) -> sqlite3.Connection:
    """Open, check and migrate. A commit survives power loss, and the file alone is the whole ledger."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _refuse_other_schema(connection, path)
        _leave_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        # Compares the indexes with the rows as well: a wrong index hides rows.
        (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if answer != "ok":
            raise _DamageError(answer)
        register_functions(connection)
        migrate(connection)
        broken = list(islice(broken_seals(connection), MOST_NAMED))
        if broken:
            rows = ", ".join(f"row {row_id} of {table}" for table, row_id in broken)
            raise _DamageError(f"not what was written: {rows}")
        install_seals(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _leave_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Use a rollback journal. Earlier versions used a write-ahead log: a copy of the file lacked commits."""
    try:
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.OperationalError as error:
        # Another process of an earlier version has it open. The log then stays in use.
        if _primary_code(error) not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise


def _replace_damaged(path: Path, why: str) -> DatabaseDamage:
    kept = _unused_name(path)
    fresh = path.with_name(f"{path.name}.salvaged")
    # A process that was killed while it repaired the ledger may have left it.
    _remove(fresh)
    try:
        # The damaged file keeps its name until the new one takes it: a crash in between loses nothing.
        for suffix in ("", *SIDE_FILES):
            side = path.with_name(path.name + suffix)
            if side.exists():
                shutil.copy2(side, kept.with_name(kept.name + suffix))
        salvaged = salvage(kept, fresh)
    except BaseException:
        _remove(fresh)
        _remove(kept)
        raise
    for suffix in SIDE_FILES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    fresh.replace(path)
    return DatabaseDamage(renamed_to=kept, why=why, salvaged=salvaged)


def _remove(database: Path) -> None:
    for suffix in ("", *SIDE_FILES):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _unused_name(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = path.with_name(f"{path.name}.corrupt-{stamp}")
    count = 1
    while kept.exists():
        count += 1
        kept = path.with_name(f"{path.name}.corrupt-{stamp}-{count}")
    return kept


def file_identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one that took its name; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _is_writable(path: Path) -> bool:
    effective = os.access in os.supports_effective_ids
    return all(os.access(one, os.W_OK, effective_ids=effective) for one in (path.parent, path))


def _copy_to(path: Path, folder: Path) -> Path:
    """A copy of the ledger with its journals, repeated while another process changes them."""
    files = [path.with_name(path.name + suffix) for suffix in ("", *SIDE_FILES)]
    for _ in range(COPY_ATTEMPTS):
        before = _state_of(files)
        for file in files:
            target = folder / file.name
            target.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                shutil.copyfile(file, target)
        if _state_of(files) == before:
            break
    return folder / path.name


def _state_of(files: Sequence[Path]) -> list[tuple[int, int] | None]:
    return [(one.stat().st_mtime_ns, one.stat().st_size) if one.exists() else None for one in files]


def _refuse_other_schema(connection: sqlite3.Connection, path: Path) -> None:
    version = schema_version(connection)
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    objects = schema_objects(connection)
    known = versions_by_schema().get(objects)
    if not objects or (known == version and application == APPLICATION_ID):
        return
    if known:
        raise _DamageError("its header does not fit its tables")
    if application == APPLICATION_ID and version <= LATEST:
        raise _DamageError("its tables are not those of a ledger")
    if application == APPLICATION_ID:
        raise InputError(
            f"the ledger has schema {version}, but this program supports schemas up to {LATEST}",
            where=Location(path),
            why="a newer npu-matrix wrote it",
            fix="use that version, or another state folder with --state",
        )
    raise InputError(
        "this SQLite database is not a ledger",
        where=Location(path),
        why=f"it has tables, and application id {application:#x} instead of {APPLICATION_ID:#x}",
        fix="choose another state folder with --state",
    )


def _primary_code(error: sqlite3.Error) -> int:
    # The higher bytes only say which variant of the error it is.
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
