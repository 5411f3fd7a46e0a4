"""An exit code with its reasons. Only `app.main` prints it, together with ending the process with it."""

from __future__ import annotations

from collections.abc import Sequence


class StatedExit(int):
    """The result of a command that prints its exit code as its last line."""

    reasons: tuple[str, ...]

    def __new__(cls, code: int, reasons: Sequence[str]) -> StatedExit:  # noqa: PYI034 - typing.Self needs Python 3.11
        """An exit code and why the command has it."""
        stated = super().__new__(cls, code)
        stated.reasons = tuple(reasons)
        return stated

    @property
    def line(self) -> str:
        """The last line of the command's output."""
        return f"exit {int(self)}: {'; '.join(self.reasons)}"
