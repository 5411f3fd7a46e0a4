"""Starts vLLM's offline engine on the cell's device, generates, and stops the engine. In-cell module."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from harness.cell_program.torch_device import package_version
from harness.rollout.generation.generation_measurements import GeneratedRequest

PROMPTS: tuple[tuple[int, ...], ...] = (
    (5, 17, 300, 44, 9),
    (100, 101, 102),
    tuple(range(3, 40)),
    (7,),
)
NEW_TOKENS = 16
TOP = 5
"""Number of log-probabilities for each position, in addition to the generated token's."""

# Keyword arguments of `vllm.LLM`.
EngineOptions = Mapping[str, Any]
_OPTIONS: EngineOptions = {
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "num_gpu_blocks_override": 32,
    "gpu_memory_utilization": 0.5,
    # With this setting, newer vllm-ascend does not measure free memory. The measurement mistakes a second
    # engine, which fits into the memory pool of the first one, for another process that freed memory.
    "kv_cache_memory_bytes": 1 << 26,
    "seed": 0,
    "enable_prefix_caching": False,
}

ENVIRONMENT: Mapping[str, str] = {
    # Faults and operator counts apply to this process, so the engine must run in this process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # A trainer's weights cannot replace weights in FRACTAL_NZ; vllm-ascend rejects sleep mode with it.
    "VLLM_ASCEND_ENABLE_NZ": "0",
    # dynamo would compile small helpers for a minute, although the engine runs in eager mode.
    "TORCHDYNAMO_DISABLE": "1",
}


@contextmanager
def engine(checkpoint: Path, dtype: str, **options: Any) -> Iterator[Any]:
    """A `vllm.LLM` that is torn down at the end of the block, so that another engine can start afterwards."""
    vllm = import_module("vllm")
    _inspect_in_process()
    llm = vllm.LLM(model=str(checkpoint), skip_tokenizer_init=True, dtype=dtype, **{**_OPTIONS, **options})
    try:
        yield llm
    finally:
        _destroy_ascend_groups()
        # This ends the workers. Some releases then destroy process groups that are already destroyed.
        with suppress(AttributeError, AssertionError, ValueError):
            llm.llm_engine.engine_core.shutdown()
        del llm
        tear_down()


def _inspect_in_process() -> None:
    """Let vLLM inspect a model's class in this process.

    By default it starts a subprocess, which takes 20 s, so that CUDA is not initialised. Here the device is
    already initialised.
    """
    registry: Any = import_module("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()  # noqa: SLF001 - vLLM offers no other way


def tear_down() -> None:
    """Destroy the process groups and free the memory of an engine, also of one that failed to start."""
    _destroy_ascend_groups()
    with suppress(ImportError, AttributeError, AssertionError, ValueError):
        state = import_module("vllm.distributed.parallel_state")
        state.destroy_model_parallel()
        state.destroy_distributed_environment()
    gc.collect()


def _destroy_ascend_groups() -> None:
    """Destroy the process groups of vllm-ascend. They use those of vLLM, so they are destroyed first."""
    with suppress(ImportError, AttributeError, AssertionError, ValueError):
        import_module("vllm_ascend.distributed.parallel_state").destroy_ascend_model_parallel()


def generate(
    llm: Any, prompts: Sequence[Sequence[int]] = PROMPTS, sampling: Mapping[str, float] | None = None
) -> tuple[GeneratedRequest, ...]:
    """Generate `NEW_TOKENS` tokens for each prompt, with log-probabilities of the `TOP` most likely tokens.

    sampling: vLLM's sampling parameters; greedy by default.
    """
    vllm = import_module("vllm")
    parameters = vllm.SamplingParams(
        **{
            "temperature": 0.0,
            "max_tokens": NEW_TOKENS,
            "logprobs": TOP,
            "detokenize": False,
            "ignore_eos": True,
            **(sampling or {}),
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


@contextmanager
def counted_replays() -> Iterator[Iterator[int]]:
    """Counts the replays of graphs in this block; the iterator gives how many there were so far."""
    graph: Any = import_module("torch").npu.NPUGraph
    replay, replays = graph.replay, count()

    def counted(self: Any) -> None:
        next(replays)
        replay(self)

    graph.replay = counted
    try:
        yield replays
    finally:
        graph.replay = replay


def prepare(*, compiles: bool = False) -> None:
    """Set the engine's environment variables that are not set yet, and initialise the device.

    Must be called before vLLM is imported. compiles: the engine compiles its model, as graphs need.
    """
    if compiles:
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "0")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _interpret_triton()
    _initialise_device()


def _initialise_device() -> None:
    """Initialise the device without expandable segments.

    torch_npu reads PYTORCH_NPU_ALLOC_CONF once, when the device is initialised. vllm-ascend and one of our
    steps set it to expandable segments. Sleep mode and the second engine of a process cannot free these.
    """
    import_module("torch_npu")
    import_module("torch").npu.init()


def _interpret_triton() -> None:
    """On the simulated device, install Triton's interpreter for releases that need Triton."""
    from harness.devices.sim.start import overlay, triton_interpreter
    from harness.devices.sim.start.sim_environment import triton_environment

    simulation = overlay.installed()
    if simulation is None:
        return
    for name, value in triton_environment(package_version("vllm-ascend")).items():
        os.environ.setdefault(name, value)
    if triton_interpreter.is_requested():
        triton_interpreter.install(simulation.machine)


def computes_sinks() -> bool:
    """Whether this vllm-ascend passes a model's attention sinks to the attention operator."""
    spec = find_spec("vllm_ascend.attention.attention_v1")
    return (
        spec is not None
        and spec.origin is not None
        and "learnable_sink" in Path(spec.origin).read_text("utf-8")
    )
