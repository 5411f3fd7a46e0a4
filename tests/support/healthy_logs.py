"""Generates logs of verl jobs in which nothing fails."""

from __future__ import annotations

import random
from collections.abc import Iterator

STARTUP = (
    "INFO 11-20 08:00:01 [__init__.py:36] Available plugins for group vllm.platform_plugins:",
    "INFO 11-20 08:00:01 [__init__.py:38] - ascend -> vllm_ascend:register",
    "2026-11-20 08:00:05,123\tINFO worker.py:1927 -- Started a local Ray instance. View the dashboard at 127.0.0.1:8265",
    "Warning: no errors are expected here; error_if_overlong=False, on_error: ignore",
    "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:03<00:00,  1.61s/it]",
    "NCCL_DEBUG=WARN HCCL_CONNECT_TIMEOUT=1500 ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",
    "'use_torch_compile': False, 'micro_batch_size_per_gpu': 4, 'filter_groups': {'enable': False},",
    "Set env VLLM_ASCEND_ENABLE_NZ=0; flash_attn is replaced by npu_flash_attention",
    "torch_npu 2.7.1 (CANN 8.3.RC1), num_query_groups=4, tensor_model_parallel_size=2",
)
METRICS = (
    "actor/entropy",
    "actor/pg_loss",
    "actor/pg_clipfrac",
    "actor/ppo_kl",
    "actor/grad_norm",
    "critic/score/mean",
    "critic/rewards/mean",
    "critic/advantages/mean",
    "response_length/mean",
    "timing_s/gen",
    "timing_s/old_log_prob",
    "timing_s/update_actor",
    "perf/throughput",
    "perf/max_memory_allocated_gb",
)


AROUND_0 = ("actor/pg_loss", "critic/score/mean", "critic/rewards/mean", "critic/advantages/mean")


def healthy_lines(seed: int = 0) -> Iterator[str]:
    """Endless lines of a log. Equal seeds give equal lines."""
    chance = random.Random(seed)
    yield from STARTUP
    step = 0
    while True:
        step += 1
        for _ in range(chance.randrange(20, 60)):
            yield _chatter(chance)
        metrics = " - ".join(f"{name}:{_value(name, chance):.6f}" for name in METRICS)
        yield f"(TaskRunner pid=4242) step:{step} - {metrics} - training/global_step:{step} - training/epoch:0"


def _value(name: str, chance: random.Random) -> float:
    """A metric that varies around 0 or around 1, with the spread of a run that learns nothing."""
    return chance.gauss(0, 1) if name in AROUND_0 else chance.lognormvariate(0, 0.3)


def _chatter(chance: random.Random) -> str:
    pid = chance.randrange(1000, 99999)
    kind = chance.randrange(6)
    if kind == 0:
        return f"\x1b[36m(WorkerDict pid={pid}, ip=10.0.0.{chance.randrange(1, 9)})\x1b[0m Memory allocated (GB): {chance.random() * 60:.4f}, reserved (GB): 61.5"
    if kind == 1:
        return f"(EngineCore_DP0 pid={pid}) INFO 11-20 08:{chance.randrange(60):02}:11 [loggers.py:123] Engine 000: Avg prompt throughput: {chance.random() * 9000:.1f} tokens/s, Running: 64 reqs, Waiting: 0 reqs"
    if kind == 2:
        return f"[rank{chance.randrange(8)}]: checkpoint shard {chance.randrange(64)} saved, 0 failed, sha256 {chance.randbytes(16).hex()}"
    if kind == 3:
        return f"\rTraining Progress:  {chance.randrange(100)}%|████      | {chance.randrange(999)}/1000 [02:11<04:09,  1.2s/it]"
    if kind == 4:
        return f"[prompt] Natalia sold {chance.randrange(99)} clips. [response] She sold {chance.randrange(99)}; there is no error in the sum. #### {chance.randrange(99)} [score] {chance.randrange(2)}"
    return f"INFO:2026-11-20 08:00:{chance.randrange(60):02},{chance.randrange(1000):03}:ppl {chance.random() * 9:.5f} kl {chance.random() / 9:.7f} 0.0006{chance.randrange(99)}"


