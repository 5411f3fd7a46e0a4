"""The report of the gate: the classified entries of a change, what was compared, and the exit code."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.outcome import ANSWERED, Evidence, Status
from harness.settings import DEFAULT_PROFILE

CellCheck = tuple[str, str]
#: The statuses that decide something about a cell, so that a change can be compared with them.
COMPARABLE = ANSWERED - {Status.INCONCLUSIVE}


class GateClass(str, enum.Enum):
    """The effect of a change on one (cell, check).

    `UNKNOWN`: it fails, and the base has no outcome to compare with. `REMOVED`: only the base plans it.
    `INFRA`: planned, but without a decided outcome. `AWAITED`: without an outcome, and the user stated that
    another job provides it.
    """

    NEW = "new"
    UNKNOWN = "unknown"
    REMOVED = "removed"
    FIXED = "fixed"
    FLAKY = "flaky"
    KNOWN = "known"
    INFRA = "infra"
    AWAITED = "awaited"
    NOT_RUN = "not-run"
    PASSED = "passed"


class Blocks(str, enum.Enum):
    """Whether an item makes the gate fail, and why."""

    NO = "no"
    UNEXPECTED = "unexpected"
    INCOMPLETE = "incomplete"


#: Classes of items for which no check ran here.
NOTHING_RAN = frozenset({GateClass.NOT_RUN, GateClass.AWAITED, GateClass.REMOVED})


@dataclass(frozen=True, kw_only=True)
class Place:
    """The line that an annotation points to: a file of the repository, and its line (1 for a whole file)."""

    file: str
    line: int = 1


@dataclass(frozen=True, kw_only=True)
class GateItem:
    """One classified entry of the plan. `evidence`: sentences that name keys and runs of the ledger.

    changed: whether the key differs from that of the base, or the base has none. obtained: how the outcome
    was obtained. changes: the inputs that the change modified. place: the line that sets them. reproduce: the
    command that runs the check. declared: whether the change itself declares this failure as expected.
    """

    cell_id: str
    check: str
    gate_class: GateClass
    blocks: Blocks
    status: Status
    key: str = ""
    changed: bool = False
    obtained: Evidence | None = None
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    place: Place | None = None
    reproduce: str = ""
    declared: bool = False


@dataclass(frozen=True, kw_only=True)
class GateScope:
    """What the gate compared, and what it could not.

    commit: of the base, if it is a git revision. is_head: whether the base is this checkout itself.
    changed_files: the number of files that differ from it; None if it is not a revision. unread_files: those
    of them that no key reads. left_out: entries that the profile leaves out here and on the base, and whose
    key changed. notes: further sentences.
    """

    profile: str = DEFAULT_PROFILE
    commit: str = ""
    is_head: bool = False
    changed_files: int | None = None
    unread_files: tuple[str, ...] = ()
    left_out: tuple[CellCheck, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """The classified entries, and problems that block the change by themselves.

    untouched: the number of entries that are left out, because they have no outcome and the same key as on
    the base. unverified: sentences about what could not be compared; they block with exit code 4.
    awaiting, accept_removed: the patterns of these options.
    """

    base: str
    items: tuple[GateItem, ...]
    untouched: int = 0
    problems: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    scope: GateScope = GateScope()
    awaiting: tuple[str, ...] = ()
    accept_removed: tuple[str, ...] = ()

    @property
    def counts(self) -> Mapping[GateClass, int]:
        """Class -> number of items, in the order of the classes."""
        counted = Counter(item.gate_class for item in self.items)
        return {one: counted[one] for one in GateClass}

    @property
    def gone(self) -> tuple[CellCheck, ...]:
        """The entries that only the base plans."""
        return tuple(
            (item.cell_id, item.check) for item in self.items if item.gate_class is GateClass.REMOVED
        )

    @property
    def declared(self) -> int:
        """How many failures the change itself declares as expected."""
        return sum(item.declared for item in self.items)

    @property
    def changed_keys(self) -> frozenset[str]:
        """The distinct keys that differ from the base."""
        return frozenset(item.key for item in self.items if item.changed)

    @property
    def decided_keys(self) -> Mapping[str, Evidence]:
        """The changed keys with an outcome, and how it was obtained."""
        return {
            item.key: item.obtained
            for item in self.items
            if item.changed and item.obtained and item.status in ANSWERED
        }

    @property
    def exit_code(self) -> int:
        """1 if an item is unexpected, else 4 if an outcome is missing, else 0; 3 if nothing was compared."""
        blocking = {item.blocks for item in self.items}
        if Blocks.UNEXPECTED in blocking or self.problems:
            return EXIT_UNEXPECTED
        if Blocks.INCOMPLETE in blocking or self.unverified:
            return EXIT_INCOMPLETE
        if self.scope.is_head:
            return EXIT_NOTHING_SELECTED
        ran = any(item.gate_class not in NOTHING_RAN for item in self.items)
        return EXIT_OK if ran or self.untouched else EXIT_NOTHING_SELECTED

    @property
    def blocking(self) -> tuple[GateItem, ...]:
        """The items that block the gate, unexpected ones first."""
        found = [item for item in self.items if item.blocks is not Blocks.NO]
        return tuple(sorted(found, key=lambda item: item.blocks is not Blocks.UNEXPECTED))
