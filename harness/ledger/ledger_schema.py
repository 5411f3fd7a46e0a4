"""The ledger's database schema as numbered migrations. A released migration is never edited."""

from __future__ import annotations

import sqlite3

# "npmx" in ASCII. It identifies the database, also to the program `file`.
APPLICATION_ID = 0x6E706D78

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
)

LATEST = len(MIGRATIONS)


def schema_version(connection: sqlite3.Connection) -> int:
    """The schema version of the database; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the missing migrations, each in one transaction. Several processes may do this at once."""
    while schema_version(connection) < LATEST:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = schema_version(connection)
            if version < LATEST:
                for statement in MIGRATIONS[version]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
