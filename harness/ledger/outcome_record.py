"""Outcomes as the ledger stores them: one JSON text and one identity for each execution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.digest import canonical_json, digest_json
from harness.outcome import Outcome
from harness.serialisation import as_object, load

#: The last second of the year 9999: no later time can be printed.
LAST_TIME = 253_402_300_799.0


def outcome_body(outcome: Outcome) -> str:
    """The JSON text of an outcome; ValueError or TypeError when a measurement is no JSON (NaN is none)."""
    data = as_object(outcome)
    if not outcome.inputs:
        # Outcomes from before inputs were recorded keep their identity.
        del data["inputs"]
    return canonical_json(data)


def outcome_uid(data: Mapping[str, Any]) -> str:
    """The identity of one execution, from its parsed JSON: the same in every ledger it is merged into.

    The attempt is left out, because a ledger numbers the attempts it merges anew.
    """
    return digest_json({name: value for name, value in data.items() if name != "attempt"})


def read_outcome(uid: str, attempt: int, body: str) -> Outcome | None:
    """The outcome in a row of the ledger, or None when the row is damaged or has another form."""
    try:
        if outcome_uid(json.loads(body)) != uid:
            return None
        outcome = load(Outcome, body)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not (is_printable_time(outcome.started) and is_printable_time(outcome.finished)):
        return None
    return replace(outcome, attempt=attempt)


def is_printable_time(value: object) -> bool:
    """Whether a number of Unix seconds is a date that can be printed."""
    return isinstance(value, (int, float)) and 0 <= value <= LAST_TIME


def readable(value: Any) -> Any:
    """A JSON value whose texts show bytes that are not UTF-8 (in a file name, for example) as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {readable(name): readable(one) for name, one in value.items()}
    return [readable(one) for one in value] if isinstance(value, (list, tuple)) else value
