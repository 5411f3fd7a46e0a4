"""Keys: what makes two pieces of work the same, and what made them different."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.check import Check
from harness.digest import digest_bytes, digest_json
from harness.ledger.plan_record import CodeRecord, TaskRecord

#: How many of the modules that changed a line names.
MOST_NAMED = 5
NO_CODE = CodeRecord()


def facet_digests(facets: Mapping[str, Any]) -> Mapping[str, str]:
    """Facet name -> digest of its JSON value."""
    return {name: digest_json(value) for name, value in facets.items()}


def task_key(check: Check, code_digest: str, digests: Mapping[str, str]) -> str:
    """Digest of (check, the check's own code, parameters; its facets' digests)."""
    return joined(question_digest(check, code_digest), digest_json(dict(digests)))


def question_digest(check: Check, code_digest: str) -> str:
    """Digest of what a check asks, of whatever facets: its name, code and parameters."""
    return digest_json({"check": check.name, "code": code_digest, "params": dict(check.params)})


def joined(question: str, facets: str) -> str:
    """The key of a question about facets, from their digests; checks that read alike share the latter."""
    return digest_bytes(f"{question}{facets}".encode())


@dataclass(frozen=True, kw_only=True)
class KeyChange:
    """One reason why a key is not the one it was: the path that changed, before and after.

    modules: for the code, the modules and data files in which something that the check can reach changed.
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
    """What differs between two tasks of one check; empty when their keys are equal.

    code_before, code_after: what the plans of the tasks say of their code; it names the modules that changed.
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
    # A stored plan has a list where a check declares a tuple.
    before, after = (list(value) if isinstance(value, tuple) else value for value in (before, after))
    if before == after:
        return []
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            change
            for name in sorted({*before, *after})
            for change in _value_changes(f"{path}.{name}", before.get(name), after.get(name))
        ]
    if isinstance(before, list) and isinstance(after, list) and _named(before) and _named(after):
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


def _named(items: list[Any]) -> bool:
    """Whether all have an id, each its own; only then can what was added be told from what moved."""
    return len({item.get("id") for item in items if isinstance(item, dict)} - {None}) == len(items)


def _by_id(items: list[Any]) -> dict[str, Any]:
    return {item["id"]: item for item in items}


def _short(value: Any) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
