"""Triage finds the causes of errors that users reported, in the exact words of the reports."""

# ruff: noqa: RUF001 - as users wrote it

from __future__ import annotations

import pytest

from harness.verdict.triage.diagnosis import triage_text

NCCL = """\
Error executing job with overrides: ['algorithm.adv_estimator=grpo', 'data.truncation=error', 'actor_rollout_ref.actor.strategy=fsdp2', 'actor_rollout_ref.actor.use_torch_compile=False']
Traceback (most recent call last):
  File "/home/ma-user/work/verl/recipe/one_step_off_policy/main_ppo.py", line 230, in main
    run_ppo(config, task_runner_class=OneStepTaskRunner)
  File "/home/ma-user/work/verl/verl/trainer/main_ppo.py", line 99, in run_ppo
    ray.get(runner.run.remote(config))
  File "/home/ma-user/.conda/envs/test01/lib/python3.10/site-packages/ray/_private/worker.py", line 1015, in get_objects
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(RuntimeError): ray::OneStepTaskRunner.run() (pid=288089, ip=172.16.0.134, actor_id=6e88e9b4e4bf0f6489bfdeeb01000000, repr=<main_ppo.OneStepTaskRunner object at 0xffe17414cf40>)
  File "/home/ma-user/work/verl/recipe/one_step_off_policy/ray_trainer.py", line 265, in _create_weight_sync_group
    collective.create_collective_group(
  File "/home/ma-user/.conda/envs/test01/lib/python3.10/site-packages/ray/util/collective/collective.py", line 816, in _check_backend_availability
    raise RuntimeError("NCCL is not available.")
RuntimeError: NCCL is not available
"""
#: Report -> (its text, expected signature, a word of the cause or remedy).
SEEDS = {
    "one_step_off_policy": (NCCL, "nccl", "HCCL"),
    "flash_attn metadata": (
        "importlib.metadata.PackageNotFoundError: No package metadata was found for flash_attn",
        "fa-metadata",
        "transformers 4.52.4",
    ),
    "flash_attn metadata, as it was copied": (
        "问题1:importlib.metadata.PackageNotFoundError:Npackage metadata was found for flash attnith overrides",
        "fa-metadata",
        "transformers 4.52.4",
    ),
    "torch.compile on NPU": (
        (
            "raise e.remove_dynamo_frames() from None # see TORCHDYNAMO_VERBOSE=1\n\n"
            "File “/opt/pyvenv/lib/python3.10/site-packages/torch/_inductor/compile_fx.py”, line 760, in _compile_fx_inner"
        ),
        "compile-inductor",
        "use_torch_compile=False",
    ),
    "micro_batch_size": (
        "RuntimeError: Please set micro_batch_size or set use_flash_attn=True in config.",
        "micro-bsz",
        "micro batch",
    ),
    "num_query_groups": (
        "问题6.ValueError: num_query_groups (4) must be a multiple of tensor_model_parallel_size (8).",
        "num-query-groups",
        "tensor_model_parallel_size",
    ),
    "filter_groups": (
        "问题7:基于DAPO脚本修改GSPO算法的时候,发生报错Could not override ‘algorithm. filter_groups. enable’.",
        "hydra-filter-groups",
        "DAPO",
    ),
    "CXXABI": (
        "ImportError: /lib/aarch64-linux-gnu/libstdc++.so.6:\nversion `CXXABI_1.3.15' not found",
        "glibcxx",
        "LD_LIBRARY_PATH",
    ),
    "allocation failure, as it was written": ("问题3:内存分配失败", "npu-oom", "gpu_memory_utilization"),
    "allocation failure of the allocator": (
        "RuntimeError: NPU out of memory. Tried to allocate 22.00 MiB (NPU 0; 60.97 GiB total capacity)",
        "npu-oom",
        "gpu_memory_utilization",
    ),
    "allocation failure of CANN": (
        (
            "EL0004: [PID: 316198] 2025-09-28-07:22:29.827.496 Failed to allocate memory.\n"
            "        Possible Cause: Available memory is insufficient."
        ),
        "acl-alloc",
        "gpu_memory_utilization",
    ),
    "allocation failure of the rollout engine": (
        (
            "ValueError: Free memory on device (12.31/60.96 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 54.86 GiB)."
        ),
        "vllm-free-memory",
        "gpu_memory_utilization",
    ),
    "patch line endings": (
        (
            "patching file vllm_ascend/ops/moe/moe_mlp.py\nHunk #1 FAILED at 22 (different line endings).\n"
            "1 out of 1 hunk FAILED -- saving rejects to file vllm_ascend/ops/moe/moe_mlp.py.rej"
        ),
        "patch-crlf",
        "CRLF",
    ),
}


