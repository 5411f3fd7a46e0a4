"""The outcome of a job that ran on several hosts at the same time, from those of its hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.check import Check
from harness.outcome import Outcome, State, Status


def joint_outcome(
    check: Check, ended: Sequence[tuple[int, Outcome]], addresses: Sequence[str], hosts: int
) -> Outcome:
    """One of the outcomes: the first without a result, else the first that does not pass, else host 0's.

    ended: (index of the host, its outcome) in the order in which they arrived. The others follow from the
    first: a host that is alone fails too. addresses: of the hosts, empty if they are not known. hosts: their
    number. The failure of the result names its host.
    """
    for index, outcome in ended:
        if outcome.state is not State.COMPLETED:
            where = f"{addresses[index]}, " if addresses else ""
            name = f"host {where}{index + 1} of {hosts}"
            failure = outcome.failure and replace(
                outcome.failure, message=f"{name}: {outcome.failure.message}"
            )
            return replace(outcome, failure=failure)
    by_end = sorted(ended, key=lambda one: one[1].finished)
    for _, outcome in by_end:
        if check.judge(check.read(outcome), check.params).status is not Status.PASS:
            return outcome
    return min(ended, key=lambda one: one[0])[1]
