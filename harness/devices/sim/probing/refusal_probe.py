"""Measures which data types the operators of an installed torch_npu refuse before they start a kernel.

    python -m harness.devices.sim.probing.refusal_probe OUT.json

torch_npu runs without the simulated device's kernels, on a runtime whose operators succeed and do nothing, so
each operator runs the wheel's own checks and allocations. For every operator, it seeks calls that succeed, in
several shapes and with several numbers. Then the data type of all its tensors that had the same type is
changed. A change that raises a complaint about types in all these calls is a refusal. Operators for which no
successful call is found are listed as `unknown`: they are permissive.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.devices.sim.refusals.refusal_table import SCHEMA

DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
    "complex128",
)
SHAPES: tuple[tuple[int, ...], ...] = ((4,), (4, 4), (2, 4, 4), (2, 4, 4, 4), (1, 2, 4, 4, 4))
# Integers, real numbers and booleans of a call.
_NUMBERS = ((1, 1.0, False), (0, 0.5, True), (2, 0.0, False))
_BASELINES = ("float32", "int64", "float16", "bool", "int32", "int8")
# All combinations for up to three tensors; for more, one type for all or for all but one.
_FULL_PRODUCT = 3
_SECONDS = 5
# What the checks of torch and torch_npu say about types. ERR01002 and ERR00002 are "invalid type".
COMPLAINT = re.compile(
    r"ERR\d\d002|not implemented for|[Dd]type|[Dd]ata ?[Tt]ype|scalar type"
    r"|not support \w*(?:[Ff]loat|[Hh]alf|[Ii]nt|[Dd]ouble|[Cc]omplex|[Bb]ool|[Ll]ong)"
    r"|only supports? .*(?:float|int|half|bool|complex|integral)"
)
_RUN_TIME = re.compile(r"\[ERROR\] .*$", re.DOTALL)


def main(arguments: Sequence[str]) -> int:
    """Write the table. Each operator runs in a forked process that may crash."""
    (out,) = arguments
    import torch
    import torch_npu

    lines = Path(out + ".lines")
    lines.write_text("", "utf-8")
    names = operators()
    at = 0
    while at < len(names):
        pid = os.fork()
        if pid == 0:
            _probe_all(names[at:], lines)
            os._exit(0)
        os.waitpid(pid, 0)
        done = len(lines.read_text("utf-8").splitlines())
        if done == at or done < len(names):
            with lines.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"name": names[done], "unknown": "crashed"}) + "\n")
            done += 1
        at = done
    table = table_of([json.loads(line) for line in lines.read_text("utf-8").splitlines()])
    header = {
        "schema": SCHEMA,
        "torch": torch.__version__.partition("+")[0],
        "torch_npu": torch_npu.__version__,
        "source": "the checks of this torch_npu, run on operators of CANN that do nothing (refusal_probe.py)",
    }
    Path(out).write_text(json.dumps({**header, **table}, indent=0, sort_keys=True) + "\n", "utf-8")
    lines.unlink()
    return 0


def table_of(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The table: operator -> refusals, the messages, and the operators for which nothing is known."""
    messages: dict[str, int] = {}
    refused = {}
    for record in records:
        entries = [
            [arguments, dtype, kind, messages.setdefault(message, len(messages))]
            for arguments, dtype, kind, message in record.get("refused", [])
        ]
        if entries:
            refused[record["name"]] = entries
    return {
        "refused": refused,
        "messages": list(messages),
        "unknown": sorted(record["name"] for record in records if "unknown" in record),
        "checked": sum("unknown" not in record for record in records),
    }


def operators() -> list[str]:
    """Every operator that torch_npu implements and that takes a tensor, as namespace::name.overload."""
    from harness.devices.sim.operators.aten_kernels import DEVICE_KEY, LEFT_TO_TORCH_NPU
    from harness.devices.sim.operators.schema_plan import returns_view
    from harness.devices.sim.operators.torch_internals import has_kernel, overload, schemas

    return sorted(
        f"{namespace}::{name}"
        for namespace in ("aten", "npu")
        for name, schema in schemas(namespace)
        if name not in LEFT_TO_TORCH_NPU
        and overload(namespace, name) is not None
        and has_kernel(f"{namespace}::{name}", DEVICE_KEY)
        and any("Tensor" in str(argument.type) for argument in schema.arguments)
        and not returns_view(schema)
    )


