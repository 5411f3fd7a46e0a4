"""What `advise AXIS --probe` asks next: the newest that is open, its cheapest tier, and nothing of what is settled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.ledger.plan_record import PlanEntry, Skip
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Evidence, Status, Tier
from harness.plan.feasibility.newest_versions import CellProof, CheckProof, newest_versions, next_probe

MATRIX = load_matrix(Path(__file__).parents[3] / "matrix.yaml")
CELLS = {cell.axes["verl"]: cell for cell in MATRIX.cells("default").cells if cell.device == "sim"}
CHECKS = {"resolve": Tier.STATIC, "patches": Tier.STATIC, "environment": Tier.BUILD, "loss": Tier.NUMERICS}
ENTRIES = [
    PlanEntry(cell_id=cell.id, check=name, tier=tier, question="?", key=f"{version} {name}")
    for version, cell in CELLS.items()
    for name, tier in CHECKS.items()
]


def asked(most, tried=(), entries=ENTRIES, **known):
    """`known`: version with underscores -> check -> status."""
    proofs = {}
    for version, cell in CELLS.items():
        statuses = known.get(f"v{version.replace('.', '_')}", {})
        answers = [
            CheckProof(check=name, status=statuses[name], evidence=Evidence.STATIC)
            if name in statuses
            else CheckProof(check=name, not_run="not run yet")
            for name in CHECKS
        ]
        proofs[cell.id] = CellProof(cell=cell, checks=tuple(answers))
    return next_probe(entries, newest_versions(MATRIX, "verl", [], proofs), most, tried)


PASSED = dict.fromkeys(CHECKS, Status.PASS)


def test_the_newest_is_asked_its_cheapest_tier_first():
    assert asked(Tier.NUMERICS) == ("0.9.1 resolve", "0.9.1 patches")
    static = {"resolve": Status.PASS, "patches": Status.PASS}
    assert asked(Tier.NUMERICS, v0_9_1=static) == ("0.9.1 environment",)
    assert asked(Tier.STATIC, v0_9_1=static) == ()


def test_what_failed_is_asked_nothing_more_and_an_older_one_instead():
    assert asked(Tier.NUMERICS, v0_9_1={"resolve": Status.FAIL}) == ("0.6.1 resolve", "0.6.1 patches")


def test_what_works_settles_it():
    assert asked(Tier.NUMERICS, v0_9_1=PASSED) == ()
    assert asked(Tier.NUMERICS, v0_9_1={"resolve": Status.FAIL}, v0_6_1=PASSED) == ()


def test_what_this_host_cannot_run_and_what_was_tried_is_not_asked():
    skip = Skip(status=Status.NOT_RUN, reason="no NPU")
    entries = [
        PlanEntry(cell_id=one.cell_id, check=one.check, tier=one.tier, question="?", skip=skip)
        for one in ENTRIES
    ]
    assert asked(Tier.NUMERICS, entries=entries) == ()
    assert asked(Tier.STATIC, tried={"0.9.1 resolve", "0.9.1 patches"}) == ()


@given(
    st.dictionaries(st.sampled_from(sorted(CHECKS)), st.sampled_from([Status.PASS, Status.FAIL])),
    st.sampled_from(Tier),
)
@settings(max_examples=40, deadline=None)
def test_asking_ends_and_never_asks_a_dearer_tier_of_what_failed(truth, most):
    known: dict[str, dict[str, Status]] = {"v0_9_1": {}, "v0_6_1": {}}
    for _step in range(len(ENTRIES) + 1):
        keys = asked(most, **known)
        if not keys:
            return
        version = f"v{keys[0].split()[0].replace('.', '_')}"
        assert Status.FAIL not in known[version].values()
        tiers = {CHECKS[key.split()[1]] for key in keys}
        assert len(tiers) == 1
        assert max(tier.rank for tier in tiers) <= most.rank
        for key in keys:
            check = key.split()[1]
            known[version][check] = truth.get(check, Status.PASS) if version == "v0_9_1" else Status.PASS
    pytest.fail("it never ends")
