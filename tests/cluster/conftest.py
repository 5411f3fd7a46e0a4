"""A real Ray cluster of several nodes on this machine, whose cards are made up (no NPU is asked for anything)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CARDS = {"NPU": 8, "soc:a2": 1, "cann:8.5.0": 1}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head and three nodes with eight made-up A2 cards each."""
    # Nodes import the checks of these tests by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(ROOT)])
    # Ray looks for pyACL as soon as a node has NPUs, and says that there is none.
    logging.getLogger("ray._private.accelerators.npu").setLevel(logging.CRITICAL)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(3):
        made.add_node(num_cpus=2, resources=CARDS)
    yield made
    made.shutdown()
