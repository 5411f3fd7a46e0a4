"""A real Ray cluster of several nodes on this machine, whose cards are made up (no NPU is asked for anything)."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.builds.ownership.temporary_folders import temporary_folder
from harness.run.executors.ray_executor import stage_checkout

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CARDS = {"NPU": 8, "soc:a2": 1, "cann:8.5.0": 1}
# Ray gives a node 30 s to come up, and takes one that is late for dead; on a loaded machine it is late. Its
# time for workers to come up stays: it also waits that long for one that has crashed while it started.
PATIENCE_SECONDS = 300.0
PATIENT = {"RAY_health_check_timeout_ms": "60000"}


def patient(look: Callable[..., Any]) -> Callable[..., Any]:
    """Ray's look for a node that has just been started, asked again until the node is there."""

    def keep_looking(*arguments: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):
                return look(*arguments)
            time.sleep(0.5)
        return look(*arguments)

    return keep_looking


def unpack_on_each_node(address: str, folder: Path) -> None:
    """Let one node after another unpack the program.

    These nodes share a folder, as no two hosts do. One of them started workers while another was still
    unpacking, and these did not find all modules.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    staged = stage_checkout(ROOT, folder)
    ray.init(address, runtime_env={"working_dir": str(staged)}, log_to_driver=False, logging_level="ERROR")
    task = ray.remote(num_cpus=0)(lambda: None)
    for node in ray.nodes():
        on = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        ray.get(task.options(scheduling_strategy=on).remote())
    ray.shutdown()


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
    import ray._private.services as services
    from ray._private import utils
    from ray.cluster_utils import Cluster

    class PatientCluster(Cluster):
        def _wait_for_node(self, node: Any, timeout: float = PATIENCE_SECONDS) -> None:
            super()._wait_for_node(node, timeout)

    os.environ.update(PATIENT)
    # A folder of its own: whoever tidies up after another Ray on this machine must not take this one's. Short,
    # because it becomes part of the names of sockets.
    with pytest.MonkeyPatch.context() as patched, temporary_folder(Path("/tmp")) as folder:
        patched.setattr(services, "get_node", patient(services.get_node))
        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": str(folder / "ray")}
        # On a new machine Ray's own folder does not exist, and a cluster with another one does not make it.
        Path(utils.get_ray_address_file(None)).parent.mkdir(exist_ok=True)
        made = PatientCluster(initialize_head=True, head_node_args=head)
        for _ in range(3):
            made.add_node(num_cpus=2, resources=CARDS)
        unpack_on_each_node(made.address, folder / "staged")
        yield made
        made.shutdown()
