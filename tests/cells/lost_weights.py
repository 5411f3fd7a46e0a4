"""A fault: every weight sync to the rollout repeats the first one.

verl imports this inside a cell, as `checkpoint_engine.custom_backend_module`, in the place of the module that it
builds on.
"""

from __future__ import annotations

import sys

from harness.convergence.trainer.verl_extensions.weight_group import ENGINE

# Imported by the module above, which lends it a communicator that needs no vLLM.
Engine = sys.modules[ENGINE].HCCLCheckpointEngine
send = Engine.send_weights
first = []


async def send_the_first(self, weights, *values, **named):
    # All are taken: each is gathered over the trainer's ranks when it is asked for.
    current = [(name, weight.detach().clone()) for name, weight in weights]
    first[:] = first or current
    return await send(self, iter(first), *values, **named)


Engine.send_weights = send_the_first
