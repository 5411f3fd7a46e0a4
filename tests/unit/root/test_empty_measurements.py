"""No check passes on measurements that contain nothing. Generated over all checks and their measurements."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from harness.check import Check
from harness.outcome import Status
from harness.plan.tasks.check_registry import all_checks

SIMPLE: dict[Any, object] = {str: "", bool: False, int: 0, float: 0.0, type(None): None, Any: None}
EMPTY: dict[Any, object] = {
    tuple: (),
    Sequence: (),
    list: [],
    dict: {},
    Mapping: {},
    frozenset: frozenset(),
}


def empty(kind: Any) -> Any:
    """The value of a type that says the least: nothing, zero, "", no elements, the first member."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if origin in EMPTY:
        return EMPTY[origin]
    if origin in (typing.Union, types.UnionType):
        return None if type(None) in arguments else empty(arguments[0])
    if origin in (typing.Literal, typing.Annotated):
        return arguments[0] if origin is typing.Literal else empty(arguments[0])
    if issubclass(kind, enum.Enum):
        return next(iter(kind))
    hints = typing.get_type_hints(kind)
    needed = [
        field
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return kind(**{field.name: empty(hints[field.name]) for field in needed})


CASES = [
    (check, shape) for check in all_checks() if check.measurements for shape in check.measurements.shapes
]


def test_every_check_has_measurements_of_a_type() -> None:
    assert {check.name for check, _shape in CASES} == {check.name for check in all_checks()}


@pytest.mark.parametrize(
    ("check", "shape"), CASES, ids=[f"{one.name}-{shape.__name__}" for one, shape in CASES]
)
def test_empty_measurements_do_not_pass(check: Check[Any], shape: type) -> None:
    try:
        status = check.judge(empty(shape), check.params).status
    except AssertionError:
        return  # A judge that refuses such measurements gives no verdict at all.
    assert status is not Status.PASS
