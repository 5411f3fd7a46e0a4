"""A cluster whose nodes have addresses of their own: network namespaces joined by a bridge.

It is started by the scripts of examples/cluster, as their reader would.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
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
from harness.devices.stand_in.host_network import NetworkHost, joined_hosts
from harness.errors import InfrastructureError

PORT = 26379
EXAMPLES = ROOT / "examples/cluster"
ENVIRON = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    **PATIENT,
}


@pytest.fixture
def hosts() -> Iterator[tuple[NetworkHost, ...]]:
    """Three hosts, each with one interface."""
    try:
        with joined_hosts(3) as made:
            yield made
    except InfrastructureError as error:
        missing(str(error))


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
    host: NetworkHost, log: Path, environ: dict[str, str], name: str, *arguments: str
) -> subprocess.Popen[str]:
    argv = host.command_on(["bash", str(EXAMPLES / name), *arguments])
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


def wait_for(host: NetworkHost, address: str, log: Path) -> None:
    """Until the head answers there: a node that comes before it gives up."""
    look = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"
    argv = host.command_on([sys.executable, "-c", look, address, str(PORT)])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while subprocess.run(argv, check=False, capture_output=True).returncode:
        assert time.monotonic() < deadline, f"the head never answered: {log.read_text()[-2000:]}"
        time.sleep(0.5)


@pytest.mark.timeout(1200)
def test_a_cell_of_two_nodes_runs_across_hosts(
    hosts: tuple[NetworkHost, ...], installed: dict[str, str], tmp_path: Path
) -> None:
    head = f"{hosts[0].address}:{PORT}"
    common = ["--block", "--num-cpus", "2", "--disable-usage-stats"]
    with contextlib.ExitStack() as stack:

        def start(number: int, name: str, *arguments: str) -> None:
            log = tmp_path / f"{hosts[number].namespace}.log"
            options = ["--node-ip-address", hosts[number].address, *common]
            deadline, one = time.monotonic() + PATIENCE_SECONDS, None
            # One after the other: two that join at the same moment on two cores time out.
            while one is None or "Ray runtime started" not in log.read_text():
                if one is None or one.poll() is not None:
                    # Ray gives up on a node after 30 s, which a loaded machine may take.
                    assert one is None or "timed out during startup" in log.read_text(), log.read_text()
                    one = script(hosts[number], log, installed, name, *arguments, *options)
                    stack.callback(end, one)
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)

        folder = stack.enter_context(temporary_folder(Path("/tmp"))) / "ray"
        start(0, "start-head.sh", "--include-dashboard", "false", "--temp-dir", str(folder))
        wait_for(hosts[1], hosts[0].address, tmp_path / f"{hosts[0].namespace}.log")
        for number in (1, 2):
            # What is given behind the script's own options replaces them: these cards are made up.
            start(number, "start-node.sh", head, "--resources", json.dumps(CARDS))
        driver = [sys.executable, str(HERE / "cluster_two_nodes.py"), head, str(tmp_path)]
        done = subprocess.run(
            hosts[0].command_on(driver),
            env=ENVIRON,
            capture_output=True,
            text=True,
            timeout=700,
            check=False,
        )
    logs = "".join(log.read_text() for log in sorted(tmp_path.glob("npmx-*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["statuses"] == ["pass", "pass", "pass"], str(found) + logs
    assert sorted(found["nodes"]) == [host.address for host in hosts[1:]]
