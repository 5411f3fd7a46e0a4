"""Migrations: version upgrades in progress. The old and the new stack are planned until the new one passes.

Checks of the new stack that are known to fail are listed under `expectations:`, like those of other stacks. A
migration is finished when its stack needs no expectations any more.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import Location
from harness.matrix.model.definitions import Stack


@dataclass(frozen=True, kw_only=True)
class Migration:
    """An upgrade of the stack `stack`; until it is finished, `name` is the stack with the new versions.

    to: axis -> new value in normal form. follows: axis -> a branch such as `main` whose current commit is
    looked up for each plan; `to` then has the nominal version. until: the date by which to finish.
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
        """Whether the date by which to finish has passed."""
        return self.until is not None and today > self.until

    def new_stack(self, old: Stack, commits: Mapping[str, str]) -> Stack | None:
        """The stack with the new versions; None if the commit of a followed branch is not known.

        commits: axis -> commit of the branch that it follows. The findings and failures of the old stack do
        not apply to the new one.
        """
        if self.follows.keys() - commits.keys():
            return None
        new_values = {
            axis: f"{value}@{commits[axis]}" if axis in self.follows else value
            for axis, value in self.to.items()
        }
        return Stack(
            name=self.name,
            title=self.title,
            source=self.source,
            axes={**old.axes, **new_values},
            recipe=old.recipe,
            findings=(),
            no_failures=f"reports are of the old versions, see the stack {old.name}",
            notes=(f"upgrades the stack {old.name}: {self.reason}",),
            provenance={**old.provenance, **self.provenance},
            where=self.where,
        )
