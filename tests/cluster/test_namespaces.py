"""A cluster whose nodes have addresses of their own: network namespaces joined by a bridge."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CARDS, HERE, ROOT

NAMES = ("npmx-h", "npmx-a", "npmx-b")
SWITCH = "npmx-s"
ADDRESSES = [f"10.213.7.{number}" for number in range(1, len(NAMES) + 1)]
PORT = 6479
ENVIRON = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Three hosts, each with one interface, joined by a switch that is a host too."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        reason = "network namespaces need root and iproute2: not run here"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        for name in (SWITCH, *NAMES):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True)
        ip("-n", SWITCH, "link", "add", "bridge", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "bridge", "up")
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            ip("-n", name, "link", "add", "eth", "type", "veth", "peer", "name", name, "netns", SWITCH)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth")
            ip("-n", name, "link", "set", "eth", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", SWITCH, "link", "set", name, "master", "bridge", "up")
        yield ADDRESSES


def ray(namespace: str, log: Path, *arguments: str) -> subprocess.Popen[str]:
    argv = ["ip", "netns", "exec", namespace, sys.executable, "-m", "ray.scripts.scripts", *arguments]
    with log.open("w") as stream:
        return subprocess.Popen(argv, env=ENVIRON, stdout=stream, stderr=subprocess.STDOUT, text=True)


def wait_for(namespace: str, address: str) -> None:
    """Until the head answers there: a node that comes before it gives up."""
    look = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"
    argv = ["ip", "netns", "exec", namespace, sys.executable, "-c", look, address, str(PORT)]
    deadline = time.monotonic() + 60
    while subprocess.run(argv, check=False, capture_output=True).returncode:
        assert time.monotonic() < deadline, "the head never answered"
        time.sleep(0.5)


@pytest.mark.timeout(240)
def test_a_cell_of_two_nodes_runs_across_hosts(hosts: list[str], tmp_path: Path) -> None:
    head = f"{hosts[0]}:{PORT}"
    common = ["--block", "--num-cpus", "2", "--disable-usage-stats"]
    with contextlib.ExitStack() as stack:

        def start(number: int, *arguments: str) -> None:
            log = tmp_path / f"{NAMES[number]}.log"
            one = ray(NAMES[number], log, "start", "--node-ip-address", hosts[number], *common, *arguments)
            stack.callback(one.wait)
            stack.callback(one.terminate)
            # One after the other: two that join at the same moment on two cores time out.
            deadline = time.monotonic() + 60
            while "Ray runtime started" not in log.read_text() and time.monotonic() < deadline:
                time.sleep(0.2)

        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="npmx-", dir="/tmp", ignore_cleanup_errors=True)
        )
        start(0, "--head", "--port", str(PORT), "--include-dashboard", "false", "--temp-dir", folder)
        wait_for(NAMES[1], hosts[0])
        for number in (1, 2):
            start(number, "--address", head, "--resources", json.dumps(CARDS))
        driver = [sys.executable, str(HERE / "cluster_two_nodes.py"), head, str(tmp_path)]
        done = subprocess.run(
            ["ip", "netns", "exec", NAMES[0], *driver],
            env=ENVIRON,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    logs = "".join(log.read_text() for log in sorted(tmp_path.glob("npmx-*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["statuses"] == ["pass", "pass", "pass"], logs
    assert sorted(found["nodes"]) == hosts[1:]
