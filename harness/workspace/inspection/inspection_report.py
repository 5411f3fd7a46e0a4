"""What `npu-matrix inspect` found: problems, those that hurt first at the top, and what was left out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.compat.inspection.stated_packages import Inventory


class Stage(str, enum.Enum):
    """When a problem shows, soonest first."""

    INSTALL = "install"
    IMPORT = "import"
    FIRST_STEP = "first step"
    NUMBERS = "wrong numbers"
    LATER = "later"

    @property
    def rank(self) -> int:
        """0 for the soonest."""
        return list(Stage).index(self)


@dataclass(frozen=True, kw_only=True)
class Move:
    """A version to change. before: "" for a package that is not there."""

    package: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.package} {self.before or 'not installed'} -> {self.after}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """Versions to move, which were tried. passed: checks that pass then. open: what could not be tried."""

    moves: tuple[Move, ...]
    passed: tuple[str, ...]
    open: tuple[str, ...] = ()

    def __str__(self) -> str:
        tried = f"tried: {', '.join(self.passed)} pass" if self.passed else ""
        unknown = f"not tried: {', '.join(self.open)}" if self.open else ""
        return f"{', '.join(map(str, self.moves))} ({'; '.join(filter(None, (tried, unknown)))})"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is wrong, or known about these versions.

    fails: whether it makes the answer "no". check: what found it. involved: packages or axes whose versions
    could be moved. remedy: a sentence; change: versions to move, None if none was found.
    """

    stage: Stage
    fails: bool
    check: str
    text: str
    source: str = ""
    involved: tuple[str, ...] = ()
    remedy: str = ""
    change: Change | None = None


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result. axes: the versions that were compared. looked_at, not_looked_at: sentences.
    unanswered: the checks without an answer."""

    inventory: Inventory
    axes: Mapping[str, str]
    problems: tuple[Problem, ...]
    looked_at: tuple[str, ...]
    not_looked_at: tuple[str, ...]
    unanswered: tuple[str, ...] = ()

    @property
    def failing(self) -> tuple[Problem, ...]:
        """The problems that make the answer "no"."""
        return tuple(problem for problem in self.problems if problem.fails)

    def sorted(self) -> Inspection:
        """The same with what hurts first at the top, and each text once."""
        unique = {(one.text, one.check): one for one in self.problems}
        ordered = sorted(unique.values(), key=lambda one: (not one.fails, one.stage.rank))
        return replace(self, problems=tuple(ordered))
