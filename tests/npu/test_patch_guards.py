"""Tests of patches that no other check covers: the code fails without the patch and passes with it.

They run inside a cell on its installed verl, patched or not. From a copy of the patched function or class they derive
the other variant with the lines of the patch, and test both.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

numpy = pytest.importorskip("numpy")
PATCHES = Path(__file__).parents[2] / "patches"


def body(name: str, upstream: str = "verl") -> list[str]:
    """The lines of the only variant of a patch."""
    (file,) = sorted((PATCHES / upstream / name).glob("*.patch"))
    return file.read_text(encoding="utf-8").splitlines()


def source_of(module: str, *names: str) -> tuple[str, str]:
    """The source of an installed definition, and the text of its file."""
    spec = importlib.util.find_spec(module.split(".", maxsplit=1)[0])
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("verl is not installed here")
    file = Path(spec.submodule_search_locations[0]).joinpath(*module.split(".")[1:]).with_suffix(".py")
    text = file.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for name in names:
        node = next(child for child in ast.walk(node) if getattr(child, "name", None) == name)
    source = ast.get_source_segment(text, node)  # type: ignore[arg-type]
    assert source
    return textwrap.dedent(source), text


def both_variants(name: str, source: str) -> tuple[str, str]:
    """The source without and with a patch, made by swapping the changed lines of the patch in `source`."""
    removed = [line[1:] for line in body(name) if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in body(name) if line.startswith("+") and not line.startswith("+++")]
    is_unpatched = any(line.strip() in source for line in removed)
    old, new = source, source
    for before, after in itertools.zip_longest(removed, added, fillvalue=""):
        old = old.replace(after.strip(), before.strip()) if after.strip() else old
        new = new.replace(before.strip(), after.strip())
    return (source, new) if is_unpatched else (old, source)


def test_step_timings_are_gathered_on_gloo() -> None:
    """timing-all-gather: gloo refuses to gather a tensor without dimensions into tensors of one element."""
    import torch.distributed as dist

    source, _text = source_of("verl.utils.profiler.performance", "topk_reduce_ratio_min_max")
    without, patched = both_variants("timing-all-gather", source)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        names = {"torch": torch, "dist": dist, "get_device_id": lambda: "cpu"}
        exec(without, names)
        with pytest.raises(RuntimeError, match="invalid tensor size"):
            names["topk_reduce_ratio_min_max"](2.0)
        exec(patched, names)
        assert names["topk_reduce_ratio_min_max"](2.0) == (0.0, 2.0, 2.0)
    finally:
        dist.destroy_process_group()


def test_hf_rollout_can_be_constructed() -> None:
    """hf-rollout: the base class's constructor has arguments that HFRollout does not give."""
    source, _text = source_of("verl.workers.rollout.hf_rollout", "HFRollout", "__init__")
    without, patched = both_variants("hf-rollout", source)

    class Base:
        def __init__(self, config: object, model_config: object, device_mesh: object) -> None:
            raise AssertionError

    def rollout(constructor: str) -> object:
        text = f"class HFRollout(Base):\n{textwrap.indent(constructor, '    ')}\n"
        names: dict[str, object] = {"Base": Base, "nn": torch.nn}
        exec(text, names)
        return names["HFRollout"](torch.nn.Identity(), {"n": 1})  # type: ignore[operator]

    with pytest.raises(TypeError, match="positional arguments"):
        rollout(without)
    assert rollout(patched).config == {"n": 1}  # type: ignore[attr-defined]


