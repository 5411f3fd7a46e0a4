"""The progress of a migration: compares the new row with the old row, check by check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.outcome import UNRUN, UNVERIFIED, Status
from harness.verdict.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class MigrationStep:
    """One check of both rows. `holds_up`: why the old row is still needed because of this check, or ""."""

    check: str
    old: Status | None
    new: Status | None
    holds_up: str = ""


@dataclass(frozen=True, kw_only=True)
class MigrationProgress:
    """All checks of a migration. It is done if a check of the new row passed and no check holds it up."""

    steps: tuple[MigrationStep, ...]

    @property
    def done(self) -> bool:
        """Whether the old row can be removed."""
        return any(step.new is Status.PASS for step in self.steps) and not self.waits_for

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The checks that hold the migration up, with the reasons."""
        return tuple(f"{step.check}: {step.holds_up}" for step in self.steps if step.holds_up)


def migration_progress(
    old: Iterable[Verdict], new: Iterable[Verdict], checks: Iterable[str] = ()
) -> MigrationProgress:
    """Compare the verdicts of two rows. `checks`: all planned checks, with or without an outcome.

    Expected failures of the new row hold the migration up too. If a check has an outcome for the old row, it
    must also run for the new row, even if it failed: that failure may be the reason for the migration. If it
    passes on the old row, it must pass on the new row on evidence that is not weaker.
    """
    before = {verdict.check: verdict for verdict in old}
    after = {verdict.check: verdict for verdict in new}
    names = dict.fromkeys([*checks, *after, *before])
    return MigrationProgress(
        steps=tuple(_step(check, before.get(check), after.get(check)) for check in names)
    )


def _step(check: str, old: Verdict | None, new: Verdict | None) -> MigrationStep:
    was, now = (old.status if old else None), (new.status if new else None)
    return MigrationStep(check=check, old=was, new=now, holds_up=_why_held_up(old, new))


def _why_held_up(old: Verdict | None, new: Verdict | None) -> str:
    if new is None:
        return "the new row has no outcome yet"
    was, now = (old.status if old else None), new.status
    if now is Status.PASS:
        if old is None or was is not Status.PASS or old.evidence is None:
            return ""
        if new.evidence is not None and new.evidence.rank >= old.evidence.rank:
            return ""
        weaker = new.evidence.value if new.evidence else "no"
        return f"passes on {old.evidence.value} evidence on the old row, on {weaker} evidence on the new one"
    if now in UNVERIFIED:
        if was is Status.PASS:
            return f"passes on the old row, {now.value} on the new one"
        if now in UNRUN and was is not None and was not in UNVERIFIED:
            return f"{was.value} on the old row, {now.value} on the new one"
        return ""
    return f"{now.value}: {new.reasons[0]}" if new.reasons else now.value
