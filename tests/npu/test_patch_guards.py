"""Patches of ours that no other check guards, proved inside a cell: red without the patch, green with it.

The cell's own verl is taken as it is installed. Where its patch is in it, the tests pass; where it is not, they
apply the body to a copy of the one function or class and show both sides.
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

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
PATCHES = Path(__file__).parents[2] / "patches"


def body(name: str, upstream: str = "verl") -> list[str]:
    """The lines of the only body of a patch."""
    (file,) = sorted((PATCHES / upstream / name).glob("*.patch"))
    return file.read_text(encoding="utf-8").splitlines()


def source_of(module: str, *names: str) -> tuple[str, str]:
    """A definition's source without, and with, its patch, whichever of the two is installed."""
    spec = importlib.util.find_spec(module.split(".", maxsplit=1)[0])
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("verl is not installed here")
    file = Path(spec.submodule_search_locations[0]).joinpath(*module.split(".")[1:]).with_suffix(".py")
    text = file.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for name in names:
        node = next(child for child in ast.walk(node) if getattr(child, "name", None) == name)
    found = ast.get_source_segment(text, node)  # type: ignore[arg-type]
    assert found
    return textwrap.dedent(found), text


def both_sides(name: str, found: str) -> tuple[str, str]:
    """(without, with) by swapping the changed lines of a patch in `found`."""
    removed = [line[1:] for line in body(name) if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in body(name) if line.startswith("+") and not line.startswith("+++")]
    here = [line for line in removed if line.strip() in found]
    old, new = found, found
    for before, after in itertools.zip_longest(removed, added, fillvalue=""):
        old = old.replace(after.strip(), before.strip()) if after.strip() else old
        new = new.replace(before.strip(), after.strip())
    return (found, new) if here else (old, found)


def test_step_timings_are_gathered_on_gloo() -> None:
    """timing-all-gather: gloo refuses to gather a tensor without dimensions into tensors of one element."""
    import torch.distributed as dist

    found, _text = source_of("verl.utils.profiler.performance", "topk_reduce_ratio_min_max")
    without, patched = both_sides("timing-all-gather", found)
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
    found, _text = source_of("verl.workers.rollout.hf_rollout", "HFRollout", "__init__")
    without, patched = both_sides("hf-rollout", found)

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
    """grpo-vectorized-equal-rewards: a mean that is an ulp off, divided by a deviation that is as small."""
    name = "compute_grpo_vectorized_outcome_advantage"
    found, _text = source_of("verl.trainer.ppo.core_algos", name)
    lines = body("grpo-vectorized-equal-rewards")
    removed, added = (
        "".join(f"{line[1:]}\n" for line in lines if line.startswith(sign) and not line.startswith(sign * 3))
        for sign in "-+"
    )
    if removed not in found and added not in found:
        pytest.skip("this version floors the variance")
    core_algos = importlib.import_module("verl.trainer.ppo.core_algos")

    def advantages(source: str, rewards: list[float], groups: list[int]) -> torch.Tensor:
        names = dict(vars(core_algos))
        exec(source, names)
        scores = torch.tensor(rewards).unsqueeze(-1)
        return names[name](scores, torch.ones_like(scores), numpy.array(groups))[0]

    without, patched = found.replace(added, removed), found.replace(removed, added)
    equal = ([0.7] * 8 + [0.1] * 6, [0] * 8 + [1] * 6)
    assert advantages(without, *equal).abs().max() > 0.01
    assert not advantages(patched, *equal).any()
    rng = numpy.random.default_rng(0)
    for _ in range(50):
        differing = rng.normal(size=24).astype(numpy.float32).tolist(), [*rng.integers(0, 6, 23).tolist(), 6]
        assert torch.equal(advantages(without, *differing), advantages(patched, *differing))


def test_experts_are_weighed_alike_in_training_and_inference() -> None:
    """qwen3-vl-moe-routing: experts look weights up by expert number, so there must be one for every expert."""
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


def test_experts_of_groups_that_are_ruled_out_are_not_taken(npu_device: str) -> None:
    """grouped-softmax-routing: which of two paths a model with group-limited softmax routing is sent on."""
    lines = [line.rstrip("\r") for line in body("grouped-softmax-routing", "vllm_ascend")]
    removed, added = (
        "\n".join(line[1:] for line in lines if line.startswith(sign) and not line.startswith(sign * 3))
        for sign in "-+"
    )
    tokens, experts, groups, kept, top_k = 64, 32, 8, 3, 6

    def one_group(scores: torch.Tensor) -> torch.Tensor:
        """What the fused operator is asked for with softmax scores: the best experts of all."""
        return scores.topk(top_k, dim=-1)[1]

    def of_the_best_groups(scores: torch.Tensor) -> torch.Tensor:
        """DeepSeek-V2's rule (arXiv:2405.04434, 2.2.2): a group is as good as its best expert."""
        by_group = scores.view(tokens, groups, -1)
        best = by_group.max(-1)[0].topk(kept, dim=-1)[1]
        mask = torch.zeros(tokens, groups, device=scores.device).scatter_(1, best, 1).unsqueeze(-1)
        return (by_group * mask).flatten(1).topk(top_k, dim=-1)[1]

    def groups_taken(decision: str, **asked: object) -> int:
        """The most groups that any token's experts are of."""
        names: dict[str, object] = {"fused": one_group, "native": of_the_best_groups}
        head = (
            "def select(scores, custom_routing_function, use_grouped_topk, scoring_func, num_expert_group):\n"
        )
        exec(f"{head}{decision}\n        return fused(scores)\n    return native(scores)\n", names)
        logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(0))
        model = {"use_grouped_topk": True, "scoring_func": "softmax", "num_expert_group": groups, **asked}
        scores = logits.to(npu_device).softmax(-1)
        chosen = names["select"](scores, None, **model)  # type: ignore[operator]
        return max(len(set(row)) for row in (chosen // (experts // groups)).cpu().tolist())

    assert groups_taken(added) <= kept
    with pytest.raises(AssertionError):
        assert groups_taken(removed) <= kept
    for other in ({"use_grouped_topk": False}, {"scoring_func": "sigmoid"}, {"num_expert_group": 1}):
        assert groups_taken(added, **other) == groups_taken(removed, **other)


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
    """one-step-off-hccl: a group of its own, beside the default group the workers have."""
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
        # Somebody else may take a port between the moment it was free and the moment it is used.
        if "address already in use" not in "".join(outputs).lower():
            break
    assert codes == [0, 0], "\n".join(outputs)
    assert all("synced" in output for output in outputs)


def synced(folder: Path) -> tuple[list[int], list[str]]:
    """Exit codes and outputs of two workers with a card each."""
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
                # Cells start Python without the script's own folder on its path.
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
        # One that waits for another that is gone waits for ever.
        for worker in workers:
            worker.kill()
            worker.wait()
    return [worker.returncode for worker in workers], outputs


def test_ray_has_no_such_group_of_its_own() -> None:
    """one-step-off-hccl, the other side: what the unpatched trainer asks Ray for."""
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
        # Ray gives up on a node after 30 s, which a loaded machine may take.
        if "timed out during startup" not in done.stderr:
            break
    if "ImportError" in done.stderr:
        pytest.skip(f"ray.util.collective cannot be imported here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode != 0, f"Ray {ray.__version__} has HCCL: the patch may be dead"
    assert "not registered" in done.stderr or "NCCL" in done.stderr or "Unrecognized backend" in done.stderr
