"""Leases under races and kills: is a card ever held twice, is one ever lost?

    python -m benchmarks.leases [--races 1000] [--workers 12] [--kill 0.2]

Workers lease 1 to 4 of 8 cards, again and again; now and then one is killed with SIGKILL, with cards in its
hands or in the queue. A holder marks its cards with its pid; finding the mark of a process that lives is a
double lease. At the end all cards must be free; those that are not within half a minute are lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.devices.cards.card_leases import CardLeases
from harness.errors import InterruptedRunError

CARDS = range(8)
WORKER = """
import os, random, sys, time
from pathlib import Path
from harness.devices.cards.card_leases import CardLeases
folder, marks, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
while True:
    with CardLeases(folder).lease(range(8), rng.choice([1, 1, 1, 2, 4]), f"worker {seed}") as cards:
        for card in cards:
            mark = marks / f"card-{card}"
            before = mark.read_text() if mark.exists() else ""
            if before and Path(f"/proc/{before}").exists():
                (marks / f"double-{card}-{before}-{os.getpid()}").touch()
            mark.write_text(str(os.getpid()))
        time.sleep(rng.random() * 0.01)
        for card in cards:
            (marks / f"card-{card}").unlink()
    with (marks / "granted").open("a") as stream:
        stream.write("x")
"""


def start(folder: Path, marks: Path, seed: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), str(marks), str(seed)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--races", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--kill", type=float, default=0.2, help="seconds between kills")
    options = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder, marks = Path(scratch) / "leases", Path(scratch) / "marks"
        marks.mkdir()
        workers = [start(folder, marks, seed) for seed in range(options.workers)]
        kills, granted, begun = 0, marks / "granted", time.monotonic()
        while not granted.exists() or granted.stat().st_size < options.races:
            time.sleep(options.kill)
            victim = rng.randrange(len(workers))
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].wait()
            kills += 1
            workers[victim] = start(folder, marks, options.workers + kills)
        for worker in workers:
            worker.kill()
            worker.wait()
        seconds = time.monotonic() - begun
        lost, end = 0, time.monotonic() + 30
        try:
            with CardLeases(folder).lease(
                CARDS, len(CARDS), "the end", stopped=lambda: time.monotonic() > end
            ):
                pass
        except InterruptedRunError:
            lost = sum(one.card is not None for one in CardLeases(folder).list_leases())
        report = {
            "leases": granted.stat().st_size,
            "kills": kills,
            "double leases": len(list(marks.glob("double-*"))),
            "lost cards": lost,
            "seconds": round(seconds, 1),
            "cores": os.cpu_count(),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
