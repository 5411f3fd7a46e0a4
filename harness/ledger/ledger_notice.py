"""What the ledger must tell the user although the program continues."""

from __future__ import annotations

from pathlib import Path

from harness.errors import Problem
from harness.ledger.database import MOST_NAMED, DatabaseDamage


def damage_notice(path: Path, damage: DatabaseDamage, *, read_only: bool) -> Problem:
    """What was wrong with a ledger, what was lost of it by name, and what was copied."""
    lost = damage.salvaged.lost
    named = [str(row) for row in lost[:MOST_NAMED]]
    more = [f"and {len(lost) - MOST_NAMED} more rows"] if len(lost) > MOST_NAMED else []
    copied = damage.salvaged.copied
    kept = (
        "it cannot be written here, so a repaired copy is read and nothing is changed"
        if read_only
        else f"a new one was created; the damaged file is now {damage.renamed_to.name}"
    )
    return Problem(
        what=f"the ledger was damaged: {kept}",
        why=f"{path}: {damage.why}; "
        + (f"lost: {'; '.join([*named, *more])}" if lost else "no row is known to be lost"),
        fix=f"nothing: {copied.get('outcomes', 0)} readable outcomes and {copied.get('runs', 0)} runs were "
        "copied to the new ledger, the artifacts are kept, and the next run repeats the tasks whose outcomes "
        "were lost",
    )


def clock_notice(run_id: str, before: str, seconds: float) -> Problem:
    """A run started, by the clock, before its predecessor `before` ended."""
    return Problem(
        what=f"the clock was set back: by its clock, run {run_id} started {seconds:.0f} s before the end of "
        f"the previous run {before}",
        why="the times that are shown do not increase from run to run; histories follow the order in which "
        "the ledger was written, so they are right",
        fix="check the clock of this machine, for example with timedatectl",
    )
