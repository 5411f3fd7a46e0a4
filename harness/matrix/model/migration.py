"""A version bump as an object: the old row and the new one are both planned until the new one is green.

What a migration waits for is not written here: a check of the new row that is known to fail stands among the
expectations like any other, which are strict. So a migration is done when its row needs no excuse any more.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import Location
from harness.matrix.model.definitions import Stack


@dataclass(frozen=True, kw_only=True)
class Migration:
    """Row `stack` moves to other values; `name` is the new row until the move is done.

    to: axis -> value in normal form. follows: axis -> a ref that moves, such as `main`, of values whose
    commit planning has to look up; their entry in `to` is the nominal version. until: when to be done.
    """

    name: str
    stack: str
    title: str
    to: Mapping[str, str]
    follows: Mapping[str, str]
    reason: str
    source: str
    owner: str
    until: dt.date | None
    provenance: Mapping[str, Location] = field(compare=False)
    where: Location = field(compare=False)

    def overdue(self, today: dt.date) -> bool:
        """Whether its date has passed."""
        return self.until is not None and today > self.until

    def row(self, old: Stack, commits: Mapping[str, str] | None = None) -> Stack | None:
        """The new row; `commits` says axis -> commit of what it follows, None while one of them is unknown.

        What is known to be inconsistent in the published source of the old row is no finding of the new one.
        """
        found = commits or {}
        if set(self.follows) - set(found):
            return None
        moved = {
            axis: f"{value}@{found[axis]}" if axis in self.follows else value
            for axis, value in self.to.items()
        }
        return Stack(
            name=self.name,
            title=self.title,
            source=self.source,
            axes={**old.axes, **moved},
            recipe=old.recipe,
            findings=(),
            notes=(f"moves {old.name} on: {self.reason}",),
            provenance={**old.provenance, **self.provenance},
            where=self.where,
        )
