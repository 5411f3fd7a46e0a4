"""Copies everything believable of a damaged ledger into a new one, and names what is lost."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.ledger.ledger_schema import migrate
from harness.ledger.page_scan import FoundRow, Value, is_cut_off, scan_rows
from harness.ledger.run_record import read_plan
from harness.ledger.sealed_rows import COUNTED_TABLES, SEAL_COLUMN, install_seals, row_seal, sealed_tables
from harness.ledger.sql_functions import (
    is_attestation_row,
    is_disposition_row,
    is_outcome_row,
    is_plan_row,
    is_run_row,
    register_functions,
)

Believes = Callable[..., bool]
#: What makes a row without a seal believable, by table.
UNSEALED: dict[str, Believes] = {
    "outcomes": is_outcome_row,
    "plans": is_plan_row,
    "attestations": is_attestation_row,
    "runs": is_run_row,
    "dispositions": is_disposition_row,
}


@dataclass(frozen=True, kw_only=True)
class LostRow:
    """A row that cannot be believed. What its indexes and the plans still say of it; "" if they do not.

    table: the table that held it. row_id: its position there. and_later: whether later rows may be lost too.
    """

    table: str
    row_id: int
    key: str = ""
    check: str = ""
    run_id: str = ""
    cells: tuple[str, ...] = ()
    and_later: bool = False

    def __str__(self) -> str:
        what = {"outcomes": "the outcome", "runs": "the record", "plans": "the plan"}.get(self.table, "a row")
        parts = [
            f"of {self.check}" if self.check else "",
            f"on {', '.join(self.cells[:3])}" if self.cells else "",
            f"with key {self.key[:12]}" if self.key else "",
            f"of run {self.run_id}" if self.run_id else "",
        ]
        later = " and possibly later ones" if self.and_later else ""
        return " ".join([what, *filter(None, parts), f"(row {self.row_id} of {self.table}{later})"])


@dataclass(frozen=True, kw_only=True)
class Salvage:
    """What was copied from a damaged ledger: rows by table, and the rows that were lost."""

    copied: dict[str, int] = field(default_factory=dict)
    lost: tuple[LostRow, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no sign that the file ever was a ledger."""
        return not any(self.copied.values()) and not self.lost


