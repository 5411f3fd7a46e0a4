from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.devices.sim.faults.fault_spec import DTYPES, KINDS, PHASES, FaultSpec, parse_faults
from harness.errors import InputError


def test_both_notations_say_the_same() -> None:
    text = parse_faults("mm;sign;backward;count=1;after=2")
    assert text == parse_faults('[{"op": "mm", "kind": "sign", "phase": "backward", "count": 1, "after": 2}]')
    assert text == (FaultSpec(op="mm", kind="sign", phase="backward", count=1, after=2),)


def test_several_and_none() -> None:
    faults = parse_faults("mm;sign | add.*;scale;factor=1.5|exp;ulp;any;ulps=4")
    assert [fault.op for fault in faults] == ["mm", "add.*", "exp"]
    assert faults[1].factor == 1.5
    assert parse_faults("") == parse_faults("  ") == parse_faults("[]") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mm", "'kind' is missing"),
        ("mm;explode", "unknown kind 'explode'"),
        ("mm;sign;sideways", "unknown phase"),
        ("mm;sign;any;count=many", "'count' is not a int"),
        ("mm;sign;any;colour=red", "'colour' is not a property"),
        ("mm;sign;any;count", "is not name=value"),
        ("mm;nan;any;rate=2", "'rate' is outside"),
        ("mm;nan;any;rate=nan", "'rate' is outside"),
        ("mm;round;any;dtype=int3", "unknown dtype"),
        ("mm;lowacc;any;block=0", "'block' is below 1"),
        ("mm;sign;any;output=-2", "'output' is below -1"),
        ("[{", "not JSON"),
        ("[3]", "a fault must be a JSON object"),
        ('{"op": "mm", "kind": "sign", "count": 1.5}', "not a whole number"),
        ('{"op": "mm", "kind": "sign", "count": true}', "is not a int"),
        ('{"op": ["mm"], "kind": "sign"}', "'op' is missing"),
        (";sign", "'op' is missing"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_faults(text)
    assert why in str(caught.value)
    assert "NPU_SIM_FAULTS" in str(caught.value)


@given(
    op=st.text(st.characters(exclude_characters=";|[{=", exclude_categories=["C", "Z"]), min_size=1),
    kind=st.sampled_from(sorted(KINDS)),
    phase=st.sampled_from(PHASES),
    dtype=st.sampled_from(DTYPES),
    count=st.integers(0, 10**6),
    rate=st.floats(0, 1),
)
def test_what_is_written_is_read(op: str, kind: str, phase: str, dtype: str, count: int, rate: float) -> None:
    entry = {"op": op, "kind": kind, "phase": phase, "dtype": dtype, "count": count, "rate": rate}
    from_json = parse_faults(json.dumps([entry]))
    from_text = parse_faults(f"{op};{kind};{phase};dtype={dtype};count={count};rate={rate!r}")
    assert from_json == from_text == (FaultSpec(**entry),)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        parse_faults(text)
