"""Does the simulated device refuse exactly what the code of torch_npu refuses?

Runs inside the newest built cell of each release of torch_npu in the cache. Calls are drawn for a quarter of
the operators that torch_npu implements: data types, shapes and other arguments, most of them invalid. The
truth comes from a process without the simulated device's kernels, in which the operators of CANN do nothing,
so that only torch_npu's code decides. The same calls are then made on the simulated device. What both accept
is compared by types and shapes of the results, which torch_npu's code allocates. A half of these
operators, chosen by a hash of the name, is only counted: nobody looked at its calls to improve the device.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CALLS = 24
"""Calls of each operator."""
SHARE = 4
"""One in this many operators is drawn, by a hash of the name."""
LIMIT_S = 20

DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64", "uint8", "bool", "complex64")
SHAPES: tuple[tuple[int, ...], ...] = ((), (4,), (4, 4), (3, 5), (2, 4, 4), (2, 4, 4, 4), (1, 2, 4, 4, 4))
TEXTS = ("BSH", "TND", "none", "sum", "XYZ", "")


def number(text: str) -> int:
    """A number that depends on the text only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def drawn_call(name: str, schema: Any, place: int) -> tuple[list[Any], dict[str, Any]]:
    """The call number `place` of an operator, with tensors on the device."""
    import torch

    from harness.devices.sim.operators.torch_internals import HOST

    chance = random.Random(number(f"{name} {place}"))
    shape, dtype = chance.choice(SHAPES), chance.choice(DTYPES[:3] * 3 + DTYPES)

    def tensor() -> Any:
        # Most tensors of a call agree, else the first check would refuse nearly all calls.
        own_shape = chance.choice(SHAPES) if chance.random() < 0.15 else shape
        own_type = chance.choice(DTYPES) if chance.random() < 0.15 else dtype
        return torch.ones(own_shape, dtype=getattr(torch, own_type), device=HOST).to("npu")

    def value(kind: str, argument: str) -> Any:
        if "Tensor" in kind:
            return [tensor() for _ in range(2)] if "List" in kind else tensor()
        if "List" in kind:
            each: Callable[[], Any] = chance.random if "float" in kind else lambda: chance.randrange(-1, 5)
            return [each() for _ in range(len(shape) if "size" in argument else chance.randrange(1, 3))]
        values = {
            "int": chance.randrange(-2, 5),
            "float": chance.choice((0.0, 0.5, 1.0, 2.0, -1.0)),
            "bool": chance.random() < 0.5,
            "str": chance.choice(TEXTS),
            "Scalar": chance.choice((0, 1, 2.5)),
            "number": chance.choice((0, 1, 2.5)),
        }
        return values.get(kind)

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    by_name = False
    for argument in schema.arguments:
        if argument.has_default_value() and chance.random() < 0.8:
            by_name = True
            continue
        by_name = by_name or argument.kwarg_only
        given = value(str(argument.type), argument.name)
        if by_name:
            kwargs[argument.name] = given
        else:
            args.append(given)
    return args, kwargs


def operators() -> list[str]:
    """The drawn operators that torch_npu implements and that compute something from tensors."""
    from harness.devices.sim.operators.aten_kernels import LEFT_TO_TORCH_NPU
    from harness.devices.sim.operators.dispatch import TO_HOST
    from harness.devices.sim.operators.schema_plan import returns_view
    from harness.devices.sim.operators.torch_internals import DEVICE_KEY, has_kernel, overload, schemas

    return sorted(
        f"{namespace}::{name}"
        for namespace in ("aten", "npu")
        for name, schema in schemas(namespace)
        if name not in LEFT_TO_TORCH_NPU
        and f"{namespace}::{name.partition('.')[0]}" not in TO_HOST
        and number(f"{namespace}::{name}") % SHARE == 0
        and overload(namespace, name) is not None
        and has_kernel(f"{namespace}::{name}", DEVICE_KEY)
        and any("Tensor" in str(argument.type) for argument in schema.arguments)
        and not returns_view(schema)
    )


def in_cell(names: Sequence[str], out: Path, *, is_truth: bool) -> None:
    """Append a line for each call: [operator, number of the call, verdict, text].

    The verdict of the truth is that of `check_server`: accepted, refused or unknown. That of the device is
    `refused` if it raised torch_npu's error, `failed` if its kernel raised, else `accepted`.
    """
    at = 0
    while at < len(names):
        pid = os.fork()
        if not pid:
            run = truth() if is_truth else on_device
            for name in names[at:]:
                signal.alarm(LIMIT_S)
                # Written when the operator is complete, as one line, so that a crash leaves no part of it.
                row = json.dumps([name, [run(name, place) for place in range(CALLS)]])
                with out.open("a", encoding="utf-8") as stream:
                    stream.write(row + "\n")
            os._exit(0)
        os.waitpid(pid, 0)
        done = len(out.read_text("utf-8").splitlines()) if out.is_file() else 0
        if done < len(names):
            with out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps([names[done], []]) + "\n")
            done += 1
        at = done


