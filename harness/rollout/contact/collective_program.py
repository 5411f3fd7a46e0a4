"""In-cell program: collective operations between several cards, each driven by a process of its own.

    python -m harness.rollout.contact.collective_program --ranks 2 --folder WORK --out collectives.json

The program starts itself again once for each rank. The operands are small whole numbers, so that the results
are exact in every format and in any order of the sums: a result that differs at all is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.cell_program.torch_device import device_facts, half_format
from harness.errors import EXIT_INCOMPLETE
from harness.evidence import Runtime, runtime_kind
from harness.rollout.contact.contact_measurements import CollectiveResult, CollectivesMeasured
from harness.serialisation import json_object

MODULE = "harness.rollout.contact.collective_program"
BACKEND = "hccl"
#: Elements of the small tensors, and of the one whose all-reduce is timed (float32, 64 MiB).
ELEMENTS, LARGE = 1 << 10, 1 << 24
ROUNDS = 3


def take_card(torch: Any, rank: int, ranks: int) -> int | None:
    """Set the card of one of the ranks of a host and return its number; None, and a message, if cards lack.

    Simulated ranks may share a card.
    """
    count = torch.npu.device_count()
    if count < ranks and runtime_kind() is not Runtime.SIMULATED:
        print(f"{ranks} ranks need a card each, and this process sees {count}", file=sys.stderr)
        return None
    card: int = rank % max(count, 1)
    torch.npu.set_device(card)
    return card


def run_rank(rank: int, ranks: int, store: Path, out: Path) -> int:
    """One rank; the first one writes the measurements."""
    torch = import_module("torch")
    import_module("torch_npu")
    dist = import_module("torch.distributed")
    card = take_card(torch, rank, ranks)
    if card is None:
        return EXIT_INCOMPLETE
    started = time.monotonic()
    dist.init_process_group(BACKEND, init_method=store.as_uri(), rank=rank, world_size=ranks)
    device = torch.device("npu", card)
    results = tuple(operation_results(torch, dist, device, rank, ranks))
    speed = _speed(torch, dist, device, ranks)
    cards: list[Any] = [None] * ranks
    dist.all_gather_object(cards, f"npu:{card}")
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        measured = CollectivesMeasured(
            device=device_facts(f"npu:{card}"),
            ranks=ranks,
            devices=tuple(map(str, cards)),
            results=results,
            gigabytes_per_second=round(speed, 3),
            seconds=round(time.monotonic() - started, 3),
        )
        out.write_text(json.dumps(json_object(measured)), encoding="utf-8")
    return 0


def operation_results(
    torch: Any, dist: Any, device: Any, rank: int, ranks: int
) -> Iterator[CollectiveResult]:
    """Every operation; a rank that finds a wrong result tells the others."""
    for name, operation in operations(half_format(torch)).items():
        wrong = operation(torch, dist, device, rank, ranks)
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, wrong)
        found = [f"rank {number}: {text}" for number, text in enumerate(told) if text]
        yield CollectiveResult(name=name, wrong="; ".join(found)[:500])


def _full(torch: Any, device: Any, value: float, size: int = ELEMENTS, dtype: Any = None) -> Any:
    return torch.full((size,), value, dtype=dtype or torch.float32, device=device)


def _difference(found: Any, expected: Any) -> str:
    """How a tensor differs from a list of numbers, or ""."""
    values = found.detach().cpu().double().flatten().tolist()
    if values == expected:
        return ""
    at = next((i for i, pair in enumerate(zip(values, expected, strict=False)) if pair[0] != pair[1]), 0)
    return f"element {at} is {values[at] if values else 'missing'}, not {expected[at]}"


def _all_reduce(dtype: str, op: str) -> Callable[..., str]:
    def operation(torch: Any, dist: Any, device: Any, rank: int, ranks: int) -> str:
        x = _full(torch, device, rank + 1.0, dtype=getattr(torch, dtype))
        dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        total = ranks * (ranks + 1) / 2 if op == "SUM" else ranks
        return _difference(x, [float(total)] * ELEMENTS)

    return operation


def _broadcast(torch: Any, dist: Any, device: Any, rank: int, ranks: int) -> str:
    x = _full(torch, device, float(rank))
    dist.broadcast(x, ranks - 1)
    return _difference(x, [float(ranks - 1)] * ELEMENTS)


def _all_gather(torch: Any, dist: Any, device: Any, rank: int, ranks: int) -> str:
    out = _full(torch, device, -1.0, ELEMENTS * ranks)
    dist.all_gather_into_tensor(out, _full(torch, device, float(rank)))
    return _difference(out, [float(one) for one in range(ranks) for _ in range(ELEMENTS)])


def _reduce_scatter(torch: Any, dist: Any, device: Any, rank: int, ranks: int) -> str:
    out = _full(torch, device, -1.0)
    parts = [_full(torch, device, float(one + rank)) for one in range(ranks)]
    dist.reduce_scatter_tensor(out, torch.cat(parts))
    return _difference(out, [float(ranks * rank + ranks * (ranks - 1) // 2)] * ELEMENTS)


def _all_to_all(torch: Any, dist: Any, device: Any, rank: int, ranks: int) -> str:
    out = _full(torch, device, -1.0, ranks)
    dist.all_to_all_single(out, torch.arange(float(ranks), device=device) + 10 * rank)
    return _difference(out, [float(rank + 10 * one) for one in range(ranks)])


def _send_receive(torch: Any, dist: Any, device: Any, rank: int, ranks: int) -> str:
    """Each rank receives from the one before it. The first sends first, so no two wait for each other."""
    x = _full(torch, device, -1.0)
    before, after = (rank - 1) % ranks, (rank + 1) % ranks
    steps = (
        lambda: dist.send(_full(torch, device, float(rank)), after),
        lambda: dist.recv(x, before),
    )
    for step in steps if rank == 0 else reversed(steps):
        step()
    return _difference(x, [float(before)] * ELEMENTS)


def operations(half: str) -> dict[str, Callable[..., str]]:
    """Name -> operation. half: the 16-bit format of the device."""
    return {
        "all_reduce sum float32": _all_reduce("float32", "SUM"),
        f"all_reduce sum {half}": _all_reduce(half, "SUM"),
        "all_reduce max float32": _all_reduce("float32", "MAX"),
        "broadcast": _broadcast,
        "all_gather_into_tensor": _all_gather,
        "reduce_scatter_tensor": _reduce_scatter,
        "all_to_all_single": _all_to_all,
        "send and recv": _send_receive,
    }


def _speed(torch: Any, dist: Any, device: Any, ranks: int) -> float:
    """Gigabytes per second that a rank sends in the all-reduce of a large tensor, the fastest of a few.

    A ring sends 2 (n - 1) / n times the tensor.
    """
    x = _full(torch, device, 1.0, LARGE)
    fastest = float("inf")
    for _ in range(ROUNDS):
        dist.barrier()
        started = time.monotonic()
        dist.all_reduce(x)
        torch.npu.synchronize()
        fastest = min(fastest, time.monotonic() - started)
    return 4 * LARGE * 2 * (ranks - 1) / ranks / fastest / 1e9


def start_ranks(ranks: int, folder: Path, out: Path) -> int:
    """Start all ranks and wait; a rank that fails ends the others. Returns its exit code."""
    store = folder / "store"
    simulated = runtime_kind() is Runtime.SIMULATED
    launcher = ("-m", "harness.devices.sim.start.sim_launch") if simulated else ()
    own = ("--ranks", str(ranks), "--folder", str(folder), "--out", str(out), "--store", str(store))
    command = [sys.executable, *launcher, "-m", MODULE, *own]
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            process = subprocess.Popen(
                [*command, "--out", str(out), "--rank", str(rank), "--store", str(store)]
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        waiting = list(processes)
        while waiting:
            for process in waiting:
                if process.poll() is not None:
                    waiting.remove(process)
                    if process.returncode:
                        print(f"a rank ended with exit code {process.returncode}", file=sys.stderr)
                        return 1 if process.returncode < 0 else process.returncode
                    break
            else:
                time.sleep(0.05)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="a folder for the rendezvous")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rank", type=int, help="run this rank; without it, start all")
    parser.add_argument("--store", type=Path)
    arguments = parser.parse_args(argv)
    os.environ.setdefault("HCCL_CONNECT_TIMEOUT", "120")
    if arguments.rank is None:
        return start_ranks(arguments.ranks, arguments.folder, arguments.out)
    return run_rank(arguments.rank, arguments.ranks, arguments.store, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
