"""A version bump as an object: the old row and the new one are both planned until the new one is green.

What a migration waits for is not written here: a check of the new row that is known to fail stands among the
expectations like any other, which are strict. So a migration is done when its row needs no excuse any more.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.errors import Location
from harness.matrix.document.yaml_positions import NodePath
from harness.matrix.model.definitions import Stack
from harness.matrix.model.versions import FLOATING
from harness.matrix.reading.resolve_names import Resolver, text


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


def read_migration(resolver: Resolver, name: str, entry: Mapping[str, Any]) -> Migration:
    """The migration in `entry`, whose form has been checked; what is wrong is noted by `resolver`."""
    path: NodePath = ("migrations", name)
    stacks = resolver.names("stacks")
    if name in stacks:
        resolver.problem(path, f"there is a stack {name!r} already", fix="give the new row a name", key=True)
    known = resolver.known((*path, "stack"), "stack", entry["stack"], stacks)
    words = {axis: text(word) for axis, word in entry["to"].items()}
    follows = {axis: ref for axis, word in words.items() if (ref := word.partition("@")[2]) in FLOATING}
    nominal = {axis: word.partition("@")[0] if axis in follows else word for axis, word in words.items()}
    to = {axis: str(value) for axis, value in resolver.values((*path, "to"), nominal).items()}
    for axis in follows:
        if axis in to and not resolver.axes[axis].repository:
            resolver.problem(
                (*path, "to", axis), f"axis {axis!r} has no repository to follow", fix="write a version"
            )
    if known and not follows:
        _changes_something(resolver, path, entry["stack"], to)
    return Migration(
        name=name,
        stack=entry["stack"],
        title=text(entry["title"]),
        to=to,
        follows=follows,
        reason=text(entry["reason"]),
        source=text(entry["source"]),
        owner=text(entry["owner"]),
        until=resolver.attempt((*path, "until"), lambda: _date(text(entry["until"]))),
        provenance={axis: resolver.document.where((*path, "to", axis)) for axis in to},
        where=resolver.document.where(path, key=True),
    )


def _changes_something(resolver: Resolver, path: NodePath, stack: str, to: Mapping[str, str]) -> None:
    entry = (resolver.document.data.get("stacks") or {}).get(stack)
    written = entry.get("axes") if isinstance(entry, dict) else None
    now = {axis: text(word) for axis, word in written.items()} if isinstance(written, dict) else {}
    if to and all(now.get(axis) == value for axis, value in to.items()):
        resolver.problem(
            path, f"stack {stack!r} has these values already", fix="the move is done: remove it", key=True
        )


def _date(word: str) -> dt.date:
    try:
        return dt.date.fromisoformat(word)
    except ValueError:
        raise ValueError(f"{word!r} is no date, such as 2027-01-31") from None
