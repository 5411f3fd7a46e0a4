"""Names of the environment variables that `trainer_program` sets for the plug-ins in verl's processes."""

from __future__ import annotations

import signal

# Seed of the sampler's noise.
SEED = "NPU_MATRIX_TRAINER_SEED"
# Folder into which each process of verl writes facts about itself and, on a signal, its stacks.
PROCESSES = "NPU_MATRIX_TRAINER_PROCESSES"
# Signal on which each process of verl writes its stacks.
STACK_SIGNAL = signal.SIGUSR2
