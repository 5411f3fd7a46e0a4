"""Outcomes as the ledger stores them: each execution has a JSON text and a digest that identifies it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.digest import canonical_json, digest_json, is_digest
from harness.outcome import RECORDED_HERE, Outcome
from harness.serialisation import as_object, load

#: The last second of the year 9999, after which Python cannot format dates.
LAST_TIME = 253_402_300_799.0


def outcome_body(outcome: Outcome) -> str:
    """The JSON text of an outcome; ValueError or TypeError if a measurement is not JSON, for example NaN."""
    data = as_object(outcome)
    # Outcomes that were stored before these fields existed keep their digest.
    if not outcome.inputs:
        del data["inputs"]
    if outcome.origin is None:
        del data["origin"]
    return canonical_json(data)


def outcome_uid(body: str) -> str:
    """The digest that identifies one execution in every ledger, from its JSON text.

    The attempt is left out, because a ledger renumbers the attempts that it merges. AttributeError or
    ValueError if the text is not a JSON object.
    """
    return digest_json({name: value for name, value in json.loads(body).items() if name != "attempt"})


def read_outcome(uid: str, attempt: int, body: str) -> Outcome | None:
    """The outcome in a row of the ledger, or None if the row is damaged or not in this format."""
    try:
        if outcome_uid(body) != uid:
            return None
        outcome = load(Outcome, body)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not (is_printable_time(outcome.started) and is_printable_time(outcome.finished)):
        return None
    # Digests become paths in the store.
    if not all(is_digest(ref.digest) for ref in outcome.files):
        return None
    # Only the ledger may say what it trusts, not the text of the outcome.
    return replace(outcome, attempt=attempt, trust=RECORDED_HERE)


def is_printable_time(value: object) -> bool:
    """Whether Unix seconds are a date that can be printed."""
    return isinstance(value, (int, float)) and 0 <= value <= LAST_TIME


def readable(value: Any) -> Any:
    """A JSON value with escapes for bytes that are not UTF-8, which occur for example in file names."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {readable(name): readable(member) for name, member in value.items()}
    return [readable(member) for member in value] if isinstance(value, (list, tuple)) else value
