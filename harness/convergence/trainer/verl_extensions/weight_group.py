"""Lets verl sync weights by HCCL to a rollout on separate cards, without vLLM.

verl imports this module by the setting `checkpoint_engine.custom_backend_module`. verl's checkpoint engine
for HCCL is used unchanged: its buckets, their descriptions by ZeroMQ, and its barrier. The engine broadcasts
with the communicator of vllm-ascend, because on NPUs verl expects vLLM as the rollout. Our rollout has no
vLLM, so an `hccl` group of torch.distributed replaces the communicator. In-cell module.
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
# Modules of vLLM from which `ENGINE` imports one name, which it uses in an annotation only.
VLLM = ("vllm", "vllm.distributed", "vllm.distributed.utils")
GROUP = "weight_group"
# verl publishes the content of a bucket right after its barrier. ZeroMQ drops messages that are published
# before a subscription arrives, and both sides then wait forever (seen with thirteen runnable processes).
SUBSCRIBED_SECONDS = 0.2
# `supervised_run` kills a trainer without progress long before this time.
TIMEOUT = timedelta(minutes=10)


class Communicator:
    """The methods of vllm-ascend's PyHcclCommunicator that verl calls, by an additional process group."""

    def __init__(self, address: str, port: int, rank: int, size: int) -> None:
        # The store must live as long as the group.
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
        """Send `tensor` from rank `src` to all ranks."""
        dist.broadcast(tensor, src=src, group=self.comm)

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over all ranks: the barrier of verl before it publishes."""
        dist.all_reduce(tensor, group=self.comm)
        time.sleep(SUBSCRIBED_SECONDS)

    def destroyComm(self, comm: Any) -> None:  # noqa: N802 - vllm-ascend's name
        """Destroy the group."""
        dist.destroy_process_group(comm)


def communicator(address: str, port: int, rank: int, size: int, _device: Any) -> Communicator:
    """Replaces `stateless_init_process_group` of `ENGINE`."""
    return Communicator(address, port, rank, size)


@contextmanager
def vllm_for_annotation() -> Iterator[None]:
    """Provide empty modules for those of `VLLM` that are not imported, until the block ends."""
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
    """Import `ENGINE`, which registers itself with verl, and replace its communicator."""
    with vllm_for_annotation():
        engine = importlib.import_module(ENGINE)
    engine.stateless_init_process_group = communicator  # type: ignore[attr-defined]


register()
