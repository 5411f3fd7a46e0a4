"""Error bounds must hold for every evaluation in the declared precision, here numpy's fp32 in several orders."""

from __future__ import annotations

import itertools
import math
import operator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.numerics.arithmetic.error_bounds import Bounded, choose, maximum, minimum
from harness.numerics.arithmetic.precision_contract import FORMATS, FP16_IO, FP16_NATIVE, FP32

SINGLES = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=40)


def exact(values) -> Bounded:
    return Bounded.exact(np.asarray(values, dtype=np.float32), FP32)


def holds(bounded: Bounded, computed) -> bool:
    return bool(
        np.all(np.abs(np.asarray(computed, dtype=np.float64) - bounded.value) <= bounded.error + 2.0**-126)
    )


@given(SINGLES, SINGLES)
def test_elementwise_operations_stay_within_their_bounds(first, second):
    size = min(len(first), len(second))
    a, b = (np.asarray(values[:size], dtype=np.float32) for values in (first, second))
    x, y = exact(a), exact(b)
    assert holds((x + y) * x - y, (a + b) * a - b)
    assert holds(maximum(x * y, x), np.maximum(a * b, a))
    assert holds(minimum(x * y, x), np.minimum(a * b, a))
    assert holds((x * y).clip(-1.5, 2.5), np.clip(a * b, np.float32(-1.5), np.float32(2.5)))
    assert holds(choose(a > b, x * y, x), np.where(a > b, a * b, a))


@given(st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=40))
def test_functions_stay_within_their_bounds(values):
    a = np.asarray(values, dtype=np.float32)
    x = exact(a)
    assert holds(x.exp(), np.exp(a))
    assert holds((x * x + 1.0).log(), np.log(a * a + np.float32(1)))
    assert holds((x * x).sqrt(), np.sqrt(a * a))
    assert holds(x / (x * x + 1.0), a / (a * a + np.float32(1)))


@given(SINGLES)
def test_sums_stay_within_their_bounds_in_any_order(values):
    a = np.asarray(values, dtype=np.float32)
    bound = exact(a).sum()
    for order in (a, a[::-1], np.sort(a)):
        assert holds(bound, order.sum(dtype=np.float32))
        assert holds(bound, np.add.accumulate(order)[-1])


def test_an_input_has_no_error_and_a_certainly_clipped_value_forgets_its_own():
    assert not exact([1.0, 2.0]).error.any()
    wild = Bounded(np.array([50.0]), np.array([1.0]), FP32)
    assert wild.clip(high=10.0).error[0] < 1e-5


# Sums and products of these are exact in float64.
OFF = st.tuples(st.integers(-8192, 8192), st.integers(0, 4096)).map(
    lambda pair: (pair[0] / 1024, pair[1] / 1024)
)


@given(OFF, OFF)
def test_errors_of_operands_are_carried_however_large_they_are(left, right):
    """Evaluate at the corners of the operands' intervals, where sums and products are farthest from the exact
    values."""
    one, other = (Bounded(np.array([value]), np.array([error]), FP32) for value, error in (left, right))
    corners = list(itertools.product(*((value - error, value + error) for value, error in (left, right))))
    for operation in (operator.add, operator.sub, operator.mul):
        bounded = operation(one, other)
        farthest = max(abs(operation(a, b) - operation(left[0], right[0])) for a, b in corners)
        assert farthest <= bounded.error[0]
    if abs(right[0]) > right[1]:
        quotient = one / other
        assert max(abs(a / b - left[0] / right[0]) for a, b in corners) <= quotient.error[0]


@given(OFF)
def test_errors_of_an_argument_are_carried_however_large_they_are(given_):
    value, error = given_
    argument = Bounded(np.array([value]), np.array([error]), FP32)
    for function, bounded in ((math.exp, argument.exp()), (abs, maximum(argument, -argument))):
        found = max(abs(function(at) - function(value)) for at in (value - error, value + error))
        assert found <= bounded.error[0]
    positive = Bounded(np.array([value + 8.0]), np.array([min(error, value + 8.0)]), FP32)
    for at in (positive.value - positive.error, positive.value + positive.error):
        assert abs(math.sqrt(at[0]) - math.sqrt(value + 8.0)) <= positive.sqrt().error[0]
    if positive.value[0] > 2 * positive.error[0]:
        for at in (positive.value - positive.error, positive.value + positive.error):
            assert abs(math.log(at[0]) - math.log(value + 8.0)) <= positive.log().error[0]


def test_what_leaves_the_format_is_marked():
    thousand = Bounded.exact(np.array([1000.0]), FP16_NATIVE)
    assert (thousand * thousand).overflow
    assert not (Bounded.exact(np.array([1000.0]), FP16_IO) * 1000.0).overflow
    assert ((thousand * thousand) * 0.0 + 1.0).overflow
    # A computed value may exceed the exact one by its error.
    limit = FORMATS["fp16"].largest
    near = Bounded(np.array([limit - 600.0]), np.array([300.0]), FP16_NATIVE)
    assert not (near + 0.0).overflow
    assert (Bounded(near.value, 3 * near.error, FP16_NATIVE) + 0.0).overflow
