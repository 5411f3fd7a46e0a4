"""Relations alone: kept by legal arithmetic, broken by wrong losses, without any reference."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants import LEGAL, MUTANTS

from harness.numerics.candidate import UnsupportedCaseError
from harness.numerics.metamorphic import violations
from harness.numerics.plain import PlainCandidate

SEEN = sorted(
    name
    for name in MUTANTS
    if not name.startswith(("k1", "k2", "k3", "abs", "limit", "entropy", "logprob", "loss-scale"))
)


@pytest.mark.parametrize("name", sorted(LEGAL))
def test_legal_arithmetic_keeps_every_relation(name):
    broken = [violation for violation in violations(LEGAL[name]()) if violation.broken]
    assert broken == []


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1))
def test_relations_hold_for_any_seed(seed):
    assert [violation for violation in violations(PlainCandidate(), seed) if violation.broken] == []


@pytest.mark.parametrize("name", SEEN)
def test_a_wrong_loss_breaks_a_relation(name):
    broken = any(violation.broken for violation in violations(MUTANTS[name]()))
    assert broken


def test_what_a_candidate_does_not_offer_is_left_out():
    class NoGlobal(PlainCandidate):
        def __call__(self, case):
            if "global_denominators" in case.requires:
                raise UnsupportedCaseError("no")
            return super().__call__(case)

    names = {violation.relation.split("/")[0] for violation in violations(NoGlobal())}
    assert "micro-batches" not in names
    assert "batch-order" in names
