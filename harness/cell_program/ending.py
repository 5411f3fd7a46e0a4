"""How a program in the cell ended: measured, hung, crashed, or never set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Completed
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, InfrastructureError

MEASURED = "measured"
HUNG = "hung"
CRASHED = "crashed"
LAST_WORDS = 1000
MOST_TAIL = 4000


def require_setup(completed: Completed, what: str) -> None:
    """InfrastructureError when a program of ours says that it could not even begin: not the cell's doing."""
    if completed.returncode in {EXIT_BAD_INPUT, EXIT_INCOMPLETE} and not completed.timed_out:
        raise InfrastructureError(
            f"{what} could not be set up in the cell",
            why=completed.tail[-LAST_WORDS:].strip() or f"exit code {completed.returncode}",
            fix="mend what the message names, then run again",
        )


def failure(completed: Completed) -> dict[str, Any]:
    """Measurements of a program that hung or crashed, which is a measurement of the cell."""
    return {
        "state": HUNG if completed.timed_out else CRASHED,
        "returncode": completed.returncode,
        "tail": completed.tail[-MOST_TAIL:],
    }


def ended(measurements: Mapping[str, Any]) -> str:
    """`hung`, or `ended with code 1`."""
    if measurements["state"] == HUNG:
        return "hung"
    return f"ended with code {measurements['returncode']}"


def last_words(tail: str) -> tuple[str, ...]:
    """The last line of an output as a reason; none when it said nothing."""
    lines = [line for line in tail.strip().splitlines() if line.strip()]
    return (f"Its last words: {lines[-1].strip()}",) if lines else ()
