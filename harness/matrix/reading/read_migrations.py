"""Reads the section `migrations`: version upgrades in progress."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from harness.matrix.document.yaml_positions import NodePath
from harness.matrix.model.migration import Migration
from harness.matrix.model.versions import MOVING_REFS
from harness.matrix.reading.resolve_names import Entry, NameResolver, text


def read_migration(resolver: NameResolver, name: str, entry: Entry) -> Migration:
    """The migration in `entry`, which satisfies the schema; problems are added to `resolver`."""
    path: NodePath = ("migrations", name)
    stacks = resolver.names("stacks")
    if name in stacks:
        resolver.problem(
            path, f"there is already a stack {name!r}", fix="choose another name for the migration", key=True
        )
    known = resolver.known((*path, "stack"), "stack", entry["stack"], stacks)
    written = {axis: text(value) for axis, value in entry["to"].items()}
    follows = {
        axis: ref for axis, value in written.items() if (ref := value.partition("@")[2]) in MOVING_REFS
    }
    nominal = {axis: value.partition("@")[0] if axis in follows else value for axis, value in written.items()}
    to = {axis: str(value) for axis, value in resolver.values((*path, "to"), nominal).items()}
    for axis in follows:
        if axis in to and not resolver.axes[axis].repository:
            resolver.problem(
                (*path, "to", axis),
                f"axis {axis!r} has no repository, so no branch can be followed",
                fix="write a version",
            )
    if known and not follows:
        _require_change(resolver, path, entry["stack"], to)
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


def _require_change(resolver: NameResolver, path: NodePath, stack: str, to: Mapping[str, str]) -> None:
    """Record a problem if the stack already has the versions of the migration."""
    entry = (resolver.document.data.get("stacks") or {}).get(stack)
    written = entry.get("axes") if isinstance(entry, dict) else None
    current = {axis: text(value) for axis, value in written.items()} if isinstance(written, dict) else {}
    if to and all(current.get(axis) == value for axis, value in to.items()):
        resolver.problem(
            path,
            f"stack {stack!r} already has these versions",
            fix="the migration is finished: remove the entry",
            key=True,
        )


def _date(word: str) -> dt.date:
    try:
        return dt.date.fromisoformat(word)
    except ValueError:
        raise ValueError(f"{word!r} is not a date such as 2027-01-31") from None
