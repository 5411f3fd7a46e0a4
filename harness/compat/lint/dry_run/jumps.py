"""What ends the statements that are being followed, other than an exception of the program."""

from __future__ import annotations

from harness.compat.lint.dry_run.program_values import Value


class BudgetError(Exception):
    """The program is longer than what is followed."""


class ReturnJump(Exception):  # noqa: N818 - not an error
    """`return` was reached."""

    def __init__(self, value: Value, keys: frozenset[str]) -> None:
        super().__init__()
        self.value, self.keys = value, keys


class BreakJump(Exception):  # noqa: N818 - not an error
    """`break` was reached."""


class ContinueJump(Exception):  # noqa: N818 - not an error
    """`continue` was reached."""
