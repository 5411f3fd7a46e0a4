from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.numerics.arithmetic.precision_contract import CONTRACTS, FORMATS, Contract, round_to

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1.0 + 2**-8, 1.0),
        (1.0 + 3 * 2**-8, 1.0 + 2**-6),
        (-3.0, -3.0),
        (1 + 4e-4, 1.0),
        (1e39, np.inf),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value, expected):
    assert round_to(value, "bf16") == expected


def test_not_finite_numbers_stay_what_they_are():
    values = round_to([np.nan, np.inf, -np.inf], "bf16")
    assert np.isnan(values[0])
    assert values[1:].tolist() == [np.inf, -np.inf]


@given(FLOATS, st.sampled_from(sorted(FORMATS)))
def test_rounding_is_idempotent_and_within_half_an_ulp(value, name):
    form = FORMATS[name]
    rounded = round_to(value, name)
    assert round_to(rounded, name) == rounded
    if form.flush < abs(value) < form.largest:
        relative = form.unit_roundoff * abs(value) * (1 + 1e-9)
        assert abs(rounded - value) <= max(relative, form.flush)


@given(FLOATS, FLOATS, st.sampled_from(sorted(FORMATS)))
def test_rounding_is_monotone(first, second, name):
    low, high = sorted((first, second))
    assert round_to(low, name) <= round_to(high, name)


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_a_contract_survives_json(name):
    contract = CONTRACTS[name]
    assert Contract.from_json(contract.to_json()) == contract


def test_a_contract_with_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="typo"):
        Contract.from_json({"name": "x", "io": "fp32", "typo": 1})
