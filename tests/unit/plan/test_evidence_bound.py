"""The evidence of a stored outcome is never stronger than its task, its cell and its device can prove."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_outcome import make_outcome

from harness.check import Check
from harness.outcome import Evidence, Judgement, Measured, Status, Tier, Trust
from harness.plan.tasks.evidence_bound import bounded_outcome, strongest_evidence
from harness.plan.tasks.task import Task

REAL = {"device": "npu:0", "kind": "npu", "runtime": "cann", "count": 1, "available": True}
SIMULATED = {**REAL, "runtime": "simulated", "simulated": True}


def make_task(device: object, tier: Tier = Tier.NUMERICS) -> Task:
    check = Check(
        name="probe",
        tier=tier,
        question="?",
        facets=("device",),
        run=lambda _context: Measured(measurements={}, evidence=Evidence.STATIC),
        judge=lambda _measurements, _params: Judgement(status=Status.PASS),
    )
    facets = {} if device is None else {"device": device}
    return Task(key="k", check=check, facets=facets, facet_digests={}, code_digest="c")


tasks = st.builds(
    make_task,
    st.sampled_from([None, {"kind": "sim"}, {"kind": "npu"}, {"kind": "cpu"}, {"kind": "new"}, {}, "npu"]),
    st.sampled_from(Tier),
)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
devices = st.one_of(
    json,
    st.just(REAL),
    st.just(SIMULATED),
    st.builds(lambda extra: {**REAL, **extra}, json.filter(lambda value: isinstance(value, dict))),
)
measurements = st.one_of(
    st.builds(lambda device: {"device": device}, devices),
    st.builds(lambda device: {"probe": {"device": device}}, devices),
    st.dictionaries(st.sampled_from(["device", "probe", "x"]), json),
)


@given(tasks, st.sampled_from(Evidence), measurements)
def test_no_edit_of_evidence_or_measurements_promotes_an_outcome(task, evidence, measured):
    bounded = bounded_outcome(task, make_outcome(evidence=evidence, measurements=measured))
    found = bounded.outcome.evidence
    assert found.rank <= min(evidence.rank, strongest_evidence(task).rank)
    assert bool(bounded.lowered) is (found is not evidence)
    assert bounded_outcome(task, bounded.outcome).lowered == ""


def test_only_a_task_on_an_npu_can_be_hardware():
    assert strongest_evidence(make_task({"kind": "npu"})) is Evidence.HARDWARE
    assert strongest_evidence(make_task({"kind": "npu"}, Tier.STATIC)) is Evidence.STATIC
    assert strongest_evidence(make_task({"kind": "npu"}).record()) is Evidence.HARDWARE
    assert strongest_evidence(make_task({"kind": "sim"}).record()) is Evidence.SIMULATED
    assert strongest_evidence(make_task({"kind": ["npu"]}).record()) is Evidence.CPU
    assert strongest_evidence(None) is Evidence.STATIC


def test_measurements_of_a_real_device_do_not_make_a_simulated_cell_hardware():
    edited = make_outcome(evidence=Evidence.HARDWARE, measurements={"device": REAL})
    bounded = bounded_outcome(make_task({"kind": "sim"}), edited)
    assert bounded.outcome.evidence is Evidence.SIMULATED
    assert "states hardware evidence" in bounded.lowered
    assert "its check and cell can give simulated at most" in bounded.lowered


def test_hardware_evidence_with_measurements_of_a_simulated_device_is_simulated():
    edited = make_outcome(evidence=Evidence.HARDWARE, measurements={"probe": {"device": SIMULATED}})
    bounded = bounded_outcome(make_task({"kind": "npu"}), edited)
    assert bounded.outcome.evidence is Evidence.SIMULATED
    assert "the device in its measurements" in bounded.lowered
    real = make_outcome(evidence=Evidence.HARDWARE, measurements={"device": REAL})
    assert bounded_outcome(make_task({"kind": "npu"}), real).outcome is real


@pytest.mark.parametrize("foreign", [True, False], ids=["another machine", "an unnamed machine"])
@pytest.mark.parametrize("evidence", Evidence)
def test_an_unsigned_outcome_proves_nothing_about_hardware_whatever_it_states(evidence, foreign):
    unsigned = Trust(foreign=foreign, unsigned="no runner signed it")
    outcome = make_outcome(evidence=evidence, trust=unsigned)
    on_npu = bounded_outcome(make_task({"kind": "npu"}), outcome).outcome
    assert (on_npu.trust.claimed, on_npu.evidence) == ("no runner signed it", Evidence.STATIC)
    for task in (make_task({"kind": "sim"}), make_task({"kind": "npu"}, Tier.STATIC)):
        assert not bounded_outcome(task, outcome).outcome.trust.claimed
    signed = make_outcome(evidence=evidence, trust=Trust(foreign=True, signer="a2-host"))
    assert bounded_outcome(make_task({"kind": "npu"}), signed).outcome.evidence is evidence