def healthy_log(size: int, seed: int = 0) -> bytes:
    """About `size` bytes of a healthy log."""
    pieces: list[bytes] = []
    total = 0
    for line in healthy_lines(seed):
        pieces.append(line.encode() + b"\n")
        total += len(pieces[-1])
        if total >= size:
            return b"".join(pieces)
    raise AssertionError


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 3, in <module>',
    "    main()",
)
SCARES = (
    "/usr/lib/python3/site-packages/vllm/connections.py:8: RuntimeWarning: Failed to read commit hash:\nNo module named 'vllm._version'\n  from vllm.version import __version__ as VLLM_VERSION",
    "WARNING 11-20 08:00:03 [_custom_ops.py:20] Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")",
    "INFO 11-20 08:00:03 [importing.py:53] Triton module has been replaced with a placeholder: 0 active driver(s) found.",
    "2026-11-20 08:00:05,123 - verl.utils.hub - ERROR - ConnectionError: reset by peer, retrying (attempt 2 of 5)",
    "ERROR: connection refused by 10.0.0.7:6379, will try again in 5 s",
    "epoch 3 validation error: 0.01, error_rate=0.002, RMSE Error: 0.0131",
    "tests/unit/test_errors.py::test_runtime_error_is_raised PASSED [ 12%]",
    "tests/unit/test_oom.py::test_out_of_memory_killed PASSED [ 13%]",
    "[W compiler_depend.ts:487] Warning: NPU warning, error code is 107002[Error]: The context is empty.",
    "on_error: ignore, raise_error: False, 'log_level': 'ERROR', GLOO_LOG_LEVEL=ERROR, error_code=0",
    "{'prompt': \"why does it say 'RuntimeError: NPU out of memory'?\", 'response': 'ValueError: the batch is too large'}",
    '{"input": "Fix this: Traceback (most recent call last):\\n  File \\"a.py\\", line 1\\nKeyError: 1", "score": 1.0}',
    "(raylet) [2026-11-20 08:00:00,123 W 4242 4243] (raylet) node_manager.cc:3065: worker exit is delayed",
    "saved 12 of 12 shards, 0 failed, exit code 0",
    "rewards: {'format_error': 0.25, 'timeout_error': 0.0, 'mean': 0.5}",
)


def _cited(chance: random.Random, texts: tuple[str, ...]) -> Iterator[str]:
    """A prompt and an answer that cite an error, as verl and as chat templates print them."""
    error = chance.choice(texts)
    lines = (*TRACEBACK, *error.split("\n"))
    if chance.random() < 0.5:
        yield f"[prompt] A user sees this: {lines[0]}"
        yield from lines[1:]
        yield f"[response] {error.splitlines()[0]} means that the job failed. Try this:"
        yield from ("```", *lines, "```")
        yield from ("[ground_truth] 42", "[score] 0.0")
    else:
        yield from ("<|im_start|>user", *lines, "<|im_end|>")
        yield from ("<|im_start|>assistant", "It fails with", *lines, "Killed", "<|im_end|>")


def scary_lines(texts: tuple[str, ...], seed: int = 0) -> Iterator[str]:
    """A healthy log whose prompts, answers and warnings mention errors, among them `texts`."""
    chance = random.Random(seed)
    step = 0
    for line in healthy_lines(seed):
        if " step:" in line:
            step += 1
        yield line
        if chance.random() < 0.02:
            yield from chance.choice(SCARES).split("\n")
        if chance.random() < 0.02:
            prefix = "\x1b[36m(TaskRunner pid=4242)\x1b[0m " if chance.random() < 0.5 else ""
            yield from (prefix + one for one in _cited(chance, texts))


def scary_log(size: int, texts: tuple[str, ...], seed: int = 0) -> bytes:
    """About `size` bytes of a healthy log in which errors are mentioned, up to the end of a step."""
    pieces: list[bytes] = []
    total = 0
    for line in scary_lines(texts, seed):
        pieces.append(line.encode() + b"\n")
        total += len(pieces[-1])
        if total >= size and b" step:" in pieces[-1]:
            return b"".join(pieces)
    raise AssertionError