@pytest.mark.parametrize("name", SEEDS)
def test_a_reported_error_resolves_to_its_cause(name):
    text, signature, word = SEEDS[name]
    found = triage_text(text.encode())
    assert found.known
    assert found.root.id == signature
    known = found.root.signature
    assert word in f"{known.cause} {known.remedy}"
    assert known.sources


@pytest.mark.parametrize("name", SEEDS)
def test_it_does_so_in_the_middle_of_a_job_with_many_ranks(name):
    text, signature, _word = SEEDS[name]
    others = "".join(f"[rank{rank}]: EI0006: Getting socket times out\n" for rank in range(1, 8))
    lines = "".join(f"\x1b[36m(WorkerDict pid=7)\x1b[0m {line}\n" for line in text.splitlines())
    assert triage_text((others + lines + others).encode()).root.id == signature


STEP = """\
Traceback (most recent call last):
  File "/opt/verl/verl/workers/{file}", line 250, in {function}
    {code}
torch.OutOfMemoryError: NPU out of memory. Tried to allocate 896.00 MiB (NPU 5; 60.97 GiB total capacity)
"""


@pytest.mark.parametrize(
    ("file", "function", "code", "cause"),
    [
        ("actor/dp_actor.py", "_optimizer_step", "self.actor_optimizer.step()", "npu-oom-optimizer"),
        (
            "fsdp_workers.py",
            "update_actor",
            "load_fsdp_optimizer(optimizer=self.actor_optimizer)",
            "npu-oom-optimizer",
        ),
        ("actor/dp_actor.py", "update_policy", "loss.backward()", "npu-oom"),
        ("actor/dp_actor.py", "update_policy", "self.actor_optimizer.zero_grad()", "npu-oom"),
    ],
)
def test_memory_of_the_optimizer_step_has_its_own_cause(file, function, code, cause):
    text = STEP.format(file=file, function=function, code=code)
    found = triage_text(text.encode())
    assert found.known
    assert found.root.id == cause
    assert ("optimizer_offload" in found.root.signature.remedy) == (cause == "npu-oom-optimizer")


ELSEWHERE = {
    "RuntimeError: 0 active drivers ([]). There should only be one.": "triton-both",
}


@pytest.mark.parametrize("text", ELSEWHERE)
def test_a_cause_of_npus_is_only_a_symptom_where_nothing_shows_npus(text):
    found = triage_text(f"{text}\n".encode())
    assert not found.known
    with_npu = triage_text(f"npu-smi: 8 x Ascend910B3\n{text}\n".encode())
    assert with_npu.known
    assert with_npu.root.id == ELSEWHERE[text]
    assert triage_text(f"{text}\n".encode(), versions={"torch_npu": "2.7.1"}).known


def test_the_size_of_a_type_of_numpy_is_an_error_of_packages_built_for_another_numpy():
    text = "numpy.dtype size changed, may indicate binary incompatibility. Expected 96, got 88"
    assert triage_text(f"ValueError: {text}\n".encode()).root.id == "numpy-c-api"
    warned = triage_text(f"x.py:6: RuntimeWarning: {text}\n  from ._random import Generator\n".encode())
    assert not warned.known


def test_only_the_constructors_of_the_plugin_are_those_that_vllm_changed():
    text = "TypeError: {}.__init__() got an unexpected keyword argument 'zeta_{}'\n"
    assert triage_text(text.format("AscendScheduler", 1).encode()).known
    assert not triage_text(text.format("DDIMScheduler", 1).encode()).known


def test_a_weight_that_is_not_in_the_checkpoint_is_a_symptom():
    found = triage_text(b"KeyError: 'model.layers.0.mlp.w2.weight_scale'\n")
    assert found.root.id == "weight-not-in-checkpoint"
    assert not found.known


@pytest.mark.parametrize(
    ("versions", "is_known"),
    [({}, False), ({"torch": "2.1.0"}, True), ({"numpy": "2.0.1"}, True), ({"torch": "2.5.1"}, False)],
)
def test_versions_tell_that_an_old_torch_cannot_use_numpy_two(versions, is_known):
    found = triage_text(b"RuntimeError: Numpy is not available\n", versions=versions)
    assert found.known == is_known
    assert "torch before 2.3" in found.root.signature.cause
