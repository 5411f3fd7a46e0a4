"""Containers left behind by runs that end badly, on a real Docker daemon. Needs root and docker.io.

Each run starts a container through the program that tasks use, and ends badly, in turn: the driver is killed
(-9); it is told to stop while the container hangs; the container is killed; the disk of the task's folder is
full; every tenth time the daemon is restarted. Then the rules of `cleanup` are applied once, and what is left
is counted.

    python benchmarks/builds/chaos.py --runs 100 --base base.tar
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
sys.path.insert(0, str(ROOT))

from daemon import Daemon  # noqa: E402 - they stand beside the tests

from harness.builds.container_command import contained_command  # noqa: E402
from harness.builds.docker_engine import DockerEngine  # noqa: E402
from harness.builds.labels import ProcessView  # noqa: E402
from harness.builds.reap import Standing, judge_things, removal_order, remove_found  # noqa: E402

BASE = "npu-matrix-chaos:1"
WAYS = ("driver killed", "hang stopped", "container killed", "disk full")


def driver(address: str, image: str, folder: Path, *argv: str) -> subprocess.Popen[bytes]:
    (folder / "bytecode").mkdir(exist_ok=True)
    container = {"engine": "docker", "image": image, "cell": "chaos", "bytecode": str(folder / "bytecode")}
    command, variables = contained_command(
        container, argv, {}, needed=(), device={"kind": "sim"}, environ={"DOCKER_HOST": address}
    )
    environ = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    out = subprocess.DEVNULL
    return subprocess.Popen(command, env=environ, cwd=folder, stdout=out, stderr=out, start_new_session=True)


def running(engine: DockerEngine) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for thing in engine.things():
            if thing.kind == "container" and thing.running:
                return thing.id
        time.sleep(0.05)
    raise TimeoutError("no container came up")


def end_badly(way: str, engine: DockerEngine, image: str, folder: Path, full: Path) -> None:
    if way == "disk full":
        argv = ("bash", "-c", "head -c 100000000 /dev/zero > big")
        process = driver(engine.address, image, full, *argv)
        process.wait(120)
        (full / "big").unlink(missing_ok=True)
        return
    process = driver(engine.address, image, folder, "sleep", "600")
    container = running(engine)
    if way == "driver killed":
        process.kill()
    elif way == "container killed":
        engine.signal(container, "KILL")
    else:
        process.send_signal(signal.SIGTERM)
    process.wait(120)


def restart(daemon: Daemon, engine: DockerEngine, image: str, folder: Path) -> None:
    process = driver(engine.address, image, folder, "sleep", "600")
    running(engine)
    engine.close()
    daemon.stop()
    daemon.start()
    process.wait(120)


def cleanup(engine: DockerEngine) -> int:
    found = judge_things(engine.things(), Standing(), ProcessView())
    return sum(remove_found(one, engine) == "" for one in removal_order(found) if one.kind == "container")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument(
        "--base", type=Path, required=True, help="a root file system as tar (mmdebstrap, debootstrap)"
    )
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="npu-matrix-chaos-") as name:
        folder, full = Path(name) / "work", Path(name) / "full"
        folder.mkdir()
        full.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(full)], check=True)
        daemon = Daemon(Path(name))
        daemon.start()
        engine = DockerEngine({"DOCKER_HOST": daemon.address})
        try:
            environ = {**os.environ, "DOCKER_HOST": daemon.address}
            subprocess.run(
                ["docker", "import", str(options.base), BASE], env=environ, check=True, capture_output=True
            )
            found = engine.image(BASE)
            assert found is not None
            started = time.monotonic()
            for number in range(options.runs):
                if number % 10 == 9:
                    way = "daemon restarted"
                    restart(daemon, engine, found.id, folder)
                else:
                    way = WAYS[number % len(WAYS)]
                    end_badly(way, engine, found.id, folder, full)
                counts[way] += 1
                counts["left for cleanup"] += cleanup(engine)
                left = [thing for thing in engine.things() if thing.kind == "container"]
                counts["leaked"] += len(left)
            seconds = time.monotonic() - started
        finally:
            engine.close()
            daemon.stop()
            subprocess.run(["umount", str(full)], check=False)
    print(json.dumps({"runs": options.runs, "seconds": round(seconds, 1), **counts}, indent=1))
    return 1 if counts["leaked"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