def test_equal_rewards_give_no_advantage_when_vectorized() -> None:
    """grpo-vectorized-equal-rewards: a mean that is off by one ulp, divided by a deviation of the same size."""
    name = "compute_grpo_vectorized_outcome_advantage"
    source, _text = source_of("verl.trainer.ppo.core_algos", name)
    lines = body("grpo-vectorized-equal-rewards")
    removed, added = (
        "".join(f"{line[1:]}\n" for line in lines if line.startswith(sign) and not line.startswith(sign * 3))
        for sign in "-+"
    )
    if removed not in source and added not in source:
        pytest.skip("this version floors the variance")
    core_algos = importlib.import_module("verl.trainer.ppo.core_algos")

    def advantages(source: str, rewards: list[float], groups: list[int]) -> torch.Tensor:
        names = dict(vars(core_algos))
        exec(source, names)
        scores = torch.tensor(rewards).unsqueeze(-1)
        return names[name](scores, torch.ones_like(scores), numpy.array(groups))[0]

    without, patched = source.replace(added, removed), source.replace(removed, added)
    equal = ([0.7] * 8 + [0.1] * 6, [0] * 8 + [1] * 6)
    assert advantages(without, *equal).abs().max() > 0.01
    assert not advantages(patched, *equal).any()
    rng = numpy.random.default_rng(0)
    for _ in range(50):
        differing = rng.normal(size=24).astype(numpy.float32).tolist(), [*rng.integers(0, 6, 23).tolist(), 6]
        assert torch.equal(advantages(without, *differing), advantages(patched, *differing))


