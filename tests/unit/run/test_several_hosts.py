"""The outcome of a job on several hosts is the first failure, with its host named, never another host's pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from run_fakes import make_check

from harness.outcome import Evidence, Failure, Outcome, State, Tier
from harness.run.executors.several_hosts import joint_outcome

CHECK = make_check("hosts")
ADDRESSES = ("10.0.0.1", "10.0.0.2")


def outcome(finished: float, measurements: Mapping[str, Any] | None = None, failed: str = "") -> Outcome:
    return Outcome(
        key="k",
        check="hosts",
        tier=Tier.STATIC,
        state=State.ERROR if failed else State.COMPLETED,
        evidence=Evidence.CPU,
        facets={},
        measurements=measurements or {"ok": True},
        failure=Failure(kind="InfrastructureError", message=failed) if failed else None,
        finished=finished,
    )


def test_if_all_pass_it_is_that_of_the_first_host() -> None:
    first, second = outcome(2.0, {"ok": True, "host": 0}), outcome(1.0, {"ok": True, "host": 1})
    assert joint_outcome(CHECK, [(1, second), (0, first)], ADDRESSES, 2) is first


def test_a_host_that_is_lost_is_named_and_what_follows_from_it_is_not_taken() -> None:
    lost, ended = outcome(5.0, failed="the node was lost"), outcome(1.0, {"ok": False})
    for order in ([(1, lost), (0, ended)], [(0, ended), (1, lost)]):
        found = joint_outcome(CHECK, order, ADDRESSES, 2)
        assert found.state is State.ERROR
        assert found.failure
        assert found.failure.message == "host 10.0.0.2, 2 of 2: the node was lost"
    unknown = joint_outcome(CHECK, [(1, lost), (0, ended)], (), 2)
    assert unknown.failure
    assert unknown.failure.message.startswith("host 2 of 2: ")


def test_the_first_host_that_does_not_pass_is_the_cause_of_the_others() -> None:
    cause, after, fine = outcome(1.0, {"ok": False}), outcome(9.0, {"ok": False}), outcome(0.5)
    assert joint_outcome(CHECK, [(0, after), (2, fine), (1, cause)], (), 3) is cause
