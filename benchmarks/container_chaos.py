"""Runs that end badly on a real Docker daemon: containers left behind, and outcomes lost.

Each run has three tasks in containers and is disturbed, in turn: the driver is killed; a container hangs; a
container is killed; the disk of the state folder is full; the disk of the daemon is full; every tenth time
the daemon is restarted. Then the same run is done again, undisturbed, as a user would. An outcome is lost
when a task that was reported as recorded is not in the ledger, or has no outcome after the second run; a
container is leaked when it is left after `npu-matrix cleanup`. The daemon's data is on a small file system in
memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.chaos_driver import plan_of
from benchmarks.figures import ROOT, CannotRunError, Figure
from harness.builds.cleanup.cleanup_candidates import (
    CleanupPolicy,
    judge_engine_resources,
    removal_order,
    remove_candidate,
)
from harness.builds.ownership.owner_labels import ProcessView
from harness.errors import HarnessError
from harness.ledger.store import Ledger
from harness.outcome import State

if TYPE_CHECKING:
    from daemon import Daemon

REMEDY = (
    "run as root with docker.io, after `mmdebstrap --variant=essential "
    "--include=bash,coreutils,python3 bookworm base.tar`, with NPU_MATRIX_BENCH_BASE_TAR=base.tar"
)
RUNS = 20
BASE = "npu-matrix-chaos:1"
WAYS = ("driver killed", "container hangs", "container killed", "state disk full", "daemon disk full")
DATA_BYTES, STATE_BYTES = 1 << 30, 24 << 20
SECONDS = 180.0


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system in memory that can be filled."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Nothing more can be written there."""
    block = b"\0" * (1 << 20)
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(block):
            pass
    try:
        yield
    finally:
        (folder / "filler").unlink()


