"""In-cell program: collective operations and training steps between the cards of several hosts.

    python -m harness.rollout.contact.hosts_program --hosts 2 --cards 8 --out hosts.json

It runs on each host and starts torchrun there, as scripts for several hosts do: the first host has the
rendezvous, and HCCL, Gloo and TensorPipe use the interface with the host's address. `host_addresses.py` has
the variables that name the hosts. Without them, on the simulated device, the program starts torchrun for all
hosts, which then are addresses of the loopback interface.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.cell_program.host_addresses import Hosts, make_hosts, read_hosts
from harness.cell_program.torch_device import device_facts
from harness.errors import EXIT_INCOMPLETE
from harness.evidence import DeviceFacts, Runtime, evidence_of, runtime_kind
from harness.outcome import Evidence
from harness.rollout.contact.collective_program import BACKEND, operation_results, take_card
from harness.rollout.contact.contact_measurements import HostRanks, HostsMeasured, JointTraining
from harness.serialisation import json_object

MODULE = "harness.rollout.contact.hosts_program"
#: Cards of each host where the device is simulated: every rank is a process that imports torch.
SIMULATED_CARDS = 2
#: Seconds that HCCL waits for other hosts; those that the user sets take precedence.
TIMEOUTS = {"HCCL_CONNECT_TIMEOUT": "120", "HCCL_EXEC_TIMEOUT": "120"}
INTERFACE_VARIABLES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
#: The training: a linear model of so many weights, so many rows on each rank, plain gradient descent.
WEIGHTS, ROWS, STEPS, RATE = 8, 4, 3, 0.125
# From linux/sockios.h and linux/prctl.h.
_SIOCGIFADDR = 0x8915
_PR_SET_PDEATHSIG = 1


def training_row(rank: int, row: int) -> tuple[list[float], float]:
    """A row of the data: its values, and the target."""
    seed = rank * ROWS + row
    values = [float((seed * 7 + 3 * column) % 5 - 2) for column in range(WEIGHTS)]
    return values, float(seed % 7 - 3)


def reference_training(ranks: int) -> tuple[list[float], float]:
    """The weights after training in float64 on the rows of all ranks, and the tolerance of one in float32.

    The loss of a rank is the mean square of its rows, and its gradient is averaged over the ranks. A gradient
    is a sum of n = ranks x ROWS terms, each of a dot product of WEIGHTS: its error in float32 is at most
    (n + WEIGHTS + 4) 2^-24 times the sum of the terms' magnitudes (Higham, Accuracy and Stability, 3.1), and
    the errors of all steps are added, with those of a step enlarged by the later ones.
    """
    rows = [training_row(rank, row) for rank in range(ranks) for row in range(ROWS)]
    weights, error = [0.0] * WEIGHTS, 0.0
    for _ in range(STEPS):
        gradient, magnitude, growth = [0.0] * WEIGHTS, 0.0, 0.0
        for values, target in rows:
            difference = sum(w * x for w, x in zip(weights, values, strict=True)) - target
            size = sum(abs(w * x) for w, x in zip(weights, values, strict=True)) + abs(target)
            largest = max(map(abs, values))
            gradient = [g + 2 * difference * x for g, x in zip(gradient, values, strict=True)]
            magnitude += 2 * size * largest
            growth += 2 * sum(map(abs, values)) * largest
        scale = RATE / WEIGHTS / len(rows)
        weights = [w - scale * g for w, g in zip(weights, gradient, strict=True)]
        rounding = (len(rows) + WEIGHTS + 4) * 2.0**-24
        error = error * (1 + scale * growth) + rounding * (scale * magnitude + max(map(abs, weights)))
    return weights, error


def train(torch: Any, device: Any, rank: int, card: int) -> list[float]:
    """The weights after training with DistributedDataParallel between all ranks."""
    rows = [training_row(rank, row) for row in range(ROWS)]
    x = torch.tensor([values for values, _ in rows], device=device)
    y = torch.tensor([[target] for _, target in rows], device=device)
    model = torch.nn.Linear(WEIGHTS, 1, bias=False).to(device)
    torch.nn.init.zeros_(model.weight)
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[card])
    optimizer = torch.optim.SGD(parallel.parameters(), lr=RATE / WEIGHTS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        difference = parallel(x) - y
        (difference * difference).mean().backward()
        optimizer.step()
    return [float(value) for value in model.weight.detach().cpu().flatten().tolist()]


def why_wrong(told: Sequence[Sequence[float]]) -> str:
    """How the weights of the ranks differ from each other or from the reference, or ""."""
    expected, tolerance = reference_training(len(told))
    for rank, weights in enumerate(told):
        if list(weights) != list(told[0]):
            return f"rank {rank} has other weights than rank 0"
        off = max(abs(found - right) for found, right in zip(weights, expected, strict=True))
        # NaN is never within the tolerance.
        if not off <= tolerance:
            return f"rank {rank} has a weight that is off by {off:.3g}; the tolerance is {tolerance:.3g}"
    return ""


def run_rank(out: Path) -> int:
    """One rank, started by torchrun; the first of each host writes the measurements."""
    torch = import_module("torch")
    import_module("torch_npu")
    dist = import_module("torch.distributed")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = int(os.environ["LOCAL_RANK"])
    card = take_card(torch, own, int(os.environ["LOCAL_WORLD_SIZE"]))
    if card is None:
        return EXIT_INCOMPLETE
    started = time.monotonic()
    dist.init_process_group(BACKEND)
    device = torch.device("npu", card)
    results = tuple(operation_results(torch, dist, device, rank, ranks))
    weights: list[Any] = [None] * ranks
    dist.all_gather_object(weights, train(torch, device, rank, card))
    places: list[Any] = [None] * ranks
    dist.all_gather_object(places, (os.environ["HCCL_IF_IP"], f"npu:{card}"))
    facts: list[Any] = [None] * ranks
    dist.all_gather_object(facts, device_facts(f"npu:{card}"))
    dist.barrier()
    dist.destroy_process_group()
    if own == 0:
        measured = HostsMeasured(
            device=least_proven(facts),
            hosts=tuple(_host_ranks(places)),
            results=results,
            training=JointTraining(steps=STEPS, wrong=why_wrong(weights)),
            seconds=round(time.monotonic() - started, 3),
        )
        out.write_text(json.dumps(json_object(measured)), encoding="utf-8")
    return 0


def least_proven(facts: Sequence[DeviceFacts]) -> DeviceFacts:
    """The device with the weakest evidence: one simulated rank makes the whole measurement simulated."""
    return min(facts, key=lambda one: evidence_of(one) is Evidence.HARDWARE)


def _host_ranks(places: Sequence[tuple[str, str]]) -> Iterator[HostRanks]:
    for address in dict.fromkeys(address for address, _ in places):
        yield HostRanks(address=address, devices=tuple(card for place, card in places if place == address))


def torchrun(hosts: Hosts, cards: int, out: Path) -> tuple[list[str], dict[str, str]]:
    """The command line of torchrun on one host, and its environment variables."""
    options = {
        "nnodes": len(hosts.addresses),
        "node-rank": hosts.index,
        "nproc-per-node": cards,
        "master-addr": hosts.addresses[0],
        "master-port": hosts.port,
        "max-restarts": 0,
        "local-addr": hosts.own,
    }
    argv = [sys.executable, "-m", "torch.distributed.run"]
    argv += [f"--{name}={value}" for name, value in options.items()]
    return [*argv, "-m", MODULE, "--rank", "--out", str(out)], host_variables(hosts.own, os.environ)


def host_variables(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What HCCL and the other backends need to use the interface with this address.

    Variables that the user has set stay, apart from the address.
    """
    name = interface_of(address)
    found = {**TIMEOUTS, **(dict.fromkeys(INTERFACE_VARIABLES, name) if name else {})}
    # OMP_NUM_THREADS: torchrun sets it too, and says so in the log.
    given = {**found, "OMP_NUM_THREADS": "1"}
    return {"HCCL_IF_IP": address, **{name: environ.get(name, value) for name, value in given.items()}}


