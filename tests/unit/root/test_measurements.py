"""Typed measurements are read as they were written, and those of another version are rejected."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_outcome import make_outcome

from harness.check import Check
from harness.measurements import VERSION_FIELD, OldMeasurementsError, measurement_format, read_shape
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.plan.tasks.check_registry import all_checks
from harness.serialisation import json_object, to_json
from harness.verdict.verdict import judge_outcome


class Colour(str, enum.Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    budget: float | None


@dataclass(frozen=True, kw_only=True)
class Whole:
    state: Literal["measured"] = "measured"
    parts: tuple[Part, ...]
    seconds: dict[str, float]
    colour: Colour = Colour.RED
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Broken:
    state: Literal["crashed"] = "crashed"
    tail: str


FORMAT = measurement_format(Whole, Broken, version=3)

parts = st.builds(Part, name=st.text(), budget=st.none() | st.floats(allow_nan=False, allow_infinity=False))
wholes = st.builds(
    Whole,
    parts=st.lists(parts).map(tuple),
    seconds=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    count=st.integers(),
)


@given(wholes | st.builds(Broken, tail=st.text()))
def test_what_is_written_is_read(measured):
    stored = json.loads(json.dumps(FORMAT.write(measured)))
    assert stored[VERSION_FIELD] == 3
    assert FORMAT.read(stored) == measured


def test_a_program_of_the_cell_writes_with_the_standard_library_what_the_host_reads():
    part = Part(name="loss", budget=0.5)
    assert read_shape(Part, json.loads(json.dumps(to_json(part)))) == part


@pytest.mark.parametrize("found", [None, 1, 2, 7])
def test_measurements_of_another_version_say_which(found):
    stored = {"state": "measured", "pieces": []} | ({VERSION_FIELD: found} if found is not None else {})
    with pytest.raises(OldMeasurementsError, match=rf"of version {found or 0}, this program reads version 3"):
        FORMAT.read(stored)


def test_measurements_of_an_older_version_with_the_same_form_are_read():
    assert FORMAT.read({"state": "crashed", "tail": "x"}) == Broken(tail="x")


@pytest.mark.parametrize(
    ("stored", "unknown"),
    [
        ({"state": "crashed", "tail": "x", "not_applicable": "no recipe"}, "not_applicable"),
        ({"parts": [{"name": "a", "budget": 0.1, "exact": True}], "seconds": {}}, "parts.exact"),
    ],
)
def test_measurements_with_members_of_another_version_are_not_half_understood(stored, unknown):
    with pytest.raises(OldMeasurementsError, match=f"does not know {unknown}"):
        FORMAT.read(stored)


def test_members_that_change_nothing_are_named_and_ignored():
    form = measurement_format(Whole, Broken, version=3, unused=("parts.exact",))
    part = {"name": "a", "budget": 0.1}
    stored = {"parts": [{**part, "exact": True}], "seconds": {}}
    assert form.read(stored) == form.read({"parts": [part], "seconds": {}})


def test_an_unknown_shape_cannot_be_written():
    with pytest.raises(TypeError, match="measured a Part instead of Whole or Broken"):
        FORMAT.write(Part(name="a", budget=None))
    with pytest.raises(TypeError, match="no form in JSON"):
        json_object(Part(name=object(), budget=None))  # type: ignore[arg-type]


def test_every_check_declares_the_shapes_of_its_measurements():
    assert [check.name for check in all_checks() if check.measurements is None] == []


def test_a_stored_outcome_of_another_version_is_stale():
    check = Check(
        name="whole",
        tier=Tier.STATIC,
        question="Is it whole?",
        facets=(),
        measurements=FORMAT,
        run=lambda _context: Measured(measurements=Broken(tail=""), evidence=Evidence.STATIC),
        judge=lambda _measured, _params: Judgement(status=Status.PASS),
    )
    judgement = judge_outcome(check, make_outcome(measurements={"pieces": 1}))
    assert judgement.status is Status.STALE
    assert "version 0" in judgement.reasons[0]
