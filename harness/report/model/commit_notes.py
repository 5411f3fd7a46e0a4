"""The commits between two runs, as a hint who changed an input and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.report.model.turning_points import ChangedPart, Turn, TurnCause

#: How many commits of a range are kept.
MOST_COMMITS = 20


@dataclass(frozen=True, kw_only=True)
class CommitNote:
    """A commit. date: ISO 8601. parts: what it changed of what keys are made of; empty in an upstream."""

    id: str
    author: str
    date: str
    subject: str
    parts: frozenset[ChangedPart] = frozenset()


@dataclass(frozen=True, kw_only=True)
class CommitRange:
    """The commits after one revision up to another, newest first; `more` were left out.

    upstream: the name of the clone, "" for this repository. missing: why there are none, or "".
    """

    commits: tuple[CommitNote, ...] = ()
    more: int = 0
    upstream: str = ""
    missing: str = ""


Revisions = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class CommitNotes:
    """The commits of this repository and of upstreams, by the revisions before and after."""

    own: Mapping[Revisions, CommitRange] = field(default_factory=dict)
    upstream: Mapping[Revisions, CommitRange] = field(default_factory=dict)

    def of(self, turn: Turn) -> tuple[CommitRange, ...]:
        """The commits that can have changed the inputs of a check that turned; none if no input changed."""
        if turn.cause is not TurnCause.INPUTS:
            return ()
        found = [self.upstream[pair] for pair in turn.difference.commits if pair in self.upstream]
        own = self.own.get(own_revisions(turn))
        if own is not None:
            commits = tuple(one for one in own.commits if one.parts & {*turn.difference.parts})
            if commits or own.missing:
                found.append(CommitRange(commits=commits, more=own.more, missing=own.missing))
        return tuple(found)


def own_revisions(turn: Turn) -> Revisions:
    """The revisions of the runs before and after, without the `+` of changed files.

    Of a run before that recorded none, it is that of the last run with the same inputs.
    """
    before = turn.before.revision or turn.before.known_at
    return before.removesuffix("+"), turn.after.revision.removesuffix("+")
