"""Reads stored measurements as the dataclasses that their check declares."""

from __future__ import annotations

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
    if found is None or not stored:
        return None
    try:
        measured: object = found.read(stored)
    except OldMeasurementsError:
        return None
    return measured


@functools.cache
def measures(check: str, *shapes: type) -> bool:
    """Whether the check can have measurements of one of these classes: reading them takes much longer."""
    found = _formats().get(check)
    return found is not None and not set(shapes).isdisjoint(found.shapes)


@functools.cache
def _formats() -> Mapping[str, MeasurementFormat[Any]]:
    return {check.name: check.measurements for check in all_checks() if check.measurements is not None}