def test_experts_have_the_same_weights_in_training_and_inference() -> None:
    """qwen3-vl-moe-routing: experts select weights by expert number, so every expert needs a weight."""
    lines = [line.rstrip("\r") for line in body("qwen3-vl-moe-routing")]
    hunk = lines[next(number for number, line in enumerate(lines) if line.startswith("@@")) + 1 :]
    without = "\n".join(line[1:] for line in hunk if not line.startswith("+"))
    patched = "\n".join(line[1:] for line in hunk if not line.startswith("-"))

    class Block:
        hidden_size = 4

        def __init__(self, training: bool) -> None:
            self.training = training

        def experts(self, hidden: object, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
            return weights.gather(1, chosen)

    def weights(text: str, *, training: bool) -> torch.Tensor:
        logits = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
        top, chosen = torch.topk(logits.softmax(-1), 2, dim=-1)
        names: dict[str, object] = {"torch": torch}
        head = (
            "def forward(self, routing_weights, router_logits, router_indices, hidden_states, batch_size):\n"
        )
        exec(head + text, names)
        hidden = torch.zeros(1, 5, 4)
        return names["forward"](Block(training), top, logits, chosen, hidden, 1)  # type: ignore[operator,no-any-return]

    right = weights(patched, training=False)
    assert torch.equal(weights(patched, training=True), right)
    with pytest.raises((RuntimeError, AssertionError)):
        assert torch.equal(weights(without, training=True), right)


def test_experts_outside_the_best_groups_are_not_selected(npu_device: str) -> None:
    """grouped-softmax-routing: which of two code paths computes group-limited softmax routing."""
    lines = [line.rstrip("\r") for line in body("grouped-softmax-routing", "vllm_ascend")]
    removed, added = (
        "\n".join(line[1:] for line in lines if line.startswith(sign) and not line.startswith(sign * 3))
        for sign in "-+"
    )
    tokens, experts, groups, top_groups, top_k = 64, 32, 8, 3, 6

    def one_group(scores: torch.Tensor) -> torch.Tensor:
        """What the fused operator computes for softmax scores: the best experts of all groups."""
        return scores.topk(top_k, dim=-1)[1]

    def of_the_best_groups(scores: torch.Tensor) -> torch.Tensor:
        """DeepSeek-V2's rule (arXiv:2405.04434, 2.2.2): groups are ranked by their best expert."""
        by_group = scores.view(tokens, groups, -1)
        best = by_group.max(-1)[0].topk(top_groups, dim=-1)[1]
        mask = torch.zeros(tokens, groups, device=scores.device).scatter_(1, best, 1).unsqueeze(-1)
        return (by_group * mask).flatten(1).topk(top_k, dim=-1)[1]

    def most_groups(decision: str, **settings: object) -> int:
        """The largest number of groups from which a token has experts."""
        names: dict[str, object] = {"fused": one_group, "native": of_the_best_groups}
        head = (
            "def select(scores, custom_routing_function, use_grouped_topk, scoring_func, num_expert_group):\n"
        )
        exec(f"{head}{decision}\n        return fused(scores)\n    return native(scores)\n", names)
        logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(0))
        model = {"use_grouped_topk": True, "scoring_func": "softmax", "num_expert_group": groups, **settings}
        scores = logits.to(npu_device).softmax(-1)
        chosen = names["select"](scores, None, **model)  # type: ignore[operator]
        return max(len(set(row)) for row in (chosen // (experts // groups)).cpu().tolist())

    assert most_groups(added) <= top_groups
    with pytest.raises(AssertionError):
        assert most_groups(removed) <= top_groups
    for other in ({"use_grouped_topk": False}, {"scoring_func": "sigmoid"}, {"num_expert_group": 1}):
        assert most_groups(added, **other) == most_groups(removed, **other)


WORKER = """
import os, sys, torch, torch_npu, torch.distributed as dist
from weight_sync import HCCLWeightSyncGroup
rank, port = map(int, sys.argv[1:])
dist.init_process_group("cpu:gloo,npu:hccl", init_method=f"file://{os.getcwd()}/default-{port}", rank=rank, world_size=2)
group = HCCLWeightSyncGroup("127.0.0.1", port, rank, 2)
for dtype in (torch.float32, torch.bfloat16):
    tensor = (torch.arange(6.0) * (1 if rank == 0 else -1)).to(dtype).to("npu:0")
    group.broadcast(tensor)
    assert tensor.cpu().tolist() == [0, 1, 2, 3, 4, 5], tensor
total = torch.ones(1, device="npu:0")
dist.all_reduce(total)
assert total.item() == 2
dist.destroy_process_group()
print("synced")
"""


def test_weights_are_synced_over_hccl_between_two_cards(tmp_path: Path, npu_device: str) -> None:
    """one-step-off-hccl: a separate process group, in addition to the default group of the workers."""
    if not npu_device.startswith("npu"):
        pytest.skip("weight sync over HCCL needs an NPU, real or simulated")
    pytest.importorskip("torch_npu")
    lines = body("one-step-off-hccl")
    end = [number for number, line in enumerate(lines) if line.startswith("diff --git")][1]
    added = [line[1:] for line in lines[:end] if line.startswith("+") and not line.startswith("+++")]
    (tmp_path / "weight_sync.py").write_text("\n".join(added), encoding="utf-8")
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")
    for _attempt in range(3):
        codes, outputs = synced(tmp_path)
        # Another process may use the port that was free before.
        if "address already in use" not in "".join(outputs).lower():
            break
    assert codes == [0, 0], "\n".join(outputs)
    assert all("synced" in output for output in outputs)


def synced(folder: Path) -> tuple[list[int], list[str]]:
    """Exit codes and outputs of two workers with one card each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "harness.devices.sim.start.sim_launch"] if "NPU_SIM_COUNT" in os.environ else []
    workers = [
        subprocess.Popen(
            [sys.executable, *launcher, "worker.py", str(rank), str(port)],
            cwd=folder,
            env={
                **os.environ,
                "NPU_SIM_COUNT": "2",
                "ASCEND_RT_VISIBLE_DEVICES": str(rank),
                # In cells, Python does not add the folder of the script to its path.
                "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=900)[0] for worker in workers]
    finally:
        # A worker waits forever if the other one has ended.
        for worker in workers:
            worker.kill()
            worker.wait()
    return [worker.returncode for worker in workers], outputs


def test_ray_has_no_such_group_of_its_own() -> None:
    """one-step-off-hccl: the process group that the unpatched trainer requests from Ray does not exist."""
    ray = pytest.importorskip("ray")
    program = """
import ray
from ray.util.collective import collective
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)

@ray.remote(num_cpus=1)
class Worker:
    pass

collective.create_collective_group([Worker.remote(), Worker.remote()], 2, [0, 1], backend="hccl", group_name="g")
"""
    for _attempt in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        # On a loaded machine, a node may need more than the 30 s that Ray waits for it.
        if "timed out during startup" not in done.stderr:
            break
    if "ImportError" in done.stderr:
        pytest.skip(f"ray.util.collective cannot be imported here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode != 0, f"Ray {ray.__version__} supports HCCL, so the patch may be obsolete"
    assert "not registered" in done.stderr or "NCCL" in done.stderr or "Unrecognized backend" in done.stderr
