"""Matmuls in a 16-bit format: which results are allowed, and what coarse partial sums give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.numerics.actor.matmul_recorder import interval
from harness.numerics.arithmetic.precision_contract import BF16_IO, FP16_IO, Contract, round_to

BLOCK = 16


def operands(seed: int, terms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(8, terms)), rng.normal(size=(terms, 12)), rng.normal(size=12)


def in_single(left: np.ndarray, right: np.ndarray, block: int) -> np.ndarray:
    """Sums of blocks in fp32, in another order."""
    total = np.zeros((len(left), right.shape[1]), dtype=np.float32)
    for first in range(0, left.shape[1], block):
        part = left[:, first : first + block].astype(np.float32) @ right[first : first + block].astype(
            np.float32
        )
        total = total + part
    return total.astype(np.float64)


def outside(found: np.ndarray, contract: Contract, *given: np.ndarray) -> int:
    low, high, _ = interval(contract, *given)
    return int((~((found >= low) & (found <= high))).sum())


@pytest.mark.parametrize("contract", [BF16_IO, FP16_IO], ids=lambda contract: contract.io)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 16, 64, 200]), st.sampled_from([1, 7, 64]))
@settings(max_examples=30, deadline=None)
def test_fp32_partial_sums_are_legal_in_any_order(
    contract: Contract, seed: int, terms: int, block: int
) -> None:
    left, right, bias = operands(seed, terms)
    rounded = [round_to(array, contract.io) for array in (left, right, bias)]
    product = in_single(rounded[0], rounded[1], block)
    assert outside(round_to(product, contract.io), contract, left, right) == 0
    fused = round_to(product.astype(np.float32) + rounded[2].astype(np.float32), contract.io)
    apart = round_to(round_to(product, contract.io) + rounded[2], contract.io)
    assert outside(fused, contract, left, right, bias) == 0
    assert outside(apart, contract, left, right, bias) == 0


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_bf16_partial_sums_show(seed: int) -> None:
    left, right, _ = operands(seed, 64)
    left, right = round_to(left, "bf16"), round_to(right, "bf16")
    total = np.zeros((8, 12))
    for first in range(0, 64, BLOCK):
        part = round_to(left[:, first : first + BLOCK] @ right[first : first + BLOCK], "bf16")
        total = round_to(total + part, "bf16")
    assert outside(total, BF16_IO, left, right) > 10


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0])
def test_an_element_that_is_not_the_products_is_outside(wrong: float) -> None:
    left, right, _ = operands(1, 64)
    found = round_to(round_to(left, "bf16") @ round_to(right, "bf16"), "bf16")
    assert outside(found, BF16_IO, left, right) == 0
    found[3, 4] = wrong
    assert outside(found, BF16_IO, left, right) == 1
