"""Stand-in hosts that have a network of their own: namespaces that are joined by a bridge.

Each has one interface, `eth0`. A host is entered with `command_on`; `unplug` takes its cable away.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InfrastructureError

INTERFACE = "eth0"
_PREFIX = "npmx"
#: The addresses: a network that RFC 2544 keeps for tests of devices, so no other host of a user has one.
_NETWORK = "198.18.7."


@dataclass(frozen=True, kw_only=True)
class NetworkHost:
    """A host of the network: its namespace and its address."""

    namespace: str
    address: str

    def command_on(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command with the network of this host."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *command]

    def processes(self) -> list[int]:
        """The processes that use the network of this host."""
        return [int(text) for text in _ip("netns", "pids", self.namespace).split()]

    def unplug(self) -> None:
        """Take its link down."""
        _ip("-n", self.namespace, "link", "set", INTERFACE, "down")


@contextlib.contextmanager
def joined_hosts(number: int) -> Iterator[tuple[NetworkHost, ...]]:
    """So many hosts on one bridge. InfrastructureError if this machine cannot make network namespaces."""
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        raise InfrastructureError(
            "this machine cannot make hosts with networks of their own",
            why=f"there is no program {' and no '.join(missing)}" if missing else "only root can do it",
            fix="install iproute2 and util-linux, and run as root",
        )
    _remove_left_over()
    own = f"{_PREFIX}-{os.getpid()}"
    hosts = tuple(
        NetworkHost(namespace=f"{own}-{index}", address=f"{_NETWORK}{index + 1}") for index in range(number)
    )
    switch = f"{own}-s"
    with contextlib.ExitStack() as stack:
        for name in (switch, *(host.namespace for host in hosts)):
            _ip("netns", "add", name)
            stack.callback(_delete, name)
        # The bridge is in a namespace too, so that the network of this machine stays as it is.
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for index, host in enumerate(hosts):
            port = f"port{index}"
            pair = ("type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", host.namespace, "link", "add", INTERFACE, *pair)
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
            for name in (INTERFACE, "lo"):
                _ip("-n", host.namespace, "link", "set", name, "up")
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        yield hosts


def _remove_left_over() -> None:
    """The namespaces of processes that were killed."""
    for name in re.findall(rf"^{_PREFIX}-\d+-\w+", _ip("netns", "list"), re.MULTILINE):
        if not Path("/proc", name.split("-")[1]).exists():
            _delete(name)


def _delete(name: str) -> None:
    with contextlib.suppress(InfrastructureError):
        _ip("netns", "del", name)


def _ip(*arguments: str) -> str:
    argv = [shutil.which("ip") or "ip", *arguments]
    try:
        done = subprocess.run(argv, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise InfrastructureError(
            "this machine cannot make hosts with networks of their own",
            why=f"ip {' '.join(arguments)}: {error.stderr.strip()}",
            fix="run as root on a kernel with network namespaces and bridges (in a container: --privileged)",
        ) from error
    return done.stdout
