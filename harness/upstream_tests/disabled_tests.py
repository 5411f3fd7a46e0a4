"""Reads the lists of tests that torch_npu's developers do not run (`test/unsupported_test_cases`).

They are JSON: `"test_name (__main__.TestClass)": ["", [""]]` as PyTorch's CI reads them, or the same with
`{"KIND": "why"}`. The lists are a baseline that is not believed: the tests are run, and those that pass are
reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from harness.errors import InputError, Location

_NAME = re.compile(r"(?P<test>\S+) \((?:.*\.)?(?P<owner>\w+)\)")
LISTED = "listed without a reason"


def read_disabled(data: bytes, file: str) -> Mapping[str, str]:
    """`TestClass::test_name` -> why it is disabled; InputError if the file has another form."""
    try:
        stored = json.loads(data)
    except ValueError as error:
        raise InputError(
            "the upstream's list of disabled tests is not JSON", where=Location(file), why=str(error)
        ) from error
    if not isinstance(stored, dict):
        raise InputError(
            "the upstream's list of disabled tests has another form",
            where=Location(file),
            why="it is no object",
        )
    found = {}
    for name, why in stored.items():
        match = _NAME.fullmatch(name)
        if match:
            found[f"{match['owner']}::{match['test']}"] = _why(why)
    return found


def _why(stored: object) -> str:
    if isinstance(stored, dict) and stored:
        kind, text = next(iter(stored.items()))
        return f"{kind}: {text}"
    return LISTED
