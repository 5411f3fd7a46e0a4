"""A fault: every weight sync to the rollout repeats the first one.

verl imports this module inside a cell, by the setting `checkpoint_engine.custom_backend_module`, instead of
`weight_group`, which it imports first.
"""

from __future__ import annotations

import sys

from harness.convergence.trainer.verl_extensions.weight_group import ENGINE

# `weight_group` has imported the engine and replaced its communicator by one that does not need vLLM.
Engine = sys.modules[ENGINE].HCCLCheckpointEngine
send = Engine.send_weights
first: list[object] = []


async def send_the_first(self, weights, *values, **named):
    # Every weight must be read, because reading it gathers it over the trainer's ranks.
    current = [(name, weight.detach().clone()) for name, weight in weights]
    first[:] = first or current
    return await send(self, iter(first), *values, **named)


Engine.send_weights = send_the_first
