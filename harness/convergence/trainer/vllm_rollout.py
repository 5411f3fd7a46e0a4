"""Settings that give verl's trainer a rollout by vLLM in server mode, small enough for two cores.

verl starts a vLLM engine in processes of its own and hands it the policy's weights before every step. In-cell
module; standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.convergence.trainer.tiny_task import PROMPT_TOKENS, RESPONSE_TOKENS

# The oldest verl whose only way to run vLLM is the server; SPMD mode ended with it (verl pull request 4411).
OLDEST = (0, 7)
# A block of vllm-ascend's cache holds 128 tokens, and a request of this task fits into one.
CACHE_BLOCKS = 64
CACHE_BYTES = 1 << 26
PLUGIN = "harness.convergence.trainer.verl_extensions.vllm_plugin"
# On two cores vLLM's processes start up to twice as long as a trainer without it: nothing but a standstill is
# to reach this.
START_UP_SECONDS = 600

_ROLLOUT = "actor_rollout_ref.rollout"
_ENGINE = f"+{_ROLLOUT}.engine_kwargs.vllm"
OVERRIDES: Mapping[str, str] = {
    f"{_ROLLOUT}.name": "vllm",
    # As the actor computes: what the two then say of a token may differ by rounding only.
    f"{_ROLLOUT}.dtype": "float32",
    f"{_ROLLOUT}.enforce_eager": "true",
    f"{_ROLLOUT}.gpu_memory_utilization": "0.3",
    f"{_ROLLOUT}.max_model_len": str(8 * (PROMPT_TOKENS + RESPONSE_TOKENS)),
    f"{_ROLLOUT}.max_num_seqs": str(CACHE_BLOCKS),
    f"{_ROLLOUT}.max_num_batched_tokens": "256",
    # A simulated device's memory is the host's: without a number the cache takes all that it may.
    f"{_ENGINE}.num_gpu_blocks_override": str(CACHE_BLOCKS),
    f"{_ENGINE}.kv_cache_memory_bytes": str(CACHE_BYTES),
    # One card needs no process of its own beside the engine's, which has imported everything already.
    f"{_ENGINE}.distributed_executor_backend": "uni",
}
"""Hydra overrides beside those of `recipe`."""

ENVIRONMENT: Mapping[str, str] = {
    # Weights in FRACTAL_NZ cannot be replaced by a trainer's; vllm-ascend refuses sleep mode with it.
    "VLLM_ASCEND_ENABLE_NZ": "0",
    # Eager mode: what dynamo would compile are helpers of a few operators, and compiling takes a minute.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Of every process; what vLLM caches goes with the task and is the caller's to say."""


def arguments() -> tuple[str, ...]:
    """All this as options of `harness.convergence.trainer.trainer_program`."""
    settings = tuple(text for key, value in OVERRIDES.items() for text in ("--set", f"{key}={value}"))
    return (*settings, "--plugin", PLUGIN, "--start-up-seconds", str(START_UP_SECONDS))
