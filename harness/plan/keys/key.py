"""Keys of tasks, and the differences between two keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.check import Check
from harness.digest import digest_json
from harness.ledger.plan_record import CodeRecord, TaskRecord

#: How many of the changed modules a line lists.
MOST_NAMED = 5
NO_CODE = CodeRecord()


def question_digest(check: Check, code_digest: str) -> str:
    """Digest of the part of a key that does not depend on the cell: name, code and parameters of the check.

    A key is the SHA-256 of this digest followed by the digest of {facet name: digest of its JSON value}.
    """
    return digest_json({"check": check.name, "code": code_digest, "params": dict(check.params)})


@dataclass(frozen=True, kw_only=True)
class KeyChange:
    """One part in which two keys differ, with its value before and after.

    part: `code`, or the path of a value, for example `facets.pins.torch`.
    modules: for `code`, the modules and data files in which code that the check can reach changed.
    """

    part: str
    before: Any
    after: Any
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.part}: {_short(self.before)} -> {_short(self.after)}{self._changed()}"

    def _changed(self) -> str:
        if not self.modules:
            return ""
        more = len(self.modules) - MOST_NAMED
        return f", changed in {', '.join(self.modules[:MOST_NAMED])}" + (
            f" and {more} more" if more > 0 else ""
        )


def key_changes(
    before: TaskRecord,
    after: TaskRecord,
    code_before: CodeRecord = NO_CODE,
    code_after: CodeRecord = NO_CODE,
) -> tuple[KeyChange, ...]:
    """The parts in which the keys of two tasks of one check differ.

    code_before, code_after: the code records of the plans of the tasks, to list the changed modules.
    """
    changes: list[KeyChange] = []
    if before.code_digest != after.code_digest:
        changes.append(
            KeyChange(
                part="code",
                before=before.code_digest[:12],
                after=after.code_digest[:12],
                modules=code_before.changed_modules(before.code_digest, code_after, after.code_digest),
            )
        )
    changes.extend(_value_changes("params", before.params, after.params))
    changes.extend(_value_changes("facets", before.facets, after.facets))
    return tuple(changes)


def _value_changes(path: str, before: Any, after: Any) -> list[KeyChange]:
    # Stored plans contain lists where checks declare tuples.
    before, after = (list(value) if isinstance(value, tuple) else value for value in (before, after))
    if before == after:
        return []
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            change
            for name in sorted({*before, *after})
            for change in _value_changes(f"{path}.{name}", before.get(name), after.get(name))
        ]
    if isinstance(before, list) and isinstance(after, list) and _have_ids(before) and _have_ids(after):
        old, new = _by_id(before), _by_id(after)
        ordered = KeyChange(part=f"{path} (order)", before=list(old), after=list(new))
        return _value_changes(path, old, new) or [ordered]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            change
            for index, (old, new) in enumerate(zip(before, after, strict=True))
            for change in _value_changes(f"{path}[{index}]", old, new)
        ]
    return [KeyChange(part=path, before=before, after=after)]


def _have_ids(items: list[Any]) -> bool:
    """Whether all items have an id that no other item has, so that added and moved items can be
    distinguished.
    """
    return len({item.get("id") for item in items if isinstance(item, dict)} - {None}) == len(items)


def _by_id(items: list[Any]) -> dict[str, Any]:
    return {item["id"]: item for item in items}


def _short(value: Any) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