def salvage(damaged: Path, into: Path) -> Salvage:
    """Create the ledger `into` with the believable rows of `damaged`; sqlite3.Error if that fails."""
    connection = sqlite3.connect(into, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        register_functions(connection)
        migrate(connection)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM row_counters")
        tables = [_Table.of(connection, name, columns) for name, columns in sealed_tables(connection).items()]
        for found in scan_rows(damaged):
            for table in tables:
                row = table.believed(found)
                if row is not None:
                    connection.execute(table.insert, (found.row_id, *row))
        install_seals(connection)
        copied = {
            table: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608
            for table in UNSEALED
        }
        lost = tuple(_lost_rows(connection, damaged))
        if not any(copied.values()) and all(row.and_later for row in lost):
            # There is nothing that a lost row could hide, and no sign that there ever were rows.
            lost = ()
        _count_rows(connection, lost)
        connection.executemany(
            "INSERT INTO lost_rows (lost_table, row_id, key, check_name, run_id) VALUES (?, ?, ?, ?, ?)",
            [(row.table, row.row_id, row.key, row.check, row.run_id) for row in lost],
        )
        connection.execute("COMMIT")
        return Salvage(copied=copied, lost=lost)
    finally:
        connection.close()


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A table of the new ledger, to recognise its rows by."""

    name: str
    types: tuple[str, ...]
    insert: str

    @classmethod
    def of(cls, connection: sqlite3.Connection, name: str, columns: tuple[str, ...]) -> _Table:
        types = {str(row[1]): str(row[2]) for row in connection.execute(f"PRAGMA table_info({name})")}
        listed = ("rowid", *columns, SEAL_COLUMN)
        return cls(
            name=name,
            types=tuple(types[column] for column in columns),
            # The names come from the schema of this program. An id among the columns is the row id.
            insert=f"INSERT OR REPLACE INTO {name} ({', '.join(listed)}) "  # noqa: S608
            f"VALUES ({', '.join('?' * len(listed))})",
        )

    def believed(self, found: FoundRow) -> tuple[object, ...] | None:
        """The columns and the seal of a row, if it is of this table; rows of old schemas are sealed here."""
        missing = len(self.types) - len(found.values)
        is_sealed = missing == -1
        if not is_sealed and (self.name not in UNSEALED or missing not in (0, 1)):
            return None
        try:
            # The only column that was added without a seal is `merged`, which is 0 where a row is shorter.
            row = tuple(
                _column(kind, value, found.row_id)
                for kind, value in zip(self.types, (*found.values, 0), strict=False)
            )
        except ValueError:
            return None
        seal = row_seal(self.name, found.row_id, row)
        if is_sealed:
            return (*row, seal) if seal.encode() == found.values[-1] else None
        return (*row, seal) if UNSEALED[self.name](*row) else None


def _column(kind: str, value: Value, row_id: int) -> object:
    """A value as SQLite returns it: whole numbers of REAL columns are stored as integers."""
    if kind == "TEXT" and isinstance(value, bytes):
        return value.decode()
    if kind == "REAL" and isinstance(value, int):
        return float(value)
    return row_id if kind == "INTEGER" and value is None else value


def _lost_rows(connection: sqlite3.Connection, damaged: Path) -> Iterator[LostRow]:
    """The rows that a gap in the row ids or an index shows to be missing in the new ledger."""
    cells: dict[str, dict[str, None]] = {}
    for (body,) in connection.execute("SELECT body FROM plans"):
        plan = read_plan(str(body))
        for entry in plan.entries if plan else ():
            cells.setdefault(entry.key, {})[entry.cell_id] = None
    indexed = _IndexedNames.read(damaged)
    known = set(connection.execute("SELECT lost_table, row_id FROM lost_rows"))
    counters = dict(connection.execute("SELECT counted, highest FROM row_counters"))
    is_end_known = counters.keys() == set(COUNTED_TABLES) or not is_cut_off(damaged)
    for table in COUNTED_TABLES:
        present = {row_id for (row_id,) in connection.execute(f"SELECT rowid FROM {table}")}  # noqa: S608
        named = indexed.names[table]
        end = max(present, default=0)
        # Without the counter, an index can name later rows; a row id that is too large is damaged itself.
        end = counters.get(table, max((one for one in named if one <= end + len(named)), default=end))
        if not is_end_known:
            yield LostRow(table=table, row_id=end + 1, and_later=True)
        for row_id in range(1, end + 1):
            if row_id not in present and (table, row_id) not in known:
                key, check, run_id = (named.get(row_id, {}).get(name, "") for name in _NAMES)
                yield LostRow(
                    table=table,
                    row_id=row_id,
                    key=key,
                    check=check,
                    run_id=run_id,
                    cells=tuple(cells.get(key, ())),
                )
    present = {row_id for (row_id,) in connection.execute("SELECT rowid FROM dispositions")}
    for row_id, names in indexed.names["dispositions"].items():
        if row_id not in present and ("dispositions", row_id) not in known:
            yield LostRow(
                table="dispositions",
                row_id=row_id,
                check=names.get("check_name", ""),
                run_id=names.get("run_id", ""),
            )
    without_plan = "SELECT rowid, run_id FROM runs WHERE plan NOT IN (SELECT digest FROM plans)"
    for row_id, run_id in connection.execute(without_plan).fetchall():
        if ("plans", row_id) not in known:
            yield LostRow(table="plans", row_id=row_id, run_id=run_id)


def _count_rows(connection: sqlite3.Connection, lost: tuple[LostRow, ...]) -> None:
    """Make the row ids of new rows larger than all earlier ones."""
    for number, table in enumerate(COUNTED_TABLES, 1):
        (highest,) = connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()  # noqa: S608
        counted = connection.execute(
            "SELECT highest FROM row_counters WHERE counted = ?", (table,)
        ).fetchone()
        largest = max([highest, *(counted or ()), *(row.row_id for row in lost if row.table == table)])
        connection.execute(
            "INSERT OR REPLACE INTO row_counters (id, counted, highest) VALUES (?, ?, ?)",
            (number, table, largest),
        )


_NAMES = ("key", "check_name", "run_id")
#: Table -> the indexes that have a name of a row, with that column.
_INDEXES = {
    "outcomes": (
        ("outcomes_by_key", "key"),
        ("sqlite_autoindex_outcomes_2", "key"),
        ("outcomes_by_check", "check_name"),
        ("outcomes_by_run", "run_id"),
    ),
    "runs": (("sqlite_autoindex_runs_1", "run_id"),),
    "dispositions": (
        ("sqlite_autoindex_dispositions_1", "run_id"),
        ("sqlite_autoindex_dispositions_1", "check_name"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class _IndexedNames:
    """Table -> row id -> column -> value, as far as the indexes of a damaged ledger can be read."""

    names: dict[str, dict[int, dict[str, str]]]

    @classmethod
    def read(cls, damaged: Path) -> _IndexedNames:
        names: dict[str, dict[int, dict[str, str]]] = {table: {} for table in _INDEXES}
        source = sqlite3.connect(f"{damaged.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        with contextlib.closing(source):
            for table, indexes in _INDEXES.items():
                for index, column in indexes:
                    # From both ends, because an error ends the reading.
                    for order in ("ASC", "DESC"):
                        for row_id, value in _read_index(source, table, index, column, order):
                            names[table].setdefault(row_id, {})[column] = value
        return cls(names=names)


def _read_index(
    source: sqlite3.Connection, table: str, index: str, column: str, order: str
) -> Iterator[tuple[int, str]]:
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError, OverflowError):
        for row_id, value in source.execute(
            f"SELECT rowid, {column} FROM {table} INDEXED BY {index} ORDER BY {column} {order}"  # noqa: S608
        ):
            if isinstance(row_id, int) and isinstance(value, str):
                yield row_id, value
