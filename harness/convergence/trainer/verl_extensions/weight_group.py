"""How released verl hands weights from a trainer to a rollout on cards of its own, without vLLM.

verl loads this module by `checkpoint_engine.custom_backend_module`.

verl's engine for HCCL is used as it is: its buckets, their descriptions by ZeroMQ, its barrier. It broadcasts
with the communicator of vllm-ascend, as an NPU's rollout always is vLLM; ours is not, so a `hccl` group of
torch.distributed takes the communicator's place. In-cell module.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

ENGINE = "verl.checkpoint_engine.hccl_checkpoint_engine"
# What `ENGINE` imports of vLLM: a name that stands in one annotation.
VLLM = ("vllm", "vllm.distributed", "vllm.distributed.utils")
GROUP = "weight_group"
# verl publishes what a bucket holds as soon as its barrier is passed, and what is published before a
# subscription has arrived is lost: seen with thirteen runnable processes, where both sides waited for ever.
SUBSCRIBED_SECONDS = 0.2
# A trainer that stands still is ended by whoever watches it, long before.
TIMEOUT = timedelta(minutes=10)


class Communicator:
    """What verl asks of vllm-ascend's PyHcclCommunicator, by a group beside the default one."""

    def __init__(self, address: str, port: int, rank: int, size: int) -> None:
        # The store has to live as long as the group.
        self._store = dist.TCPStore(address, port, size, rank == 0, TIMEOUT)
        self.comm, _ = distributed_c10d._new_process_group_helper(  # noqa: SLF001 - as new_group does
            size,
            rank,
            [],
            "hccl",
            dist.PrefixStore(GROUP, self._store),
            group_name=GROUP,
            timeout=TIMEOUT,
        )
        distributed_c10d._world.pg_group_ranks[self.comm] = {i: i for i in range(size)}  # noqa: SLF001

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """Send `tensor` of rank `src` to all."""
        dist.broadcast(tensor, src=src, group=self.comm)

    def all_reduce(self, tensor: Tensor) -> None:
        """Add `tensor` up over all ranks: verl's barrier before it publishes."""
        dist.all_reduce(tensor, group=self.comm)
        time.sleep(SUBSCRIBED_SECONDS)

    def destroyComm(self, comm: Any) -> None:  # noqa: N802 - vllm-ascend's name
        """End the group."""
        dist.destroy_process_group(comm)


def communicator(address: str, port: int, rank: int, size: int, _device: Any) -> Communicator:
    """In the place of verl's `stateless_init_process_group`."""
    return Communicator(address, port, rank, size)


@contextmanager
def vllm_for_annotation() -> Iterator[None]:
    """vLLM's modules that `ENGINE` imports, where there are none; nobody else gets to see them."""
    modules = {name: ModuleType(name) for name in VLLM if name not in sys.modules}
    for module in modules.values():
        module.StatelessProcessGroup = Communicator  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def register() -> None:
    """Import `ENGINE`, which registers itself with verl, and give it our communicator."""
    with vllm_for_annotation():
        engine = importlib.import_module(ENGINE)
    engine.stateless_init_process_group = communicator  # type: ignore[attr-defined]


register()
