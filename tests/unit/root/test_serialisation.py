"""Dataclasses are written as JSON and read back: names, omitted members, and invalid JSON."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest

from harness.serialisation import as_object, dumps, json_form, load


class Colour(str, enum.Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Part:
    size: int = 0


@json_form(cell_id="cell", leave_out=("place",))
@dataclass(frozen=True, kw_only=True)
class Whole:
    cell_id: str
    colour: Colour = Colour.RED
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    place: str = ""


def test_names_in_json_enums_and_nested_dataclasses() -> None:
    whole = Whole(cell_id="c", parts=(Part(size=1),), by_name=MappingProxyType({"a": Part()}), place="here")
    text = dumps(whole, sort_keys=True)
    assert text == '{"by_name": {"a": {"size": 0}}, "cell": "c", "colour": "red", "parts": [{"size": 1}]}'
    read = load(Whole, text)
    assert read == Whole(cell_id="c", parts=(Part(size=1),), by_name={"a": Part()})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"cell": 1}',
        '{"cell": "c", "parts": [{"size": "1"}]}',
        '{"cell": "c", "colour": "x"}',
    ],
)
def test_another_form_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        load(Whole, text)


def test_members_of_a_later_version_are_ignored() -> None:
    assert load(Whole, '{"cell": "c", "later": 1}') == Whole(cell_id="c")


def test_what_has_no_form_in_json_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="set"):
        dumps({"values": {1, 2}})
    assert json.dumps(Part(), default=as_object) == '{"size": 0}'


def test_writing_does_not_import_pydantic() -> None:
    program = (
        "import sys; from harness.ledger.plan_record import PlanRecord; from harness.serialisation import dumps; "
        "dumps(PlanRecord()); sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
