"""A real Ray cluster of several nodes on this machine, whose cards are made up (no NPU is asked for anything)."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.builds.scratch import scratch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CARDS = {"NPU": 8, "soc:a2": 1, "cann:8.5.0": 1}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head and three nodes with eight made-up A2 cards each."""
    # Nodes import the checks of these tests by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(ROOT)])
    # A token of these tests' own: one that lies in the home of whoever runs them decides nothing here.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray looks for pyACL as soon as a node has NPUs, and says that there is none.
    logging.getLogger("ray._private.accelerators.npu").setLevel(logging.CRITICAL)
    from ray.cluster_utils import Cluster

    # A folder of its own: whoever tidies up after another Ray on this machine must not take this one's. Short,
    # because it becomes part of the names of sockets.
    with scratch(Path("/tmp")) as folder:
        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": str(folder / "ray")}
        made = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(3):
            made.add_node(num_cpus=2, resources=CARDS)
        yield made
        made.shutdown()
