"""Leases of cards under races and SIGKILL: is a card ever leased twice, and is one ever lost?

Twelve workers lease 1 to 4 of 8 cards again and again; some are killed while they hold cards or wait in the
queue. A holder marks its cards with its process id; finding the mark of a living process is a double lease.
At the end all cards must be free within half a minute.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure
from harness.devices.cards.card_leases import CardLeases
from harness.errors import InterruptedRunError

WORKERS, LEASES, KILL_SECONDS = 12, 500, 0.2
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


def figures() -> Iterator[Figure]:
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder, marks = Path(scratch) / "leases", Path(scratch) / "marks"
        marks.mkdir()
        workers = [start(folder, marks, seed) for seed in range(WORKERS)]
        kills, granted = 0, marks / "granted"
        while not granted.exists() or granted.stat().st_size < LEASES:
            time.sleep(KILL_SECONDS)
            victim = rng.randrange(len(workers))
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].wait()
            kills += 1
            workers[victim] = start(folder, marks, WORKERS + kills)
        for worker in workers:
            worker.kill()
            worker.wait()
        lost, end = 0, time.monotonic() + 30
        leases = CardLeases(folder)
        try:
            with leases.lease(CARDS, len(CARDS), "the end", stopped=lambda: time.monotonic() > end):
                pass
        except InterruptedRunError:
            lost = sum(one.card is not None for one in leases.list_leases())
        races = f"{granted.stat().st_size} leases, {kills} workers killed"
        doubles = len(list(marks.glob("double-*")))
    yield Figure(claim=f"{races}: cards leased twice", measured=doubles, limit=0)
    yield Figure(claim=f"{races}: cards lost", measured=lost, limit=0)
