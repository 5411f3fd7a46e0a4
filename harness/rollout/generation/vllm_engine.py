"""vLLM's offline engine on the cell's device, as the checks of this room use it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.rollout.generation.generation_measurements import GeneratedRequest

PROMPTS: tuple[tuple[int, ...], ...] = (
    (5, 17, 300, 44, 9),
    (100, 101, 102),
    tuple(range(3, 40)),
    (7,),
)
NEW_TOKENS = 16
TOP = 5
"""Log-probabilities per place, besides the chosen token's."""

_OPTIONS: Mapping[str, Any] = {
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "num_gpu_blocks_override": 32,
    "gpu_memory_utilization": 0.5,
    # Where vllm-ascend heeds it, it does not measure: a second engine that fits into what the first one's
    # memory pool kept is taken for another process that freed memory.
    "kv_cache_memory_bytes": 1 << 26,
    "seed": 0,
    "enable_prefix_caching": False,
}

ENVIRONMENT: Mapping[str, str] = {
    # Faults and operator counts are those of this process: it must be the one that computes.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # Weights in FRACTAL_NZ cannot be replaced by a trainer's; vllm-ascend refuses sleep mode with it.
    "VLLM_ASCEND_ENABLE_NZ": "0",
    # Eager mode: what dynamo would compile are helpers of a few operators, and compiling takes a minute.
    "TORCHDYNAMO_DISABLE": "1",
}


@contextmanager
def engine(checkpoint: Path, dtype: str, **options: Any) -> Iterator[Any]:
    """A `vllm.LLM` that is torn down afterwards, so that the next one finds the process as it was."""
    vllm = import_module("vllm")
    _inspect_here()
    llm = vllm.LLM(model=str(checkpoint), skip_tokenizer_init=True, dtype=dtype, **{**_OPTIONS, **options})
    try:
        yield llm
    finally:
        _destroy_ascend_groups()
        # Ends workers; some releases then destroy what is destroyed already.
        with suppress(AttributeError, AssertionError, ValueError):
            llm.llm_engine.engine_core.shutdown()
        del llm
        tear_down()


def _inspect_here() -> None:
    """Let vLLM look at a model's class in this process.

    It starts another one, of 20 s, so that CUDA is not initialised here; the device is already.
    """
    registry: Any = import_module("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()  # noqa: SLF001 - vLLM offers no other way


def tear_down() -> None:
    """Forget the process groups and memory of an engine, also of one that came up half."""
    _destroy_ascend_groups()
    with suppress(ImportError, AttributeError, AssertionError, ValueError):
        state = import_module("vllm.distributed.parallel_state")
        state.destroy_model_parallel()
        state.destroy_distributed_environment()
    gc.collect()


def _destroy_ascend_groups() -> None:
    """vllm-ascend's own groups, while vLLM's, which they are made of, still stand."""
    with suppress(ImportError, AttributeError, AssertionError, ValueError):
        import_module("vllm_ascend.distributed.parallel_state").destroy_ascend_model_parallel()


def generate(
    llm: Any, prompts: Sequence[Sequence[int]] = PROMPTS, *, tokens: int = NEW_TOKENS, **sampling: Any
) -> tuple[GeneratedRequest, ...]:
    """One entry per prompt: its tokens, their log-probabilities with the TOP likeliest, cached prompt tokens.

    Greedy unless `sampling` says otherwise.
    """
    vllm = import_module("vllm")
    parameters = vllm.SamplingParams(
        **{
            "temperature": 0.0,
            "max_tokens": tokens,
            "logprobs": TOP,
            "detokenize": False,
            "ignore_eos": True,
            **sampling,
        }
    )
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    outputs = llm.generate(requests, parameters, use_tqdm=False)
    return tuple(
        GeneratedRequest(
            prompt=tuple(prompt),
            tokens=tuple(output.outputs[0].token_ids),
            logprobs=tuple(
                {str(int(token)): float(entry.logprob) for token, entry in place.items()}
                for place in output.outputs[0].logprobs
            ),
            cached=int(getattr(output, "num_cached_tokens", 0) or 0),
        )
        for prompt, output in zip(prompts, outputs, strict=True)
    )


def prepare() -> None:
    """Environment of the engine and its workers; what the caller set stays. Before vLLM is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _interpret_triton()


def _interpret_triton() -> None:
    """On the simulated device, Triton's interpreter for releases that compute nothing without Triton."""
    from harness.devices.sim.start import overlay, triton_interpreter
    from harness.devices.sim.start.sim_environment import triton_environment

    simulation = overlay.installed()
    if simulation is None:
        return
    for name, value in triton_environment(installed_version("vllm-ascend")).items():
        os.environ.setdefault(name, value)
    if triton_interpreter.is_requested():
        triton_interpreter.install(simulation.machine)


def computes_sinks() -> bool:
    """Whether this vllm-ascend hands a model's attention sinks to the operator that knows them."""
    spec = find_spec("vllm_ascend.attention.attention_v1")
    return (
        spec is not None
        and spec.origin is not None
        and "learnable_sink" in Path(spec.origin).read_text("utf-8")
    )


def installed_version(distribution: str) -> str:
    """Version of an installed distribution, "" without it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
