"""The measurements of a result as the check that made them declares them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from harness.measurements import MeasurementFormat, OldMeasurementsError
from harness.plan.tasks.check_registry import all_checks


def typed_measurements(check: str, stored: Mapping[str, Any]) -> object | None:
    """An instance of one of the check's measurement classes, to be told apart with `isinstance`.

    None when there are none: the check is unknown, has not measured, or another version stored them.
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
def _formats() -> Mapping[str, MeasurementFormat[Any]]:
    return {check.name: check.measurements for check in all_checks() if check.measurements is not None}
