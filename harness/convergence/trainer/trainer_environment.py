"""Names of the environment variables by which `run` speaks to what it put into verl's processes."""

from __future__ import annotations

# Seed of the sampler's noise.
SEED = "NPU_MATRIX_TRAINER_SEED"
# Folder in which every process of verl leaves its facts, and its stacks when it is asked for them.
PROCESSES = "NPU_MATRIX_TRAINER_PROCESSES"
