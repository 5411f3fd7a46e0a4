"""The judge passes correct arithmetic, fails wrong losses, and gives reasons that say what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mutants import LEGAL, MUTANTS, REGRESSIONS
from plain_losses import PlainCandidate

from harness.numerics.arithmetic.precision_contract import BF16_IO, BF16_NATIVE, FP16_IO, FP16_NATIVE, FP32
from harness.numerics.loss.candidate import CandidateResult, evaluate
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.judge_case import _wrong_gradients_inside, judge
from harness.numerics.loss.loss_measurements import LossStatus

CONTRACTS = (FP32, BF16_IO, FP16_IO)


@pytest.fixture(scope="module")
def batteries():
    """Cases and references by contract name, computed once."""
    cases = {contract.name: battery(seed=11, contract=contract) for contract in CONTRACTS}
    return {
        name: [(case, reference(case)) for case in entries if "-large/" not in case.name]
        for name, entries in cases.items()
    }


def verdicts(candidate, pairs):
    results = evaluate(candidate, [case for case, _ in pairs])
    return {case.name: judge(case, results[case.name], expected) for case, expected in pairs}


@pytest.mark.parametrize("contract", [contract.name for contract in CONTRACTS])
@pytest.mark.parametrize("name", sorted(LEGAL))
def test_legal_arithmetic_is_never_flagged(batteries, name, contract):
    flagged = {
        case: verdict
        for case, verdict in verdicts(LEGAL[name](), batteries[contract]).items()
        if not verdict.ok
    }
    assert flagged == {}


@pytest.mark.parametrize("name", sorted(MUTANTS | REGRESSIONS))
def test_a_wrong_loss_is_caught(batteries, name):
    found = verdicts((MUTANTS | REGRESSIONS)[name](), batteries["fp32"])
    failed = [verdict for verdict in found.values() if verdict.status is LossStatus.FAIL]
    assert failed
    assert not any(reason.startswith("raised") for verdict in failed for reason in verdict.reasons)


@pytest.fixture
def near():
    return next(case for case in battery(seed=11) if case.name == "policy/grpo-near/token-mean")


@pytest.fixture
def right(near):
    return evaluate(PlainCandidate(), [near])[near.name]


def test_a_doubled_gradient_reports_its_scale(near, right):
    verdict = judge(near, replace(right, gradient=right.gradient * 2))
    assert verdict.status is LossStatus.FAIL
    assert verdict.scale == pytest.approx(2.0, rel=1e-6)
    assert verdict.budget > 1000


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda r: replace(r, value=np.float64(np.nan)), "value is not finite"),
        (lambda r: replace(r, value=r.value + 1.0), "value is outside its interval"),
        (lambda r: replace(r, value=np.zeros(3)), "value has shape"),
        (lambda r: replace(r, gradient=None), "no gradient by log_prob"),
        (lambda r: replace(r, gradient=r.gradient[:, :-1]), "gradient has shape"),
        (lambda r: replace(r, gradient=r.gradient + 1e-12), "not exactly 0 on padding"),
        (lambda r: replace(r, gradient=r.gradient * np.nan), "gradient is not finite"),
        (lambda r: replace(r, error="raised ValueError: no"), "raised ValueError"),
    ],
)
def test_reasons_say_what_is_wrong(near, right, tamper, reason):
    verdict = judge(near, tamper(right))
    assert verdict.status is LossStatus.FAIL
    assert any(reason in entry for entry in verdict.reasons)


def test_what_a_candidate_does_not_offer_is_neither_pass_nor_fail(near):
    verdict = judge(near, CandidateResult(unsupported="no GRPO here"))
    assert verdict.status is LossStatus.UNSUPPORTED
    assert not verdict.ok


def test_arithmetic_that_cannot_carry_the_loss_is_ill_posed():
    """The clip range of the paper, numbers beyond the format, and a sum beyond it whose mean is not."""
    narrow = {case.name: case for case in battery(seed=11, contract=FP16_NATIVE)}
    wide = {case.name: replace(case, contract=FP16_NATIVE) for case in battery(seed=11)}
    for case in (
        narrow["policy/gspo-near/seq-mean-token-mean@fp16-native"],
        wide["kl/k3/large"],
        wide["policy/gspo-far/token-mean"],
    ):
        assert judge(case, PlainCandidate()(case)).status is LossStatus.ILL_POSED, case.name


def test_tokens_of_one_sequence_share_one_clip_decision():
    """A row whose ratio is exactly on the bound may be clipped or not, but not in part."""
    case = next(entry for entry in battery(seed=11) if entry.name == "policy/gspo-off/seq-mean-token-mean")
    rows, tokens = 2, 4
    ratio = np.full((rows, tokens), np.log(1.28), dtype=np.float32)
    inputs = {
        "old_log_prob": np.zeros_like(ratio),
        "log_prob": ratio,
        "advantages": np.ones_like(ratio),
        "response_mask": np.ones_like(ratio),
    }
    boundary = replace(case, inputs=inputs)
    expected = reference(boundary)
    assert expected.gradient.undecided.all()
    value = expected.value
    full = expected.gradient.full
    for legal in (full, np.zeros_like(full), full / 2, full * np.array([[0.0], [1.0]])):
        verdict = judge(boundary, CandidateResult(value=value, gradient=legal), expected)
        assert verdict.status is not LossStatus.FAIL, verdict
    torn = full * np.array([0.0, 1.0, 0.0, 1.0])
    assert judge(boundary, CandidateResult(value=value, gradient=torn), expected).status is LossStatus.FAIL


@pytest.mark.parametrize("contract", [BF16_NATIVE, FP16_NATIVE], ids=lambda one: one.name)
def test_a_pass_is_withheld_where_wrong_gradients_are_inside_the_tolerance(contract):
    """In native 16-bit arithmetic, the intervals of some cases contain zero, or a gradient 10 % off. That is
    also so for a gradient that is at the edge of its tolerance."""
    cases = [case for case in battery(seed=11, contract=contract) if case.gradient_of]
    passed = []
    for case in cases:
        expected = reference(case)
        if expected.overflow or expected.gradient is None:
            continue
        result = CandidateResult(value=expected.value, gradient=expected.gradient.exact)
        verdict = judge(case, result, expected)
        if verdict.status is LossStatus.PASS:
            passed.append(case.name)
            for factor in (0.0, 0.9, 1.1):
                for right in (expected.gradient.exact, expected.gradient.low, expected.gradient.high):
                    wrong = CandidateResult(value=expected.value, gradient=factor * right)
                    assert judge(case, wrong, expected).status is not LossStatus.PASS, (case.name, factor)
    assert passed


def test_fp32_arithmetic_tells_these_gradients_apart():
    for contract in (FP32, BF16_IO):
        for case in battery(seed=11, contract=contract):
            expected = reference(case)
            if expected.gradient is not None and expected.gradient.exact.any():
                assert not _wrong_gradients_inside(expected.gradient), case.name
