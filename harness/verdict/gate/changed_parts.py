"""Which parts of a check a change modifies, where a part that it does not modify could not be run.

For example, the check `patches` needs the sources of every upstream that has patches. If those of one
upstream cannot be fetched, the check has no verdict; but a change of patches for another one is verified.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.check import Check
from harness.ledger.plan_record import TaskRecord
from harness.outcome import Judgement, Outcome, Status
from harness.serialisation import to_json


@dataclass(frozen=True, kw_only=True)
class ChangedParts:
    """The judgements on the parts that a change modifies, adds or removes.

    before: those of the base, for parts that ran there. unrun: the parts without a verdict, which are the
    same on the base.
    """

    after: dict[str, Judgement]
    before: dict[str, Judgement]
    unrun: tuple[str, ...]

    @property
    def verified(self) -> str:
        """A sentence if every part that the change modifies passes and others were not run, else ""."""
        if not self.unrun or not self.after:
            return ""
        if any(one.status is not Status.PASS for one in self.after.values()):
            return ""
        return (
            f"verified in part: {', '.join(self.after)} passes, and the change modifies nothing else of it; "
            f"not run here, and the same on the base: {', '.join(self.unrun)}"
        )

    @property
    def broken(self) -> str:
        """A sentence if a part fails that passes on the base, else ""."""
        broken = [
            part
            for part, one in self.after.items()
            if one.status is Status.FAIL
            and (before := self.before.get(part)) is not None
            and before.status is Status.PASS
        ]
        return f"verdict of the base on {', '.join(broken)}: pass" if broken else ""


def changed_parts(
    check: Check, before: TaskRecord, after: TaskRecord, here: Outcome, base: Outcome | None
) -> ChangedParts | None:
    """Compare the parts of a check; None if it has none, or if the change modifies what is in no part.

    here, base: the outcomes of the change and of the base, which have no verdict as a whole.
    """
    parts = check.parts
    # The keys do not contain the code of the checks whose outcomes are inputs, such as `resolve`.
    modified, unmodified = (to_json([one.code_digest, one.params, one.needs]) for one in (after, before))
    if parts is None or modified != unmodified:
        return None
    old, new = (
        {part: to_json(read) for part, read in parts.inputs(one.facets).items()} for one in (before, after)
    )
    if old.pop("", None) != new.pop("", None):
        return None
    changed = [part for part in {**old, **new} if new.get(part) != old.get(part)]
    measured = check.read(here)
    verdicts = {part: parts.judge(measured, part) for part in {**old, **new}}
    on_base = check.read(base) if base is not None else None
    return ChangedParts(
        after={part: verdicts[part] for part in changed},
        before={part: parts.judge(on_base, part) for part in changed if part in old}
        if on_base is not None
        else {},
        unrun=tuple(part for part, one in verdicts.items() if one.status is Status.NOT_RUN),
    )
