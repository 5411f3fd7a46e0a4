"""The ledger's database schema as numbered migrations. A released migration is never edited."""

from __future__ import annotations

import sqlite3
from functools import cache

from harness.ledger.sealed_rows import SEAL_COLUMN, sealed_tables

# "npmx" in ASCII. It identifies the database, also to the program `file`.
APPLICATION_ID = 0x6E706D78
DIGEST_LENGTH = 64

# Migration n (counted from 1) changes a database from schema n-1 to schema n.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE outcomes (
            id         INTEGER PRIMARY KEY,
            uid        TEXT NOT NULL UNIQUE,
            key        TEXT NOT NULL,
            check_name TEXT NOT NULL,
            state      TEXT NOT NULL,
            attempt    INTEGER NOT NULL,
            run_id     TEXT NOT NULL,
            merged     INTEGER NOT NULL,
            started    REAL NOT NULL,
            finished   REAL NOT NULL,
            body       TEXT NOT NULL,
            UNIQUE (key, attempt)
        )
        """,
        "CREATE INDEX outcomes_by_key ON outcomes (key, state, merged, id)",
        "CREATE INDEX outcomes_by_check ON outcomes (check_name, id)",
        "CREATE INDEX outcomes_by_run ON outcomes (run_id)",
        """
        CREATE TABLE runs (
            run_id    TEXT PRIMARY KEY,
            started   REAL NOT NULL,
            finished  REAL,
            exit_code INTEGER,
            argv      TEXT NOT NULL,
            host      TEXT NOT NULL,
            plan      TEXT NOT NULL
        )
        """,
        """
        CREATE TABLE dispositions (
            run_id     TEXT NOT NULL REFERENCES runs (run_id),
            cell_id    TEXT NOT NULL,
            check_name TEXT NOT NULL,
            key        TEXT NOT NULL,
            status     TEXT NOT NULL,
            reason     TEXT NOT NULL,
            at         REAL NOT NULL,
            PRIMARY KEY (run_id, cell_id, check_name)
        )
        """,
    ),
    # Most runs have the same plan as the previous run: a plan is stored once, `runs.plan` is its digest.
    (
        "CREATE TABLE plans (digest TEXT PRIMARY KEY, body TEXT NOT NULL)",
        "INSERT INTO plans (digest, body) SELECT run_id, plan FROM runs",
        "UPDATE runs SET plan = run_id",
    ),
    # Merging ledgers also merges runs, because their plans contain the earlier keys of an entry.
    ("ALTER TABLE runs ADD COLUMN merged INTEGER NOT NULL DEFAULT 0",),
    # Signed statements of runners about outcomes; an outcome can have several, for example after a new key.
    (
        """
        CREATE TABLE attestations (
            uid       TEXT NOT NULL,
            statement TEXT NOT NULL,
            signature TEXT NOT NULL,
            PRIMARY KEY (uid, statement, signature)
        )
        """,
    ),
    # Seals (`sealed_rows`). Every table that a later migration creates needs the column too.
    (
        """
        CREATE TABLE lost_rows (
            id         INTEGER PRIMARY KEY,
            lost_table TEXT NOT NULL,
            row_id     INTEGER NOT NULL,
            key        TEXT NOT NULL,
            check_name TEXT NOT NULL,
            run_id     TEXT NOT NULL,
            seal       TEXT NOT NULL DEFAULT ''
        )
        """,
        # Plans of ledgers that were created with schema 1 are named after their run.
        """
        UPDATE runs SET plan = (SELECT text_digest(body) FROM plans WHERE digest = runs.plan)
        WHERE plan = run_id AND EXISTS (SELECT 1 FROM plans WHERE digest = runs.plan)
        """,
        "UPDATE OR IGNORE plans SET digest = text_digest(body) WHERE length(digest) != 64",
        "DELETE FROM plans WHERE length(digest) != 64",
        # The highest row id that was ever given, so that lost rows at the end of a table are noticed.
        """
        CREATE TABLE row_counters (
            id      INTEGER PRIMARY KEY,
            counted TEXT NOT NULL,
            highest INTEGER NOT NULL,
            seal    TEXT NOT NULL DEFAULT ''
        )
        """,
        """
        INSERT INTO row_counters (id, counted, highest)
        SELECT 1, 'outcomes', coalesce(max(rowid), 0) FROM outcomes
        UNION ALL SELECT 2, 'runs', coalesce(max(rowid), 0) FROM runs
        """,
    ),
)

LATEST = len(MIGRATIONS)
#: The first schema whose rows have seals.
SEALED_VERSION = next(number for number, steps in enumerate(MIGRATIONS, 1) if "lost_rows" in steps[0])


def schema_version(connection: sqlite3.Connection) -> int:
    """The schema version of the database; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def schema_objects(connection: sqlite3.Connection) -> frozenset[tuple[str, ...]]:
    """Type, name, table and SQL text of all tables and indexes."""
    return frozenset(
        tuple(map(str, row))
        for row in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    )


@cache
def versions_by_schema() -> dict[frozenset[tuple[str, ...]], int]:
    """The tables and indexes of each schema version -> the version."""
    found = {}
    connection = sqlite3.connect(":memory:", isolation_level=None)
    # Only the tables matter here, not what is in them.
    for name in ("text_digest", "row_seal", "is_outcome_row"):
        connection.create_function(name, -1, lambda *_values: "")
    for version in range(LATEST):
        _apply(connection, version)
        found[schema_objects(connection)] = version + 1
    connection.close()
    return found


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the missing migrations, each in one transaction. Several processes may do this at once.

    The connection needs the functions of `sql_functions`.
    """
    while schema_version(connection) < LATEST:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = schema_version(connection)
            if version < LATEST:
                _apply(connection, version)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def _apply(connection: sqlite3.Connection, version: int) -> None:
    for statement in MIGRATIONS[version]:
        connection.execute(statement)
    if version + 1 == SEALED_VERSION:
        _seal_rows(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version + 1}")


def _seal_rows(connection: sqlite3.Connection) -> None:
    """Add the seals to tables of earlier versions; an outcome that differs from its own digest gets none."""
    tables = sorted(
        row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    )
    for table in tables:
        if table not in sealed_tables(connection):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {SEAL_COLUMN} TEXT NOT NULL DEFAULT ''")
    for table, columns in sealed_tables(connection).items():
        listed = ", ".join(columns)
        condition = f"is_outcome_row({listed})" if table == "outcomes" else "1"
        connection.execute(
            # The names come from the schema of this program.
            f"UPDATE {table} SET {SEAL_COLUMN} = row_seal('{table}', rowid, {listed}) WHERE {condition}"  # noqa: S608
        )