def _probe_all(names: Sequence[str], lines: Path) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for name in names:
        signal.alarm(_SECONDS * 12)
        record = {"name": name, **probe(name)}
        with lines.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


def probe(name: str) -> dict[str, Any]:
    """The refusals of one operator: [names of tensors, data type, type of the exception, message]."""
    from harness.devices.sim.operators.torch_internals import overload, schema_of

    namespace, _, rest = name.partition("::")
    operator = overload(namespace, rest)
    if operator is None:
        return {"unknown": "not in torch.ops"}
    schema = schema_of(operator)
    if any(_is_data_type(argument) for argument in schema.arguments):
        return {"unknown": "a data type is among its arguments"}
    given = [argument.name for argument in schema.arguments if _is_given(argument)]
    calls, types = _successes(operator, schema, len(given))
    if not calls:
        return {"unknown": "no call succeeded"}
    found = []
    for base in dict.fromkeys(types):
        group = [place for place, dtype in enumerate(types) if dtype == base]
        for dtype in DTYPES:
            if dtype == base:
                continue
            changed = tuple(dtype if place in group else own for place, own in enumerate(types))
            errors = [_attempt(operator, schema, call, changed) for call in calls]
            if all(error and COMPLAINT.search(error[1]) for error in errors):
                kind, message = errors[0] or ("", "")
                found.append([[given[place] for place in group], dtype, kind, message])
    return {"refused": found}


def _is_given(argument: Any) -> bool:
    """Whether the probe passes a tensor for this argument. Optional tensors are left out."""
    kind = str(argument.type)
    return "Tensor" in kind and not (argument.has_default_value() and "Optional" in kind)


def _is_data_type(argument: Any) -> bool:
    """Whether it is a data type that a call must state: then the types of the tensors depend on it."""
    return str(argument.name).endswith("dtype") and not argument.has_default_value()


Call = tuple[tuple[int, ...], int]
"""The shape of all tensors, and which of `_NUMBERS` the other arguments are."""


def _successes(operator: Any, schema: Any, count: int) -> tuple[list[Call], tuple[str, ...]]:
    """The calls that succeed with the first assignment of data types with which any succeeds."""
    for types in _assignments(count):
        calls = [
            (shape, numbers)
            for shape in SHAPES
            for numbers in range(len(_NUMBERS))
            if _attempt(operator, schema, (shape, numbers), types) is None
        ]
        if calls:
            return calls, types
    return [], ()


def _assignments(count: int) -> Iterator[tuple[str, ...]]:
    if count <= _FULL_PRODUCT:
        yield from sorted(itertools.product(_BASELINES, repeat=count), key=lambda types: len(set(types)))
        return
    for base in _BASELINES:
        yield (base,) * count
    for base, other in itertools.permutations(_BASELINES, 2):
        for position in range(count):
            yield tuple(other if place == position else base for place in range(count))


def _attempt(operator: Any, schema: Any, call: Call, types: tuple[str, ...]) -> tuple[str, str] | None:
    """None if the call succeeds, else the type of the exception and its message."""
    args, kwargs = _arguments(schema, call, types)
    try:
        operator(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - every exception is what is measured
        return type(error).__name__, _RUN_TIME.sub("", str(error)).strip()[:300]
    return None


def _arguments(schema: Any, call: Call, types: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    remaining, by_name = iter(types), False
    for argument in schema.arguments:
        if _is_given(argument):
            value = _tensor(str(argument.type), call[0], next(remaining))
        elif argument.has_default_value():
            by_name = True
            continue
        else:
            value = _plain(str(argument.type), argument.name, call)
        by_name = by_name or argument.kwarg_only
        if by_name:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _tensor(kind: str, shape: tuple[int, ...], dtype: str) -> Any:
    # Imported here because the names of the module are also used without torch.
    import torch

    tensor = torch.ones(shape, dtype=getattr(torch, dtype)).npu()
    return [tensor, tensor] if "List" in kind else tensor


def _plain(kind: str, name: str, call: Call) -> Any:
    shape, number = call
    whole, real, flag = _NUMBERS[number]
    if "List" in kind:
        lists = {"size": list(shape), "normalized_shape": list(shape[-1:]), "dim": [0], "dims": [0]}
        return lists.get(name, [real, real] if "float" in kind else [whole, whole])
    if "Optional" in kind:
        return None
    values = {"int": 0 if name in {"dim", "axis"} else whole, "float": real, "bool": flag, "str": ""}
    return values.get(kind, whole)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
