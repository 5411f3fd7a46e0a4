from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.rollout.generation.generation_compare import compare_case, distance
from harness.rollout.generation.generation_measurements import (
    CaseRun,
    FaultResult,
    FaultRun,
    GeneratedCase,
    GeneratedRequest,
    LogProbTolerance,
    ReferenceCase,
    ReferenceFault,
    ReferenceRequest,
)

LOGPROBS = st.floats(min_value=-30, max_value=0, allow_nan=False)


def request(chosen: list[int], listed: list[dict[str, float]], cached: int = 0) -> GeneratedRequest:
    return GeneratedRequest(prompt=(1, 2), tokens=tuple(chosen), logprobs=tuple(listed), cached=cached)


def truth(listed: list[dict[str, float]], best: list[Any], ranks: list[int]) -> ReferenceRequest:
    return ReferenceRequest(
        logprobs=tuple(listed), best=tuple((token, value) for token, value in best), ranks=tuple(ranks)
    )


@st.composite
def generations(draw: st.DrawFn) -> tuple[GeneratedRequest, ReferenceRequest]:
    """What was generated, and a reference that agrees."""
    places = draw(st.lists(st.tuples(LOGPROBS, LOGPROBS).map(sorted), min_size=1, max_size=6))
    listed = [{"7": high, "9": low} for low, high in places]
    best = [[7, high] for _, high in places]
    return request([7] * len(places), listed), truth(listed, best, [0] * len(places))


@given(generations())
def test_what_agrees_is_at_no_distance(pair: tuple[GeneratedRequest, ReferenceRequest]) -> None:
    found = distance(((pair[0],),), ((pair[1],),))
    assert (found.largest, found.rms, found.behind) == (0, 0, 0)
    assert found.likeliest == found.tokens == len(pair[0].tokens)


@given(generations(), st.floats(min_value=1e-6, max_value=1.0))
def test_the_distance_is_what_was_added(
    pair: tuple[GeneratedRequest, ReferenceRequest], shift: float
) -> None:
    moved = [{name: value + shift for name, value in place.items()} for place in pair[0].logprobs]
    found = distance(((replace(pair[0], logprobs=tuple(moved)),),), ((pair[1],),))
    assert found.largest == pytest.approx(shift, rel=1e-6, abs=1e-12)
    assert found.rms == pytest.approx(shift, rel=1e-6, abs=1e-12)


def case(**changes: Any) -> CaseRun:
    generated = CaseRun(
        name="qwen2",
        dtype="float32",
        checkpoint="qwen2-float32",
        state="generated",
        rounds=((request([7], [{"7": -0.5, "9": -2.0}]),),),
    )
    return replace(generated, **changes)


def reference(listed: dict[str, float], best: list[float], rank: int = 0, **changes: Any) -> ReferenceCase:
    found = ReferenceCase(
        safety=2.0,
        tolerance=LogProbTolerance(largest=1e-4, rms=1e-4),
        rounds=((truth([listed], [best], [rank]),),),
        faults=(),
    )
    return replace(found, **changes)


def compared(run: CaseRun, expected: ReferenceCase) -> GeneratedCase:
    return compare_case(run, expected)[0]


def test_an_error_within_what_is_permitted_is_a_part_of_it() -> None:
    entry = compared(case(), reference({"7": -0.5001, "9": -2.0}, [7, -0.5001]))
    assert 0.3 < entry.budget < 0.6
    assert entry.choice == ""


def test_an_error_beyond_what_is_permitted_shows_though_the_token_is_the_same() -> None:
    entry = compared(case(), reference({"7": -0.51, "9": -2.0}, [7, -0.51]))
    assert entry.likeliest == entry.tokens
    assert entry.budget > 1


def test_a_token_that_is_not_the_likeliest_cannot_have_been_chosen_greedily() -> None:
    entry = compared(case(), reference({"7": -0.5, "9": -2.0}, [3, -0.3], rank=1))
    assert "below the most likely one" in entry.choice


def test_a_tie_within_what_is_permitted_may_go_either_way() -> None:
    entry = compared(case(), reference({"7": -0.5, "9": -2.0}, [3, -0.4999], rank=1))
    assert entry.choice == ""


def test_a_drawn_token_must_be_among_those_that_may_be_drawn() -> None:
    drawn = case(sampling={"temperature": 1.0, "top_k": 2})
    assert not compared(drawn, reference({"7": -0.5, "9": -2.0}, [3, -0.1], rank=1)).choice
    outside = compared(drawn, reference({"7": -0.5, "9": -2.0}, [3, -0.1], rank=2))
    assert "rank 3 was sampled with top_k = 2" in outside.choice


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_never_within_what_is_permitted(value: float) -> None:
    entry = compared(
        case(rounds=((request([7], [{"7": value, "9": -2.0}]),),)),
        reference({"7": -0.5, "9": -2.0}, [7, -0.5]),
    )
    assert entry.budget > 1


def test_a_fault_is_measured_like_its_case() -> None:
    injected = FaultRun(
        family="norm",
        fault="*rms_norm*;round;any",
        state="generated",
        rounds=((request([7], [{"7": -0.55, "9": -2.0}]),),),
        hit={"npu::npu_rms_norm": 4},
        named=("npu::npu_rms_norm",),
    )
    listed = {"7": -0.5, "9": -2.0}
    expected = ReferenceFault(family="norm", rounds=((truth([listed], [[7, -0.5]], [0]),),))
    entry, (fault,) = compare_case(case(faults=(injected,)), reference(listed, [7, -0.5], faults=(expected,)))
    assert entry.budget == 0
    assert isinstance(fault, FaultResult)
    assert fault.budget > 1
    assert fault.hit == {"npu::npu_rms_norm": 4}
