"""Whether what stands in a ledger has the form this program gives it: others write, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.outcome import Status, Tier

#: The last second of the year 9999: no later time can be shown.
LAST_TIME = 253_402_300_799.0
TIERS = frozenset(tier.value for tier in Tier)
STATUSES = frozenset(status.value for status in Status)


def outcome_fits(data: Mapping[str, Any]) -> bool:
    """Whether the fields of an outcome have their types; what a check measured is the check's own affair."""
    return (
        _all(str, data["key"], data["check"], data["run_id"])
        and _all(dict, data["measurements"], data["environment"])
        and _texts(data["facets"])
        and _texts(data.get("inputs", {}))
        and _time(data["started"])
        and _time(data["finished"])
        and isinstance(data["attempt"], int)
        and all(map(_artifact, data["artifacts"]))
        and (data["log"] is None or _artifact(data["log"]))
        and (data["failure"] is None or _texts(data["failure"]))
    )


def run_fits(head: Sequence[object], argv: object, host: object) -> bool:
    """Whether (run id, start, end, exit code) of a run have their types, and what its JSON columns hold."""
    run_id, started, finished, exit_code = head
    return (
        isinstance(run_id, str)
        and _time(started)
        and (finished is None or _time(finished))
        and (exit_code is None or isinstance(exit_code, int))
        and isinstance(argv, list)
        and _all(str, *argv)
        and isinstance(host, dict)
    )


def plan_fits(plan: object) -> bool:
    """Whether commands can read the stored plan of a run; one that says nothing fits, too."""
    if not isinstance(plan, dict):
        return False
    parts = [plan.get(name, []) for name in ("cells", "entries", "tasks")]
    if not _all(list, *parts):
        return False
    cells, entries, tasks = parts
    return all(map(_cell, cells)) and all(map(_entry, entries)) and all(map(_task, tasks))


def _cell(cell: object) -> bool:
    return isinstance(cell, dict) and _all(str, cell.get("id"), cell.get("stack"))


def _entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not _all(str, entry.get("cell"), entry.get("check"), entry.get("key")):
        return False
    skip = entry.get("skip", "")
    if skip is None:
        return True
    return isinstance(skip, dict) and skip.get("status") in STATUSES and isinstance(skip.get("reason"), str)


def _task(task: object) -> bool:
    return (
        isinstance(task, dict)
        and _all(str, task.get("key"), task.get("check"), task.get("code_digest"))
        and _all(dict, task.get("params"), task.get("facets"))
    )


def _artifact(ref: object) -> bool:
    return (
        isinstance(ref, dict)
        and _all(str, ref["name"], ref["digest"], ref["media_type"])
        and isinstance(ref["size"], int)
    )


def _texts(value: object) -> bool:
    return isinstance(value, dict) and _all(str, *value.values())


def _time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= LAST_TIME


def _all(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)
