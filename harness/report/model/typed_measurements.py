"""Reads stored measurements as the dataclasses that their check declares."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from harness.measurements import MeasurementFormat, OldMeasurementsError
from harness.plan.tasks.check_registry import all_checks
from harness.serialisation import JsonValue


def typed_measurements(check: str, stored: Mapping[str, JsonValue]) -> object | None:
    """An instance of one of the check's measurement classes; use `isinstance` to distinguish them.

    None when the check is unknown, has no measurements, or another version stored them.
    """
    found = _formats().get(check)
    if found is None or not stored or _lacking(check, frozenset(stored)):
        return None
    try:
        measured: object = found.read(stored)
    except OldMeasurementsError:
        return None
    return measured


@functools.cache
def _lacking(check: str, members: frozenset[str]) -> bool:
    """Whether these members are too few for every shape of the check; reading them would find that slowly."""
    return not any(_required(shape) <= members for shape in _formats()[check].shapes)


def _required(shape: type) -> set[str]:
    """The members without a default; none of a dataclass whose JSON may have other names."""
    if hasattr(shape, "__pydantic_config__"):
        return set()
    return {
        field.name
        for field in dataclasses.fields(shape)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


@functools.cache
def measures(check: str, *shapes: type) -> bool:
    """Whether the check can have measurements of one of these classes: reading them takes much longer."""
    found = _formats().get(check)
    return found is not None and not set(shapes).isdisjoint(found.shapes)


@functools.cache
def _formats() -> Mapping[str, MeasurementFormat[Any]]:
    return {check.name: check.measurements for check in all_checks() if check.measurements is not None}