def interface_of(address: str) -> str:
    """The name of the interface that has the IPv4 address, or ""."""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


def _end_with_parent() -> None:
    """Whoever kills this program, such as Ray, kills only its direct children; torchrun ends its ranks."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _name(hosts: Hosts) -> str:
    return f"host {hosts.own} ({hosts.index + 1} of {len(hosts.addresses)})"


def start(found: Sequence[tuple[Hosts, Path]], cards: int) -> int:
    """Start torchrun for these hosts, with the files to write; returns the first exit code that is not 0."""
    running = []
    for hosts, out in found:
        argv, variables = torchrun(hosts, cards, out)
        print(f"{_name(hosts)}: {json.dumps(variables)}", flush=True)
        # This process has no other thread.
        process = subprocess.Popen(argv, env={**os.environ, **variables}, preexec_fn=_end_with_parent)  # noqa: PLW1509
        running.append((hosts, process))
    code = 0
    while running:
        for hosts, process in running:
            if process.poll() is None:
                continue
            running.remove((hosts, process))
            if process.returncode and not code:
                # Negative codes are signals.
                code = process.returncode if process.returncode > 0 else 1
                print(
                    f"torchrun on {_name(hosts)} ended with exit code {process.returncode}", file=sys.stderr
                )
                for _, other in running:
                    other.terminate()
            break
        else:
            time.sleep(0.05)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--hosts", type=int, default=0, help="how many there must be")
    parser.add_argument("--cards", type=int, default=1, help="cards of each host")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write on each host")
    parser.add_argument("--progress", type=Path, help="file for the name of this host")
    parser.add_argument("--rank", action="store_true", help="torchrun has started this process")
    arguments = parser.parse_args(argv)
    if arguments.rank:
        return run_rank(arguments.out)
    simulated = runtime_kind() is Runtime.SIMULATED
    cards = min(arguments.cards, SIMULATED_CARDS) if simulated else arguments.cards
    hosts = read_hosts(os.environ)
    if hosts is None and not simulated:
        print("no cluster names the hosts of this program", file=sys.stderr)
        return EXIT_INCOMPLETE
    if hosts is not None and len(hosts.addresses) != arguments.hosts:
        print(f"{arguments.hosts} hosts are needed, not {len(hosts.addresses)}", file=sys.stderr)
        return EXIT_INCOMPLETE
    if hosts is not None:
        arguments.progress.write_text(_name(hosts), encoding="utf-8")
        return start([(hosts, arguments.out)], cards)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = make_hosts([f"127.0.0.{number + 1}" for number in range(arguments.hosts)], 0, "0" * 8, 0)
    return start(
        [
            (
                replace(first, index=index, port=port),
                arguments.out.with_suffix(f".{index}" if index else ".json"),
            )
            for index in range(arguments.hosts)
        ],
        cards,
    )


if __name__ == "__main__":
    sys.exit(main())
