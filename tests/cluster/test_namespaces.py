"""A cluster whose nodes have addresses of their own: network namespaces joined by a bridge.

It is started by the scripts of examples/cluster, as their reader would.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CARDS, HERE, PATIENCE_SECONDS, PATIENT, ROOT
from missing_programs import missing

from harness.builds.ownership.temporary_folders import temporary_folder

# Namespaces are the machine's: another run of these tests has its own.
OURS = "npmx-{}-{}"
NAMES = tuple(OURS.format(os.getpid(), letter) for letter in "hab")
SWITCH = OURS.format(os.getpid(), "s")
ADDRESSES = [f"10.213.7.{number}" for number in range(1, len(NAMES) + 1)]
PORT = 26379
EXAMPLES = ROOT / "examples/cluster"
ENVIRON = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    **PATIENT,
}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def remove_left_over() -> None:
    """The namespaces of runs that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout
    for name in re.findall(r"^npmx-\d+-\w", listed, re.MULTILINE):
        if not Path("/proc", name.split("-")[1]).exists():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Three hosts, each with one interface, joined by a switch that is a host too."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        missing("network namespaces need root and iproute2")
    with contextlib.ExitStack() as stack:
        remove_left_over()
        for name in (SWITCH, *NAMES):
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


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a host on which npu-matrix and Ray are installed: both are commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module in (("ray", "ray.scripts.scripts"), ("npu-matrix", "harness")):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        command.chmod(0o755)
    return {**ENVIRON, "PATH": f"{folder}:{os.environ['PATH']}"}


def script(
    namespace: str, log: Path, environ: dict[str, str], name: str, *arguments: str
) -> subprocess.Popen[str]:
    argv = ["ip", "netns", "exec", namespace, "bash", str(EXAMPLES / name), *arguments]
    with log.open("w") as stream:
        return subprocess.Popen(
            argv, env=environ, stdout=stream, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )


def end(process: subprocess.Popen[str]) -> None:
    """The script and the Ray it waits for; what takes longer than a few seconds is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    deadline = time.monotonic() + 3
    while left := of_session(process.pid):
        if time.monotonic() > deadline:
            for one in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        time.sleep(0.2)


def of_session(session: int) -> list[int]:
    """The living processes that were started by the one this session is named after."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, _group, own = path.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def wait_for(namespace: str, address: str, log: Path) -> None:
    """Until the head answers there: a node that comes before it gives up."""
    look = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"
    argv = ["ip", "netns", "exec", namespace, sys.executable, "-c", look, address, str(PORT)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while subprocess.run(argv, check=False, capture_output=True).returncode:
        assert time.monotonic() < deadline, f"the head never answered: {log.read_text()[-2000:]}"
        time.sleep(0.5)


@pytest.mark.timeout(1200)
def test_a_cell_of_two_nodes_runs_across_hosts(
    hosts: list[str], installed: dict[str, str], tmp_path: Path
) -> None:
    head = f"{hosts[0]}:{PORT}"
    common = ["--block", "--num-cpus", "2", "--disable-usage-stats"]
    with contextlib.ExitStack() as stack:

        def start(number: int, name: str, *arguments: str) -> None:
            log = tmp_path / f"{NAMES[number]}.log"
            options = ["--node-ip-address", hosts[number], *common]
            deadline, one = time.monotonic() + PATIENCE_SECONDS, None
            # One after the other: two that join at the same moment on two cores time out.
            while one is None or "Ray runtime started" not in log.read_text():
                if one is None or one.poll() is not None:
                    # Ray gives up on a node after 30 s, which a loaded machine may take.
                    assert one is None or "timed out during startup" in log.read_text(), log.read_text()
                    one = script(NAMES[number], log, installed, name, *arguments, *options)
                    stack.callback(end, one)
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)

        folder = stack.enter_context(temporary_folder(Path("/tmp"))) / "ray"
        start(0, "start-head.sh", "--include-dashboard", "false", "--temp-dir", str(folder))
        wait_for(NAMES[1], hosts[0], tmp_path / f"{NAMES[0]}.log")
        for number in (1, 2):
            # What is given behind the script's own options replaces them: these cards are made up.
            start(number, "start-node.sh", head, "--resources", json.dumps(CARDS))
        driver = [sys.executable, str(HERE / "cluster_two_nodes.py"), head, str(tmp_path)]
        done = subprocess.run(
            ["ip", "netns", "exec", NAMES[0], *driver],
            env=ENVIRON,
            capture_output=True,
            text=True,
            timeout=700,
            check=False,
        )
    logs = "".join(log.read_text() for log in sorted(tmp_path.glob("npmx-*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["statuses"] == ["pass", "pass", "pass"], logs
    assert sorted(found["nodes"]) == hosts[1:]
