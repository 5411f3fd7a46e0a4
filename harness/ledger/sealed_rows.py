"""Seals: each row of the ledger has the digest of its table, its row id and all its columns.

The digest in an outcome covers its text only. A flipped bit in a column that a query uses (the key, the
state, the row id that orders the outcomes), in a run or in a plan would go unnoticed; the seal shows it.
Seals are no secret: they show damage, not forgery. They are written by temporary triggers of each connection
that `install_seals` prepared, so no statement that writes has to know them, and edits by other programs show.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator

SEAL_COLUMN = "seal"
#: Tables whose row ids are given in ascending order and never again.
COUNTED_TABLES = ("outcomes", "runs")
_HEX_DIGITS = 32


class StoredText(bytes):
    """A text of the database that may no longer be UTF-8. Plain bytes are BLOBs, which no text equals."""


def row_seal(table: str, row_id: int, values: tuple[object, ...]) -> str:
    """The seal of a row. values: all columns except the seal, in the table's order."""
    digest = hashlib.sha256()
    for value in (table, row_id, *values):
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        digest.update(b"%s%d:" % (_kind(value), len(data)))
        digest.update(data)
    return digest.hexdigest()[:_HEX_DIGITS]


def _kind(value: object) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, int | float):
        return b"i" if isinstance(value, int) else b"f"
    return b"s" if isinstance(value, str | StoredText) else b"b"


def sealed_tables(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Table -> its columns except the seal, for the tables that have one."""
    names = [
        str(name)
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    columns = {
        name: [str(row[1]) for row in connection.execute(f"PRAGMA table_info({name})")] for name in names
    }
    return {
        name: tuple(column for column in found if column != SEAL_COLUMN)
        for name, found in columns.items()
        if SEAL_COLUMN in found
    }


def install_seals(connection: sqlite3.Connection) -> None:
    """Make this connection seal and count every row that it inserts or updates; it needs `sql_functions`."""
    for table, columns in sealed_tables(connection).items():
        listed = ", ".join(columns)
        new = ", ".join(f"NEW.{column}" for column in columns)
        for event in ("INSERT", f"UPDATE OF {listed}"):
            connection.execute(
                # The names come from the schema of this program.
                f"CREATE TEMP TRIGGER IF NOT EXISTS seal_{table}_{event[:6].lower()} "  # noqa: S608
                f"AFTER {event} ON main.{table} BEGIN "
                f"UPDATE {table} SET {SEAL_COLUMN} = row_seal('{table}', NEW.rowid, {new}) "
                "WHERE rowid = NEW.rowid; END"
            )
    for table in COUNTED_TABLES:
        connection.execute(
            f"CREATE TEMP TRIGGER IF NOT EXISTS count_{table} AFTER INSERT ON main.{table} BEGIN "  # noqa: S608
            f"UPDATE row_counters SET highest = max(highest, NEW.rowid) WHERE counted = '{table}'; END"
        )


def next_row_id(table: str) -> str:
    """SQL for the row id of a new row: SQLite would give the id of a lost row again."""
    return f"(SELECT highest + 1 FROM row_counters WHERE counted = '{table}')"  # noqa: S608


def broken_seals(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """Table and row id of every row that is not what was written."""
    factory, connection.text_factory = connection.text_factory, StoredText
    try:
        for table, columns in _tables_as_text(connection, factory).items():
            rows = connection.execute(
                f"SELECT rowid, {SEAL_COLUMN}, {', '.join(columns)} FROM {table} NOT INDEXED"  # noqa: S608
            )
            for row_id, seal, *values in rows:
                if StoredText(row_seal(table, row_id, tuple(values)).encode()) != seal or type(seal) is bytes:
                    yield table, row_id
    finally:
        connection.text_factory = factory


def _tables_as_text(connection: sqlite3.Connection, factory: object) -> dict[str, tuple[str, ...]]:
    connection.text_factory = factory
    try:
        return sealed_tables(connection)
    finally:
        connection.text_factory = StoredText
