"""A fault: every hand-over of weights to the rollout repeats the first one.

verl imports this inside a cell, as `checkpoint_engine.custom_backend_module`, in the place of the module that it
builds on.
"""

from __future__ import annotations

from verl.checkpoint_engine.hccl_checkpoint_engine import HCCLCheckpointEngine

# Registers verl's engine for HCCL with a communicator that needs no vLLM: without it there is none to import.
from harness.convergence.trainer import weight_group  # noqa: F401

send = HCCLCheckpointEngine.send_weights
first = []


async def send_the_first(self, weights, *values, **named):
    # All are taken: each is gathered over the trainer's ranks when it is asked for.
    current = [(name, weight.detach().clone()) for name, weight in weights]
    first[:] = first or current
    return await send(self, iter(first), *values, **named)


HCCLCheckpointEngine.send_weights = send_the_first