def truth() -> Callable[[str, int], tuple[str, str]]:
    """Makes calls with torch_npu's own kernels, on operators of CANN that do nothing."""
    from harness.devices.sim.operators.torch_internals import DEVICE_KEY, call_kernel, overload, schema_of
    from harness.devices.sim.refusals import check_server

    reads: ctypes.c_int = check_server.make_dry()

    def run(name: str, place: int) -> tuple[str, str]:
        namespace, _, rest = name.partition("::")
        operator = overload(namespace, rest)
        args, kwargs = drawn_call(name, schema_of(operator), place)
        reads.value = 0
        try:
            result = call_kernel(operator, DEVICE_KEY, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - every exception is what is measured
            found = check_server.classified(error, was_read=bool(reads.value))
            if isinstance(found, check_server.Refused):
                return "refused", f"{found.error}: {found.message}"
            return ("accepted" if found is None else "unknown"), str(error)
        return "accepted", described(result)

    return run


def on_device(name: str, place: int) -> tuple[str, str]:
    """Makes a call on the simulated device."""
    from harness.devices.sim.operators.torch_internals import DEVICE_KEY, call_kernel, overload, schema_of
    from harness.devices.sim.refusals.wheel_checks import was_refused

    namespace, _, rest = name.partition("::")
    operator = overload(namespace, rest)
    args, kwargs = drawn_call(name, schema_of(operator), place)
    try:
        result = call_kernel(operator, DEVICE_KEY, *args, **kwargs)
    except Exception as error:  # noqa: BLE001 - every exception is what is measured
        verdict = "refused" if was_refused(error) else "failed"
        return verdict, f"{type(error).__name__}: {error}"
    return "accepted", described(result)


def described(result: Any) -> str:
    """The type, shape and device of each tensor in a result."""
    import torch

    if isinstance(result, torch.Tensor):
        return f"{str(result.dtype).removeprefix('torch.')}{list(result.shape)} on {result.device.type}"
    if isinstance(result, (list, tuple)):
        return f"({', '.join(described(one) for one in result)})"
    return type(result).__name__


def compared(wanted: Path, found: Path) -> Iterator[tuple[str, int, str, str, str, str]]:
    """Operator, call, verdict and text of the truth, then of the device, of calls that both could make."""
    there = dict(json.loads(line) for line in found.read_text("utf-8").splitlines())
    for line in wanted.read_text("utf-8").splitlines():
        name, rows = json.loads(line)
        for place, (one, other) in enumerate(zip(rows, there.get(name, []), strict=False)):
            yield name, place, one[0], one[1], other[0], other[1]


def measure(python: str, folder: Path) -> list[tuple[str, int, str, str, str, str]]:
    """The calls of a cell's torch_npu. python: the interpreter of the cell."""
    from benchmarks.figures import ROOT
    from harness.devices.sim.runtime_build.runtime_library import build_runtime

    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", place], capture_output=True, text=True, check=True).stdout.strip()
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(build_runtime(Path(site), folder)),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TASK_QUEUE_ENABLE": "0",
    }
    me = str(Path(__file__).resolve())
    launcher = ["-m", "harness.devices.sim.start.sim_launch"]
    for start, name in (([me, "truth"], "truth"), ([*launcher, me, "device"], "device")):
        out = str(folder / name)
        subprocess.run([python, *start, out], env=environ, cwd=folder, check=True, capture_output=True)
    return list(compared(folder / "truth", folder / "device"))


def figures() -> Iterator[Any]:
    # This module is imported inside cells, too, where the rest of the host side is missing.
    from benchmarks.figures import CannotRunError, Figure, user_cache

    cells: dict[str, str] = {}
    found = user_cache().glob("cells/*/venv/lib/python*/site-packages/torch_npu-*.dist-info")
    for path in sorted(found, key=lambda one: one.stat().st_mtime):
        release = path.name.removeprefix("torch_npu-").removesuffix(".dist-info")
        cells[release] = str(path.parents[3] / "bin" / "python")
    if not cells:
        raise CannotRunError("no cell is built", "npu-matrix run --check environment")
    for release, python in sorted(cells.items()):
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(python, Path(folder))
        for split, rest in (("looked at", 0), ("only counted", 1)):
            own = [row for row in rows if number("split " + row[0]) % 2 == rest]
            yield from _figures(f"{release}, {split}", own, Figure)


def _figures(title: str, rows: Sequence[tuple[str, int, str, str, str, str]], figure: Any) -> Iterator[Any]:
    refused = [row for row in rows if row[2] == "refused"]
    accepted = [row for row in rows if row[2] == "accepted"]
    # Without the mark: the arguments did not fit the operator's schema, in both processes.
    same = sum(row[4] != "accepted" and _same_error(row[3], row[5]) for row in refused)
    yield figure(
        claim=f"{title}: refused with torch_npu's error, of {len(refused)} calls that it refuses",
        measured=100 * same / max(len(refused), 1),
        unit="%",
        limit=95,
        is_lower_limit=True,
    )
    both = [row for row in accepted if row[4] == "accepted" and row[3].endswith(("]", ")", "npu"))]
    same = sum(row[3] == row[5] for row in both)
    yield figure(
        claim=f"{title}: results of the same types and shapes, of {len(both)} calls that both make",
        measured=100 * same / max(len(both), 1),
        unit="%",
    )
    strict = sum(row[4] == "refused" for row in accepted)
    yield figure(
        claim=f"{title}: refused, of {len(accepted)} calls that torch_npu accepts", measured=strict, limit=0
    )


def _same_error(one: str, other: str) -> bool:
    return one.partition("[ERROR]")[0] == other.partition("[ERROR]")[0]


if __name__ == "__main__":
    # Here, because the order of operators must be that of torch_npu before its kernels are replaced.
    import torch_npu  # noqa: F401

    listed = Path(sys.argv[2]).with_name("operators.json")
    if sys.argv[1] == "truth":
        listed.write_text(json.dumps(operators()), encoding="utf-8")
    in_cell(json.loads(listed.read_text("utf-8")), Path(sys.argv[2]), is_truth=sys.argv[1] == "truth")