class Chaos:
    """The daemon, the image, and what was counted."""

    def __init__(self, daemon: Daemon, image: str, folder: Path) -> None:
        self.daemon, self.image, self.folder = daemon, image, folder
        # The Docker SDK is an extra: without it this benchmark says that it did not run.
        from harness.builds.engines.docker_engine import DockerEngine

        self.engine = DockerEngine({"DOCKER_HOST": daemon.address})
        self.counts: Counter[str] = Counter()

    def driver(self, place: Path, *more: str) -> subprocess.Popen[str]:
        """A run in `place`, with its own process group."""
        argv = [sys.executable, "-m", "benchmarks.chaos_driver"]
        return subprocess.Popen(
            [*argv, self.daemon.address, self.image, str(place), *more],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def running(self) -> str:
        """The first container that comes up."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(HarnessError):
                for resource in self.engine.resources():
                    if resource.kind == "container" and resource.running:
                        return resource.id
            time.sleep(0.05)
        raise TimeoutError("no container came up")

    def disturbed(self, way: str, place: Path) -> str:
        """What the run said until its end."""
        if way == "container hangs":
            return self.driver(place, "hang").communicate(timeout=SECONDS)[0]
        process = self.driver(place)
        with contextlib.ExitStack() as stack:
            container = self.running()
            if way == "driver killed":
                process.send_signal(signal.SIGKILL)
            elif way == "container killed":
                self.engine.signal(container, "KILL")
            elif way == "state disk full":
                stack.enter_context(filled(place / "state"))
            elif way == "daemon disk full":
                stack.enter_context(filled(self.daemon.folder / "data"))
            elif way == "daemon restarted":
                self.engine.close()
                self.daemon.stop()
                self.daemon.start()
            return process.communicate(timeout=SECONDS)[0]

    def one(self, number: int) -> None:
        """One chaos run, its repetition, and the count."""
        way = "daemon restarted" if number % 10 == 9 else WAYS[number % len(WAYS)]
        hang = way == "container hangs"
        place = self.folder / f"run-{number}"
        place.mkdir()
        with small_disk(place / "state", STATE_BYTES):
            told = self.disturbed(way, place)
            with contextlib.suppress(HarnessError):
                self.counts["left for cleanup"] += self.cleanup()
            again = self.driver(place, *(["hang"] if hang else [])).communicate(timeout=SECONDS)[0]
            self.counts["left for cleanup"] += self.cleanup()
            lost = self.lost(place, told + again, hang=hang)
        self.counts[way] += 1
        # So many outcomes the disturbance kept from being recorded, and the second run had to make.
        recorded = sum(line.startswith("recorded ") for line in told.splitlines())
        self.counts["made by the second run"] += len(plan_of("", "", "", hang=False).tasks) - recorded
        self.counts["outcomes planned"] += len(plan_of("", "", "", hang=False).tasks)
        self.counts["outcomes lost"] += len(lost)
        left = [resource for resource in self.engine.resources() if resource.kind == "container"]
        self.counts["containers leaked"] += len(left)
        if lost or left:
            print(
                f"{place.name}, {way}: lost {lost}, left {[resource.name for resource in left]}",
                file=sys.stderr,
            )
            print(f"first: {told}\nagain: {again}", file=sys.stderr)
        shutil.rmtree(place, ignore_errors=True)

    def lost(self, place: Path, told: str, *, hang: bool) -> list[str]:
        """Tasks that were told as recorded and are not there, or have no outcome of their own in the end."""
        recorded = {line.split()[1] for line in told.splitlines() if line.startswith("recorded ")}
        plan = plan_of(self.daemon.address, self.image, place.name, hang=hang)
        lost = []
        with Ledger.open(place / "state") as ledger:
            for key, task in plan.tasks.items():
                history = ledger.history(key=key)
                final = State.TIMEOUT if hang and task.check.timeout_s < SECONDS / 10 else State.COMPLETED
                if not any(one.state is final for one in history) or (key in recorded and not history):
                    lost.append(f"{task.check.name}: {[one.state.value for one in history]}")
        return lost

    def cleanup(self) -> int:
        """What the rules of `npu-matrix cleanup` remove."""
        found = judge_engine_resources(self.engine.resources(), CleanupPolicy(), ProcessView())
        return sum(
            remove_candidate(one, self.engine) == ""
            for one in removal_order(found)
            if one.kind == "container"
        )


def figures() -> Iterator[Figure]:
    base = os.environ.get("NPU_MATRIX_BENCH_BASE_TAR", "")
    if os.geteuid() or not shutil.which("dockerd") or not base:
        raise CannotRunError("it needs root, dockerd, and a root file system as a tar file", REMEDY)
    # Both import the Docker SDK, which is an extra.
    from daemon import Daemon

    from harness.builds.engines.docker_engine import DockerEngine

    with tempfile.TemporaryDirectory(prefix="npu-matrix-chaos-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "work").mkdir()
        stack.enter_context(small_disk(folder / "data", DATA_BYTES))
        daemon = Daemon(folder)
        daemon.start()
        stack.callback(daemon.stop)
        environ = {**os.environ, "DOCKER_HOST": daemon.address}
        subprocess.run(["docker", "import", base, BASE], env=environ, check=True, capture_output=True)
        probe = DockerEngine({"DOCKER_HOST": daemon.address})
        found = probe.image(BASE)
        probe.close()
        assert found, "the base image was not imported"
        chaos = Chaos(daemon, found.id, folder / "work")
        stack.callback(chaos.engine.close)
        for number in range(RUNS):
            chaos.one(number)
        counts = chaos.counts
    lost = f"outcomes lost, of {counts['outcomes planned']} in {RUNS} runs that end badly"
    yield Figure(claim=lost, measured=counts["outcomes lost"], limit=0)
    yield Figure(claim="containers leaked by them", measured=counts["containers leaked"], limit=0)
    yield Figure(
        claim="outcomes that only the second run made",
        measured=counts["made by the second run"],
        rival=counts["outcomes planned"],
        rival_name="everything again",
    )
