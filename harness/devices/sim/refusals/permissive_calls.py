"""The operators that a program called although it is unknown what torch_npu refuses for them.

The simulated device may have computed what torch_npu refuses, so an outcome that depends on such an operator
says so. Each process of the program appends lines to one file, at the first call, because a process can be
killed later. Works without torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.serialisation import JsonValue

PERMISSIVE = "Permissive: "
"""Start of the reason beside a pass, see `harness.outcome.Judgement`."""
MEMBER = "permissive"
_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class PermissiveCalls:
    """operators: the called operators with overload, for example "aten::sort.stable".

    any: whether a process could not find out for any operator what torch_npu refuses.
    """

    operators: tuple[str, ...] = ()
    any: bool = False

    def reasons(self) -> tuple[str, ...]:
        """The reason to show beside a pass, with some names; empty if no such operator was called."""
        if self.any:
            return (f"{PERMISSIVE}it was not verified for any operator whether torch_npu refuses the call.",)
        if not self.operators:
            return ()
        more = len(self.operators) - _SHOWN
        names = ", ".join(self.operators[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return (f"{PERMISSIVE}it is unknown whether torch_npu refuses these calls: {names}.",)

    def stored(self) -> dict[str, JsonValue]:
        """The members to add to the environment of an outcome; none if there is nothing to say."""
        if not (self.operators or self.any):
            return {}
        return {MEMBER: {"operators": list(self.operators), "any": self.any}}


def stored_permissive_calls(environment: Mapping[str, object]) -> PermissiveCalls:
    """What `stored` added to the environment of an outcome."""
    found = environment.get(MEMBER)
    if not isinstance(found, Mapping):
        return PermissiveCalls()
    names = found.get("operators")
    return PermissiveCalls(
        operators=tuple(map(str, names)) if isinstance(names, (list, tuple)) else (),
        any=found.get("any") is True,
    )


def permissive_reasons(reasons: Iterable[str]) -> tuple[str, ...]:
    """Those of a verdict's reasons that `PermissiveCalls.reasons` made."""
    return tuple(reason for reason in reasons if reason.startswith(PERMISSIVE))


def note_permissive(path: Path, operators: Iterable[str] | None) -> None:
    """Append a line with operators that this process called; None: nothing is known for any operator."""
    names = None if operators is None else sorted(operators)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({MEMBER: names}) + "\n")


def read_permissive_calls(path: Path) -> PermissiveCalls:
    """The calls in a file of `note_permissive`, whose other lines do not matter; none without the file."""
    names: set[str] = set()
    is_any = False
    lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else ()
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # A process was killed while it wrote.
        if not isinstance(entry, dict) or MEMBER not in entry:
            continue
        if entry[MEMBER] is None:
            is_any = True
        else:
            names |= set(map(str, entry[MEMBER]))
    return PermissiveCalls(operators=tuple(sorted(names)), any=is_any)
