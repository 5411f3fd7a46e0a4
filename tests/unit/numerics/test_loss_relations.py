"""Correct arithmetic fulfils the relations, and wrong losses violate them, without any reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants import LEGAL, MUTANTS
from plain_losses import PlainCandidate
from relations.loss_relations import violations

from harness.errors import InputError
from harness.numerics.loss.candidate import UnsupportedCaseError

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


def test_a_weight_that_is_slightly_uneven_is_seen_by_its_own_relation():
    def tilted(case):
        result = PlainCandidate()(case)
        if case.operation != "policy":
            return result
        rows, tokens = np.indices(result.gradient.shape)
        return replace(result, gradient=result.gradient * (1 + 2.0**-10 * (rows + tokens) / rows.size))

    weights = [found for found in violations(tilted) if found.relation.startswith("row-weight")]
    assert weights
    assert all(found.broken for found in weights)


def test_what_a_candidate_does_not_offer_is_left_out():
    class NoGlobal(PlainCandidate):
        def __call__(self, case):
            if "global_denominators" in case.requires:
                raise UnsupportedCaseError("no")
            return super().__call__(case)

    names = {violation.relation.split("/")[0] for violation in violations(NoGlobal())}
    assert "micro-batches" not in names
    assert "batch-order" in names


class Only(PlainCandidate):
    """Offers only some operations."""

    def __init__(self, *offered):
        super().__init__()
        self.offered = offered

    def __call__(self, case):
        if case.operation not in self.offered:
            raise UnsupportedCaseError("no")
        return super().__call__(case)


def test_what_offers_nothing_is_refused_for_nothing_was_checked():
    with pytest.raises(InputError, match="offers nothing"):
        violations(Only())


@pytest.mark.parametrize("operation", ["entropy", "logprob"])
def test_one_operation_is_asked_whether_or_not_another_is_offered(operation):
    found = violations(Only(operation))
    assert [violation.relation for violation in found] == [f"{operation}-shift", f"{operation}-gradient-sum"]
    assert not any(violation.broken for violation in found)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda result: replace(result, gradient=None), "returned no gradient"),
        (
            lambda result: replace(result, gradient=result.gradient[:1]),
            "gradient has shape (1, 24), not (8, 24)",
        ),
        (lambda result: replace(result, value=np.ones(3)), "value has shape (3,), not ()"),
        (lambda result: replace(result, value=None), "returned no value"),
        (lambda result: result.missing, "raised AttributeError"),
    ],
)
def test_a_result_that_is_none_breaks_the_relation_and_says_why(change, why):
    found = violations(lambda case: change(Only("policy")(case)))
    assert all(violation.broken for violation in found)
    assert all(why in violation.why for violation in found if violation.relation.startswith("homogeneous"))
