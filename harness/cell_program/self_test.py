"""Self-tests: a check injects faults and must catch each of them before its pass counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.outcome import Judgement, Status


@dataclass(frozen=True, kw_only=True)
class SelfTestFault:
    """One fault of a self-test.

    fault: its name. what: what it does. caught: whether the check passed this part of the self-test. legal:
    True when the injected deviation is within tolerance. The check must then not report it, and `caught` is
    True when it did not.
    """

    fault: str
    what: str
    caught: bool
    legal: bool = False


def judge_self_test(faults: Sequence[SelfTestFault], *extra_missed: str) -> Judgement | None:
    """Inconclusive when a fault was missed or none was injected, else None.

    extra_missed: names of missed faults in addition to those in `faults`.
    """
    missed = [fault.fault for fault in faults if not fault.caught and not fault.legal]
    missed += extra_missed
    reported = [fault.fault for fault in faults if not fault.caught and fault.legal]
    if faults and not missed and not reported:
        return None
    if not faults:
        what = "injected no fault"
    else:
        parts = [f"missed {', '.join(missed)}"] if missed else []
        parts += [f"reported {', '.join(reported)}, which is within tolerance"] if reported else []
        what = " and ".join(parts)
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=(f"The self-test {what}, so a pass would prove nothing.",),
        remedies=("Read self_test in the measurements, and report it together with the artifacts.",),
    )


def self_test_summary(faults: Sequence[SelfTestFault]) -> str:
    """A clause for the reasons of a pass: how many injected faults were caught."""
    injected = sum(not fault.legal for fault in faults)
    legal = len(faults) - injected
    caught = (
        "the injected fault was caught" if injected == 1 else f"all {injected} injected faults were caught"
    )
    return f"{caught}, and a deviation within tolerance was not reported" if legal else caught
