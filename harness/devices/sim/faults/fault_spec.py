"""The syntax of the environment variable `NPU_SIM_FAULTS`, and its parser. Standard library only.

A fault is a JSON object or a text. Write several faults as a JSON list, or as texts separated by "|":
    [{"op": "mm", "kind": "sign", "phase": "backward", "count": 1}]
    mm;sign;backward;count=1
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from harness.errors import InputError

VARIABLE = "NPU_SIM_FAULTS"

KINDS = {
    "round": "inputs and results are rounded to `dtype`",
    "lowacc": "sums accumulate in `dtype`, `block` terms at a time",
    "ulp": "results are moved by `ulps` units in the last place away from zero",
    "sign": "results change sign",
    "scale": "results are multiplied by `factor`",
    "zero": "results are zero",
    "stale": "the result of the previous call with the same shape is returned",
    "nan": "elements of the results become NaN",
    "nondet": "results differ between runs by up to `ulps` units in the last place",
    "outdated": "graphs call with the arguments of their capture: updates have no effect",
    "raise": "the call raises an error like an aicore exception",
    "hang": "the call blocks for `seconds` (0: forever)",
}
#: The kind that distorts no call, only the update of a captured one.
OF_UPDATES = "outdated"
PHASES = ("any", "forward", "backward")
DTYPES = ("bfloat16", "float16", "float32")
_SMALLEST = {"after": 0, "count": 0, "block": 1, "ulps": 1, "output": -1, "seconds": 0}


@dataclass(frozen=True, kw_only=True)
class FaultSpec:
    """One fault.

    op: glob on the operator's name, with or without namespace and overload ("mm", "aten::mm", "add.*").
    phase: "backward" means inside a node of the autograd graph, including recomputation by checkpointing.
    after: number of matching calls that stay correct before the first distorted one. count: the largest
    number of calls to distort. rate: probability that a matching call is distorted. elements: share of the
    elements that are distorted, at least one element (default 1, for "nan" 0.001). output: index of the
    result that is distorted, -1 for all.
    """

    op: str
    kind: str
    phase: str = "any"
    after: int = 0
    count: int | None = None
    rate: float = 1.0
    seed: int = 0
    elements: float | None = None
    output: int = 0
    dtype: str = "bfloat16"
    block: int = 16
    ulps: int = 1
    factor: float = 2.0
    seconds: float = 0.0


def parse_faults(text: str) -> tuple[FaultSpec, ...]:
    """Parse a value of `NPU_SIM_FAULTS`. Raises InputError with the invalid fault and the reason."""
    text = text.strip()
    if not text:
        return ()
    if text[0] in "[{":
        return tuple(_from_json(entry) for entry in _json_entries(text))
    return tuple(_from_text(part) for part in text.split("|"))


def _from_json(entry: object) -> FaultSpec:
    """A fault from a JSON object."""
    if not isinstance(entry, dict):
        raise _bad(json.dumps(entry), "a fault must be a JSON object")
    shown = json.dumps(entry)
    fields = {field.name: field for field in dataclasses.fields(FaultSpec)}
    unknown = sorted(set(entry) - set(fields))
    if unknown:
        raise _bad(
            shown, f"{unknown[0]!r} is not a property of a fault; the properties are {', '.join(fields)}"
        )
    for name in ("op", "kind"):
        if not entry.get(name) or not isinstance(entry[name], str):
            raise _bad(shown, f"{name!r} is missing")
    values = {name: _typed(shown, name, str(fields[name].type), value) for name, value in entry.items()}
    return _checked(shown, FaultSpec(**values))


def _json_entries(text: str) -> list[object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _bad(text, f"not JSON: {error}") from error
    return value if isinstance(value, list) else [value]


def _from_text(text: str) -> FaultSpec:
    parts = [part.strip() for part in text.split(";")]
    entry = dict(zip(("op", "kind"), parts[:2], strict=False))
    rest = parts[2:]
    if rest and "=" not in rest[0]:
        entry["phase"] = rest.pop(0) or "any"
    for part in rest:
        name, separator, value = part.partition("=")
        if not separator:
            raise _bad(text, f"{part!r} is not name=value")
        entry[name.strip()] = value.strip()
    return _from_json(entry)


def _typed(shown: str, name: str, annotation: str, value: object) -> Any:
    if value is None and "None" in annotation:
        return None
    kind = {"str": str, "int": int, "float": float}[annotation.partition(" ")[0]]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _bad(shown, f"{name!r} is not a {kind.__name__}")
    if kind is int and isinstance(value, float):
        raise _bad(shown, f"{name!r} is not a whole number")
    try:
        return kind(value)
    except ValueError:
        raise _bad(shown, f"{name!r} is not a {kind.__name__}: {value!r}") from None


def _checked(shown: str, fault: FaultSpec) -> FaultSpec:
    if fault.kind not in KINDS:
        raise _bad(shown, f"unknown kind {fault.kind!r}; the kinds are {', '.join(KINDS)}")
    if fault.phase not in PHASES:
        raise _bad(shown, f"unknown phase {fault.phase!r}; the phases are {', '.join(PHASES)}")
    if fault.dtype not in DTYPES:
        raise _bad(shown, f"unknown dtype {fault.dtype!r}; the dtypes are {', '.join(DTYPES)}")
    for name in ("rate", "elements"):
        value = getattr(fault, name)
        if value is not None and not 0.0 <= value <= 1.0:
            raise _bad(shown, f"{name!r} is outside [0.0, 1.0]")
    for name, least in _SMALLEST.items():
        value = getattr(fault, name)
        if value is not None and not value >= least:
            raise _bad(shown, f"{name!r} is below {least}")
    return fault


def _bad(text: str, why: str) -> InputError:
    return InputError(
        f"not a fault: {text[:200]}",
        why=why,
        fix=f'set {VARIABLE} to a JSON list or to "op;kind;phase;name=value"',
    )
