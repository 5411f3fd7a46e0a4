"""Rehearses checks that run on several hosts: stand-in hosts with networks of their own, and Ray on each.

The commands are those of examples/cluster: `ray start` with what `npu-matrix doctor --resources` prints, then
`npu-matrix run --executor ray`. Faults are brought in while the check runs; each must be named with its host.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from harness.devices.cards.card_leases import FOLDER_VARIABLE
from harness.devices.stand_in.host_faults import HostFault, running_faults
from harness.devices.stand_in.host_network import NetworkHost, joined_hosts
from harness.devices.stand_in.host_tree import write_host
from harness.errors import InfrastructureError, Location
from harness.settings import Settings
from harness.workspace.execution.rehearsal import (
    STOPS,
    HostGroup,
    host_folder,
    login_command,
    own_command,
    read_report,
    rehearsal_environment,
    run_on_stand_in,
)
from harness.workspace.execution.rehearsed_faults import RehearsedFault

CHECK = "hosts"
_SOUND = "no fault"
#: What the program of the check has in its command line.
_PROGRAM = "hosts_program"
_PORT = 26379
#: Long, because a loaded machine takes its time.
_SECONDS_TO_START, _SECONDS_TO_RUN = 300.0, 1200.0
#: From a fault to the end of the run. Ray takes a node for dead after about 30 s, HCCL waits for 120 s.
SECONDS_TO_TELL = 300.0


@dataclass(frozen=True, kw_only=True)
class StandInHost:
    """A stand-in host. environ: of the commands that run on it."""

    network: NetworkHost
    place: Path
    files: tuple[Path, ...]
    environ: Mapping[str, str]

    def start(self, command: Sequence[str], root: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Run a command as after a login on the host, with its output in a file."""
        argv = self.network.command_on(login_command(self.place, self.files, command))
        return subprocess.Popen(argv, cwd=root, env=self.environ, stdout=output, stderr=subprocess.STDOUT)

    def lose(self) -> None:
        """End everything that runs on the host, as when it is switched off."""
        self.network.unplug()
        for process in self.network.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What happens to a host while the check runs.

    bring: brings the fault to the host. told: what is said of it, besides the address of the host.
    """

    name: str
    bring: Callable[[StandInHost], None]
    told: str = ""
    is_fault: bool = True


def _scenarios() -> Iterator[Scenario]:
    yield Scenario(name="a host is lost", bring=StandInHost.lose)
    yield Scenario(name="the link of a host is down", bring=lambda host: host.network.unplug())
    for fault in running_faults():
        yield Scenario(name=fault.name, bring=_damaged(fault), told=fault.told)


def _damaged(fault: HostFault) -> Callable[[StandInHost], None]:
    return lambda host: fault.damage(host.place)


def rehearse_hosts(
    group: HostGroup, number: int, folder: Path, settings: Settings, *, faults: bool
) -> Iterator[RehearsedFault]:
    """Run the check `hosts` of the first cell on so many hosts: without a fault, then with each, if `faults`.

    The environment is built on each of them before, because they reach nothing but each other later.
    InfrastructureError if this machine cannot make such hosts, or has no Ray.
    """
    reports = folder / "reports" / group.name
    arguments = ["run", "--only", group.ids[0], "--check", "environment", "--reports", str(reports)]
    for index in range(number):
        shutil.rmtree(reports, ignore_errors=True)
        run_on_stand_in(group, folder, settings, arguments, {}, shown=False, suffix=_suffix(index))
    (cell,) = read_report(reports / "report.json", group.ids[:1])
    if cell.stops:
        stop = cell.stops[0]
        told = f"not reached, because {stop.check} stops: {stop.reason}"
        yield RehearsedFault(fault=_SOUND, told=told, problem=told if STOPS[stop.kind][1] else "")
        return
    sound = Scenario(name=_SOUND, bring=lambda _host: None, is_fault=False)
    for scenario in (sound, *(_scenarios() if faults else ())):
        with _started(group, number, folder, settings) as hosts:
            yield _tried(scenario, hosts, group, folder, settings)


def _suffix(index: int) -> str:
    """Of the folder of the host with this index."""
    return f"-{index + 1}"


def _tried(
    scenario: Scenario,
    hosts: Sequence[StandInHost],
    group: HostGroup,
    folder: Path,
    settings: Settings,
) -> RehearsedFault:
    head, last = hosts[0], hosts[-1]
    log, reports = folder / "logs" / "run.log", folder / "reports" / "hosts"
    arguments = ["run", "--executor", "ray", "--ray-address", f"{head.network.address}:{_PORT}"]
    arguments += ["--only", group.ids[0], "--check", CHECK, "--fresh", "--reports", str(reports)]
    shutil.rmtree(reports, ignore_errors=True)
    with log.open("wb") as output:
        run = head.start(own_command(folder, settings, arguments), settings.root, output)
    problem = ""
    try:
        if scenario.is_fault and _wait_for_program(last, run):
            scenario.bring(last)
        run.wait(SECONDS_TO_TELL if scenario.is_fault else _SECONDS_TO_RUN)
    except subprocess.TimeoutExpired:
        problem = f"the run did not end within {SECONDS_TO_TELL:g} s"
        run.kill()
        run.wait()
    status, reasons = _read(reports / "report.json", group.ids[0])
    told = f"{status}: {' '.join(reasons)}"
    problem = problem or why_unexpected(scenario, status, reasons, last)
    return RehearsedFault(fault=scenario.name, told=told, problem=problem and f"{problem}; it is {told}")


def why_unexpected(scenario: Scenario, status: str, reasons: Sequence[str], last: StandInHost) -> str:
    """What the run did not say of the fault on the last host, or said wrongly; "" if it is as expected."""
    if not scenario.is_fault:
        return "" if status == "pass" else "the check does not pass"
    if status == "pass":
        return "the check passes"
    text = " ".join(reasons)
    missing = [part for part in (last.network.address, scenario.told) if part not in text]
    return f"the run does not say: {', '.join(missing)}" if missing else ""


def _read(file: Path, cell: str) -> tuple[str, list[str]]:
    """What the report says of the check: its status with its evidence, and the reasons."""
    try:
        cells = json.loads(file.read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return "no report", []
    for row in cells:
        for result in row["results"] if row["id"] == cell else ():
            if result["check"] == CHECK:
                return str(result["status"]), [str(reason) for reason in result["reasons"]]
    return "not in the report", []


def _wait_for_program(host: StandInHost, run: subprocess.Popen[bytes]) -> bool:
    """Wait until a rank of the check runs on the host; False if the run ends before."""
    deadline = time.monotonic() + _SECONDS_TO_RUN
    while run.poll() is None and time.monotonic() < deadline:
        for process in host.network.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace")
                if _PROGRAM in words and "--rank" in words.split("\0"):
                    return True
        time.sleep(0.2)
    return False


@contextlib.contextmanager
def _started(group: HostGroup, number: int, folder: Path, settings: Settings) -> Iterator[list[StandInHost]]:
    """The hosts with a node of Ray on each; the first has the head. Everything on them is ended."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    token = secrets.token_hex(32)
    with contextlib.ExitStack() as stack:
        networks = stack.enter_context(joined_hosts(number))
        stack.callback(_end_all, networks)
        hosts: list[StandInHost] = []
        for index, network in enumerate(networks):
            host = _made(group, index, network, folder, settings, token)
            role = (
                ["--head", "--port", str(_PORT), "--include-dashboard", "false"]
                if index == 0
                else ["--address", f"{networks[0].address}:{_PORT}"]
            )
            ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role]
            ray += ["--node-ip-address", network.address, "--num-cpus", "2"]
            ray += ["--min-worker-port", "20002", "--max-worker-port", "25999", "--disable-usage-stats"]
            doctor = own_command(folder, settings, ["doctor", "--resources"])
            ray += ["--resources", _output(host, doctor, settings.root)]
            log = logs / f"{network.address}.log"
            with log.open("wb") as output:
                process = host.start(ray, settings.root, output)
            _wait_for_ray(process, log)
            hosts.append(host)
        yield hosts


def _made(
    group: HostGroup, index: int, network: NetworkHost, folder: Path, settings: Settings, token: str
) -> StandInHost:
    place = host_folder(group, folder, _suffix(index))
    files = write_host(place, replace(group.host, number=index))
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        # The hosts share the folder for temporary files, but no cards.
        FOLDER_VARIABLE: str(place / "leases"),
    }
    environ = {**rehearsal_environment(place, settings), **own}
    return StandInHost(network=network, place=place, files=files, environ=environ)


def _output(host: StandInHost, command: Sequence[str], root: Path) -> str:
    argv = host.network.command_on(login_command(host.place, host.files, command))
    done = subprocess.run(argv, cwd=root, env=host.environ, check=False, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _wait_for_ray(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while "Ray runtime started" not in log.read_text("utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise InfrastructureError(
                "Ray did not start on a stand-in host",
                where=Location(log),
                why=log.read_text("utf-8", errors="replace")[-1000:].strip(),
                fix="pip install 'npu-matrix[ray]'; read its log",
            )
        time.sleep(0.2)


def _end_all(networks: Sequence[NetworkHost]) -> None:
    """End all processes that use the networks of these hosts."""
    for network in networks:
        for process in network.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
