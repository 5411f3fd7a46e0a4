"""The rows that were lost when a damaged ledger was repaired: what is older than they are is not believed."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from functools import cached_property

from harness.ledger.salvage import LostRow


@dataclass(frozen=True, kw_only=True, eq=False)
class LostRows:
    """All lost rows of a ledger. Most ledgers have none."""

    rows: tuple[LostRow, ...] = ()

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> LostRows:
        """The lost rows that the ledger remembers."""
        rows = connection.execute(
            "SELECT lost_table, row_id, key, check_name, run_id FROM lost_rows ORDER BY id"
        )
        return cls(
            rows=tuple(
                LostRow(table=table, row_id=row_id, key=key, check=check, run_id=run_id)
                for table, row_id, key, check, run_id in rows
            )
        )

    def hide(self, key: str, check: str, position: int) -> bool:
        """Whether an outcome was lost that is newer than `position`, and may be of the same key."""
        named = ((key, check), (key, ""), ("", check), ("", ""))
        return any(self._newest_outcomes.get(name, 0) > position for name in named)

    @cached_property
    def _newest_outcomes(self) -> dict[tuple[str, str], int]:
        newest: dict[tuple[str, str], int] = {}
        for row in self.rows:
            if row.table == "outcomes":
                newest[row.key, row.check] = max(newest.get((row.key, row.check), 0), row.row_id)
        return newest

    def outcome_of_run(self, run_id: str, key: str) -> bool:
        """Whether the outcome that a run recorded for a key was lost."""
        return any(
            row.table == "outcomes" and row.run_id == run_id and row.key in ("", key) for row in self.rows
        )

    def run_after(self, position: int) -> LostRow | None:
        """A run that is newer than the run at `position` and was lost, or whose plan was lost."""
        return next(
            (row for row in self.rows if row.table in {"runs", "plans"} and row.row_id > position),
            None,
        )
