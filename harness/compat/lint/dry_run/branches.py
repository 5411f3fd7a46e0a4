"""Alternatives of a followed program, of which any may be taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from harness.compat.lint.dry_run.journal import Changes, merged_value
from harness.compat.lint.dry_run.jumps import BreakJump, ContinueJump, ReturnJump
from harness.compat.lint.dry_run.program_values import OpenCheck, ProgramError

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk

MAX_BRANCHES = 12
_Jump: TypeAlias = "ReturnJump | BreakJump | ContinueJump"


@dataclass(frozen=True, kw_only=True)
class _End:
    """How a branch ends: what it leaves behind, and with which jump."""

    changes: Changes
    jump: _Jump | None


_NOTHING = _End(changes={}, jump=None)


class Branches:
    """Follows alternatives one after the other, and merges what they leave behind."""

    def __init__(self, run: ProgramWalk) -> None:
        self._run = run
        self._depth = 0
        #: Whether the function that is being followed may have returned before, in a round of a loop.
        self.may_have_returned = False

    def fork(self, sources: frozenset[str], branches: Sequence[Callable[[], object] | None]) -> None:
        """Follow alternatives. An exception that all of them raise escapes.

        sources: the unknown values of the launch script that decide between them. branches: None for one in
        which nothing happens.
        """
        errors: list[ProgramError] = []
        ends: list[_End] = []
        before, may_have_returned = self.may_have_returned, False
        for follow in branches:
            if follow is None:
                ends.append(_NOTHING)
            else:
                self.may_have_returned = before
                self._followed(follow, errors, ends)
                may_have_returned |= self.may_have_returned
        if sources:
            self._run.open_checks += [OpenCheck(place=error.place, sources=sources) for error in errors]
        if not ends:
            # Taken out of the list: this call's variables would keep it, and it keeps them.
            raise errors.pop(0)
        changes = [end.changes for end in ends]
        if any(changes):
            self._run.journal.merge(changes, sources)
        jumps = [end.jump for end in ends]
        returns = any(isinstance(jump, ReturnJump) for jump in jumps)
        self.may_have_returned = before or may_have_returned or returns
        _leave(jumps, sources)

    def first_round(self, follow: Callable[[], object]) -> None:
        """Follow the first of many rounds, which is certain to come. What the others change is not known."""
        with self._run.journal.branch(certain=True) as changes:
            follow()
        self._run.journal.merge([changes, {}], frozenset())

    def _followed(self, follow: Callable[[], object], errors: list[ProgramError], ends: list[_End]) -> None:
        jump: _Jump | None = None
        self._depth += 1
        try:
            with self._run.journal.branch() as changes:
                if self._depth <= MAX_BRANCHES:
                    follow()
        except (ReturnJump, BreakJump, ContinueJump) as end:
            jump = end.with_traceback(None)
        except ProgramError as error:
            # Its traceback would keep the values of every call that it passed through.
            errors.append(error.with_traceback(None))
            return
        finally:
            self._depth -= 1
        ends.append(_End(changes=changes, jump=jump))


def _leave(jumps: Sequence[_Jump | None], sources: frozenset[str]) -> None:
    """Jump as the branches do. A jump in only one of them is not followed."""
    returns = [jump for jump in jumps if isinstance(jump, ReturnJump)]
    if returns and len(returns) == len(jumps):
        value = merged_value([jump.value for jump in returns], sources)
        raise ReturnJump(value, frozenset().union(*(jump.keys for jump in returns)))
    if jumps and all(isinstance(jump, (BreakJump, ContinueJump)) for jump in jumps):
        raise BreakJump if isinstance(jumps[0], BreakJump) else ContinueJump
