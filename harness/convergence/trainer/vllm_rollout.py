"""Settings for verl's trainer with a vLLM rollout in server mode, small enough for two cores.

verl starts a vLLM engine in separate processes and syncs the policy's weights to it before every step.
In-cell module; standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.convergence.trainer.tiny_task import PROMPT_TOKENS, RESPONSE_TOKENS

# The oldest verl that runs vLLM only as a server; it removed SPMD mode (verl pull request 4411).
OLDEST = (0, 7)
# A block of vllm-ascend's KV cache has 128 tokens; one request of this task fits into one block.
CACHE_BLOCKS = 64
CACHE_BYTES = 1 << 26
PLUGIN = "harness.convergence.trainer.verl_extensions.vllm_plugin"
# On two cores a trainer with vLLM starts up to twice as slowly as one without. The limit is for hung runs.
START_UP_SECONDS = 600

_ROLLOUT = "actor_rollout_ref.rollout"
_ENGINE = f"+{_ROLLOUT}.engine_kwargs.vllm"
OVERRIDES: Mapping[str, str] = {
    f"{_ROLLOUT}.name": "vllm",
    # The dtype of the actor, so that log-probabilities of rollout and trainer differ by rounding only.
    f"{_ROLLOUT}.dtype": "float32",
    f"{_ROLLOUT}.enforce_eager": "true",
    f"{_ROLLOUT}.gpu_memory_utilization": "0.3",
    f"{_ROLLOUT}.max_model_len": str(8 * (PROMPT_TOKENS + RESPONSE_TOKENS)),
    f"{_ROLLOUT}.max_num_seqs": str(CACHE_BLOCKS),
    f"{_ROLLOUT}.max_num_batched_tokens": "256",
    # The memory of a simulated device is the host's; without a limit the KV cache would use its whole share.
    f"{_ENGINE}.num_gpu_blocks_override": str(CACHE_BLOCKS),
    f"{_ENGINE}.kv_cache_memory_bytes": str(CACHE_BYTES),
    # With one card, the worker runs in the engine's process, which has imported everything already.
    f"{_ENGINE}.distributed_executor_backend": "uni",
}
"""Hydra overrides in addition to those of `trainer_recipe`."""

ENVIRONMENT: Mapping[str, str] = {
    # A trainer's weights cannot replace weights in FRACTAL_NZ; vllm-ascend rejects sleep mode with it.
    "VLLM_ASCEND_ENABLE_NZ": "0",
    # dynamo would compile small helpers for a minute, although the engine runs in eager mode.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables of every process. The caller adds the cache folders, which belong to the task."""


def arguments() -> tuple[str, ...]:
    """These settings as options of `harness.convergence.trainer.trainer_program`."""
    settings = tuple(text for key, value in OVERRIDES.items() for text in ("--set", f"{key}={value}"))
    return (*settings, "--plugin", PLUGIN, "--start-up-seconds", str(START_UP_SECONDS))
