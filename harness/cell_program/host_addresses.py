"""The hosts of a check that runs on several at the same time, as its programs see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Addresses of all hosts, separated by commas; the place of this one among them; a free port on the first.
NODES_VARIABLE, INDEX_VARIABLE, PORT_VARIABLE = (
    "NPU_MATRIX_NODES",
    "NPU_MATRIX_NODE_INDEX",
    "NPU_MATRIX_NODES_PORT",
)
# Below the ports that Linux gives to clients, above those of the head and the workers of examples/cluster.
_FIRST_PORT, _PORTS = 27000, 1000


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """addresses: of all hosts. index: of this one, from 0. port: for the rendezvous, on the first."""

    addresses: tuple[str, ...]
    index: int
    port: int

    @property
    def own(self) -> str:
        """The address of this host."""
        return self.addresses[self.index]

    def variables(self) -> dict[str, str]:
        """The environment variables that `read_hosts` reads."""
        return {
            NODES_VARIABLE: ",".join(self.addresses),
            INDEX_VARIABLE: str(self.index),
            PORT_VARIABLE: str(self.port),
        }


def make_hosts(addresses: Sequence[str], index: int, key: str, attempt: int) -> Hosts:
    """The hosts of an attempt of a task. All of them compute the same port from the task's key."""
    return Hosts(
        addresses=tuple(addresses), index=index, port=_FIRST_PORT + (int(key[:8], 16) + attempt) % _PORTS
    )


def read_hosts(environ: Mapping[str, str]) -> Hosts | None:
    """The hosts that the variables name; None if there are none."""
    addresses = tuple(filter(None, environ.get(NODES_VARIABLE, "").split(",")))
    index, port = environ.get(INDEX_VARIABLE, ""), environ.get(PORT_VARIABLE, "")
    if not addresses or not index.isdecimal() or not port.isdecimal() or int(index) >= len(addresses):
        return None
    return Hosts(addresses=addresses, index=int(index), port=int(port))
