"""The simulated device behaves like a device: training, random numbers, memory, faults, and verl on it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from roundings import Permitted, permitted  # noqa: E402 - needs the guards above
from training import KINDS, permitted_training, train  # noqa: E402

from harness.devices.sim.faults import fault_spec  # noqa: E402
from harness.devices.sim.faults.fault_spec import FaultSpec  # noqa: E402

SIMULATION = overlay.installed()
pytestmark = pytest.mark.skipif(SIMULATION is None, reason="only on the simulated device")
NPU = "npu:0"


@pytest.fixture(scope="module")
def tolerance() -> Callable[[str], Permitted]:
    """Name of a kind of training -> its exact results and tolerances."""
    return cache(lambda name: permitted_training(KINDS[name]))


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, left, right))


@pytest.mark.parametrize("name", KINDS)
def test_a_clean_run_is_off_by_roundings_and_no_more(
    tolerance: Callable[[str], Permitted], name: str
) -> None:
    """The CPU must also be within the tolerances."""
    for device in ("cpu", NPU):
        tolerance(name).require(train(device, KINDS[name]))


@pytest.mark.parametrize("name", KINDS)
def test_an_error_just_above_what_roundings_explain_is_red(
    tolerance: Callable[[str], Permitted], name: str
) -> None:
    """The error is in one element of a loss, gradient or parameter."""
    expected = tolerance(name)
    for index, distance in enumerate(expected.tolerances):
        for share in (0.9, 1.1):
            tensors = [tensor.clone() for tensor in expected.exact]
            tensors[index].view(-1)[0] += share * distance
            assert (max(expected.budgets(tensors)) > 1) is (share > 1)


@pytest.mark.parametrize(
    ("name", "exponent"),
    [
        ("fp32", -16),
        ("sgd", -15),
        ("fp64", -44),
        ("bf16", -3),
        ("amp-bf16", -4),
        ("amp-fp16", -7),
        ("fp16", -6),
    ],
)
def test_a_softmax_that_is_slightly_too_large_is_red(
    tolerance: Callable[[str], Permitted], name: str, exponent: int
) -> None:
    """A factor of 1 + 2^exponent fails, where half of 2^exponent is just noticed; an eighth of it passes."""
    for share, red in ((1.0, True), (0.125, False)):
        wrong = FaultSpec(op="_softmax", kind="scale", factor=1 + share * 2.0**exponent)
        with SIMULATION.faults.injected(wrong) as (active,):
            found = train(NPU, KINDS[name])
        assert active.hits == 3
        assert (max(tolerance(name).budgets(found)) > 1) is red


def test_a_clean_run_repeats_bit_by_bit() -> None:
    assert same(train(NPU), train(NPU))


@pytest.mark.parametrize(
    "fault",
    [
        FaultSpec(op="_log_softmax", kind="round"),
        FaultSpec(op="matmul", kind="lowacc", block=4),
        FaultSpec(op="addmm", kind="ulp", ulps=4096),
        FaultSpec(op="_softmax_backward_data", kind="sign"),
        FaultSpec(op="silu", kind="scale", factor=1.02),
        FaultSpec(op="silu_backward", kind="zero"),
        FaultSpec(op="_softmax", kind="stale"),
        FaultSpec(op="_foreach_addcdiv_*", kind="stale", output=-1),
        FaultSpec(op="mul_", kind="sign", after=1),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.op}",
)
def test_a_fault_is_beyond_what_roundings_explain(
    tolerance: Callable[[str], Permitted], fault: FaultSpec
) -> None:
    clean = train(NPU)
    with SIMULATION.faults.injected(fault) as (active,):
        faulty = train(NPU)
    assert active.hits > 0, active.report()
    assert max(tolerance("fp32").budgets(faulty)) > 1
    assert same(clean, train(NPU)), "the fault outlived its block"


def test_sums_in_another_order_are_legal_and_do_not_repeat(tolerance: Callable[[str], Permitted]) -> None:
    clean = train(NPU)
    with SIMULATION.faults.injected(FaultSpec(op="matmul", kind="nondet")) as (active,):
        found = [train(NPU) for _ in range(2)]
    assert active.hits > 0, active.report()
    for run in found:
        tolerance("fp32").require(run)
        assert not same(clean, run)
    assert not same(*found)


def test_a_sign_in_the_backward_leaves_the_first_loss_alone(tolerance: Callable[[str], Permitted]) -> None:
    clean = train(NPU)
    with SIMULATION.faults.injected(FaultSpec(op="matmul_backward", kind="sign", phase="backward", count=1)):
        faulty = train(NPU)
    assert torch.equal(clean[0], faulty[0])
    assert max(tolerance("fp32").budgets(faulty)) > 1


def test_faults_distinguish_forward_and_backward() -> None:
    with SIMULATION.faults.injected(
        FaultSpec(op="*_backward*", kind="scale", phase="forward"),
        FaultSpec(op="_log_softmax", kind="scale", phase="backward"),
    ) as active:
        train(NPU, steps=1)
    assert [fault.hits for fault in active] == [0, 0]


def test_nan_hits_at_least_one_element() -> None:
    x = torch.ones(1000, device=NPU)
    with SIMULATION.faults.injected(FaultSpec(op="exp", kind="nan")):
        assert int(torch.isnan(torch.exp(x)).sum()) == 1
    with SIMULATION.faults.injected(FaultSpec(op="exp", kind="nan", elements=0.25)):
        assert int(torch.isnan(torch.exp(x)).sum()) == 250


def test_counts_rates_and_reports() -> None:
    x = torch.ones(4, device=NPU)
    spec = FaultSpec(op="aten::exp", kind="zero", after=2, count=3)
    with SIMULATION.faults.injected(spec) as (active,):
        zero = [not bool(torch.exp(x).any()) for _ in range(7)]
    assert zero == [False, False, True, True, True, False, False]
    assert active.report() == {
        "op": "aten::exp",
        "kind": "zero",
        "phase": "any",
        "seen": 7,
        "hits": 3,
        "operators": {"aten::exp": 3},
    }
    with SIMULATION.faults.injected(FaultSpec(op="exp", kind="zero", rate=0.3, seed=1)) as (active,):
        for _ in range(100):
            torch.exp(x)
    # The result depends on the seed only. The limit is six standard deviations of the binomial distribution.
    assert abs(active.hits - 30) < 6 * (100 * 0.3 * 0.7) ** 0.5


def test_a_call_can_fail_or_block() -> None:
    x = torch.ones(4, device=NPU)
    with (
        SIMULATION.faults.injected(FaultSpec(op="exp", kind="raise")),
        pytest.raises(RuntimeError, match=r"EZ9999.*aten::exp"),
    ):
        torch.exp(x)
    with SIMULATION.faults.injected(FaultSpec(op="exp", kind="hang", seconds=0.01)) as (active,):
        assert bool((torch.exp(x) > 2).all())
    assert active.hits == 1


def test_every_kind_is_exercised_here() -> None:
    assert set(fault_spec.KINDS) == {
        "round", "lowacc", "ulp", "sign", "scale", "zero", "stale", "nan", "nondet", "raise", "hang",
        "outdated",  # tests/npu/test_sim_graph_capture.py
    }  # fmt: skip


def test_second_outputs_and_out_arguments_can_be_hit() -> None:
    x = torch.randn(3, 5).to(NPU)
    with SIMULATION.faults.injected(FaultSpec(op="max.dim", kind="sign", output=0)):
        assert torch.equal(x.max(1)[0].cpu(), -x.cpu().max(1)[0])
    q = torch.randn(1, 2, 4, 8).to(NPU).requires_grad_()
    k, v = q.detach().clone().requires_grad_(), q.detach().clone().requires_grad_()

    def gradients() -> list[torch.Tensor]:
        out = torch.ops.npu.npu_fusion_attention(q, k, v, 2, "BNSD", scale=0.3)[0]
        return [grad.cpu() for grad in torch.autograd.grad((out * out).sum(), (q, k, v))]

    clean = gradients()
    with SIMULATION.faults.injected(FaultSpec(op="npu_fusion_attention_grad", kind="sign", output=1)):
        faulty = gradients()
    assert torch.equal(faulty[0], clean[0])
    assert torch.equal(faulty[1], -clean[1])


def test_streams_and_events_are_ordered() -> None:
    x, side = torch.ones(64, device=NPU), torch.npu.Stream()
    begun, done = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    begun.record()
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side
        side.wait_event(begun)
        doubled = x * 2
        done.record(side)
    assert torch.npu.current_stream() == torch.npu.default_stream()
    torch.npu.current_stream().wait_stream(side)
    total = (doubled + x).sum()
    done.synchronize()
    side.synchronize()
    assert (done.query(), side.query()) == (True, True)
    assert begun.elapsed_time(done) >= 0
    assert total.item() == 3 * 64


def test_memory_statistics_follow_what_is_allocated() -> None:
    gc.collect()
    before, size = torch.npu.memory_allocated(), 1 << 20
    torch.npu.reset_peak_memory_stats()
    block = torch.empty(size, dtype=torch.uint8, device=NPU)
    assert torch.npu.memory_allocated() >= before + size
    assert torch.npu.memory_reserved() >= torch.npu.memory_allocated()
    del block
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() >= before + size
    statistics = torch.npu.memory_stats()
    assert statistics["allocated_bytes.all.current"] == before
    assert statistics["allocated_bytes.all.peak"] == torch.npu.max_memory_allocated()


def test_memory_that_inference_mode_used_first_can_be_written_later() -> None:
    with torch.inference_mode():
        pointer = torch.zeros(4099, device=NPU).add_(1).data_ptr()
    x = torch.zeros(4099, device=NPU)
    assert x.data_ptr() == pointer
    SIMULATION.machine.alias(x).add_(1)
    assert bool((x == 1).all())


def test_random_numbers_follow_the_device_generator() -> None:
    torch.npu.manual_seed(3)
    first, state = torch.randn(64, device=NPU), torch.npu.get_rng_state()
    second = torch.randn(64, device=NPU)
    torch.npu.set_rng_state(state)
    assert torch.equal(second, torch.randn(64, device=NPU))
    torch.npu.manual_seed(3)
    assert torch.equal(first, torch.randn(64, device=NPU))
    assert not torch.equal(first, second)
    host = torch.get_rng_state()
    torch.nn.functional.dropout(torch.ones(8, device=NPU), 0.5)
    assert torch.equal(host, torch.get_rng_state()), "a device operator moved the host's generator"


def test_a_generator_of_the_wrong_device_is_refused() -> None:
    own = torch.rand(8, device=NPU, generator=torch.Generator("npu").manual_seed(4))
    again = torch.rand(8, device=NPU, generator=torch.Generator("npu").manual_seed(4))
    assert torch.equal(own, again)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(8, device=NPU, generator=torch.Generator())


def test_samples_follow_their_distribution() -> None:
    torch.npu.manual_seed(9)
    weights, count, share = torch.tensor([0.0, 1.0, 3.0]).to(NPU), 4000, 0.75
    drawn = torch.multinomial(weights, count, replacement=True).cpu()
    assert not bool((drawn == 0).any())
    # The result depends on the seed only. The limit is six standard deviations of the binomial distribution.
    deviation = (count * share * (1 - share)) ** 0.5
    assert abs(int((drawn == 2).sum()) - count * share) < 6 * deviation
    assert sorted(torch.randperm(20, device=NPU).tolist()) == list(range(20))


def test_checkpointing_recomputes_the_same_dropout() -> None:
    from torch.utils.checkpoint import checkpoint

    def block(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x * 2, 0.5).tanh()

    x = torch.linspace(0.1, 1, 32).to(NPU).requires_grad_()
    torch.npu.manual_seed(5)
    (plain,) = torch.autograd.grad(block(x).sum(), x)
    torch.npu.manual_seed(5)
    (recomputed,) = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).sum(), x)
    assert torch.equal(plain, recomputed)


def test_indexing_sorting_and_views() -> None:
    """These operations move, select or round numbers once, so their results must be bit-equal."""
    host = torch.randn(6, 5)
    for operation in (
        lambda x: x.sort(-1)[0],
        lambda x: x.topk(3, 0)[1],
        lambda x: x[x > 0],
        lambda x: x[:, [0, 2]],
        lambda x: x.clone().index_put_((torch.tensor([0, 0]).to(x.device),), x[:1], accumulate=True),
        lambda x: x.t()[1:].contiguous() + 1,
        lambda x: torch.cat([x[:0], x.expand(2, 6, 5)[1]]),
        lambda x: torch.nonzero(x > 0),
        lambda x: torch.unique(x.round()),
        lambda x: torch.where(x > 0, x, 0.0).cumsum(0),
        lambda x: x.masked_fill(x > 0, 7).half().float(),
        lambda x: torch.view_as_real(torch.complex(x, -x).conj() * 2),
        lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
    ):
        assert torch.equal(operation(host.to(NPU)).cpu(), operation(host))


def test_attention_with_a_mask_of_its_own() -> None:
    host = torch.randn(6, 5, generator=torch.Generator().manual_seed(6))
    visible = host @ host.t() > -1

    def attended(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            x[None], x[None], x[None], attn_mask=visible.to(x.device)[None]
        )

    def formula() -> list[torch.Tensor]:
        x = host.double()
        scores = (x @ x.t() / 5**0.5).masked_fill(~visible, float("-inf"))
        return [(torch.softmax(scores, -1) @ x)[None]]

    assert not bool(visible.all())
    permitted(formula, torch.float32).require([attended(host.to(NPU))])


# In the words of torch_npu, of torch, or of the simulated device.
SAME_DEVICE = "same device|desired device NPU"


def test_devices_are_not_mixed() -> None:
    device, host = torch.ones(3, device=NPU), torch.ones(3)
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        device + host
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch.cat([device, host])
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch._foreach_add([device, device], [host, device])
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch.add(device, device, out=host)
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch.add(host, host, out=device)
    assert (torch.ones(3, device=NPU) + torch.tensor(1.0)).tolist() == [2, 2, 2]


def test_a_copy_to_the_host_that_need_not_wait_is_page_locked() -> None:
    x = torch.arange(6.0, device=NPU).view(2, 3)
    for copied in (x.to("cpu", non_blocking=True), x.T.to("cpu", torch.float64, non_blocking=True)):
        torch.npu.synchronize()
        assert copied.is_pinned()
        assert copied.sum().item() == 15
    assert not x.to("cpu").is_pinned()
    assert x.to("cpu", non_blocking=True).tolist() == x.tolist()
    assert x.T.to("cpu", non_blocking=True).tolist() == x.T.tolist()


def test_an_uncovered_operator_fails_with_its_name() -> None:
    with pytest.raises(RuntimeError, match="error: NMSWithMask"):
        torch.ops.npu.npu_nms_with_mask(torch.ones(2, 5, device=NPU), 0.5)


def launched(tmp_path: Path, code: str, **environment: str) -> str:
    script = tmp_path / "program.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "harness.devices.sim.start.sim_launch", str(script)],
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    # torch_npu prints on standard output that there is no CANN toolkit.
    lines = [line for line in done.stdout.splitlines() if "ASCEND_HOME_PATH" not in line]
    return "\n".join(lines) + (done.stderr if done.returncode else "")


def test_memory_ends_with_the_error_of_torch_npu(tmp_path: Path) -> None:
    code = """
import torch
x = torch.empty(300 << 20, dtype=torch.uint8, device="npu")
try:
    torch.empty(2 << 30, dtype=torch.uint8, device="npu")
except RuntimeError as error:  # its subclass torch.OutOfMemoryError only from torch_npu 2.10 on
    print(str(error)[:60])
del x
torch.npu.empty_cache()
import ctypes
from harness.evidence import runtime_library
nothing = ctypes.c_void_p()
runtime_library().aclrtMalloc(ctypes.byref(nothing), ctypes.c_size_t(0), 0)
runtime_library().aclrtFree(nothing)
free, total = torch.npu.mem_get_info()
print(total == 1 << 30, free == total, torch.npu.memory_allocated())
"""
    out = launched(tmp_path, code, NPU_SIM_MEMORY_GB="1")
    assert out.splitlines()[0].startswith("NPU out of memory. Tried to allocate 2.00 GiB"), out
    assert out.splitlines()[1] == "True True 0"


def test_a_device_can_have_more_memory_than_the_host(tmp_path: Path) -> None:
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    code = f"""
import torch
x = torch.empty({2 * host} << 30, dtype=torch.uint8, device="npu")
x[-1] = 3
print(x[-1].item())
"""
    assert launched(tmp_path, code, NPU_SIM_MEMORY_GB=str(3 * host)) == "3"


UNSAFE = """
import torch
from torch_npu.npu import _recovery as recovery
x, y = torch.ones(3, device="npu"), torch.ones(3, device="npu")
recovery.set_npu_tensor_unsafe_check_flag(True)
recovery.mark_all_npu_tensor_unsafe(0)
fresh = torch.ones(3).npu()
# The same call twice: a call that was accepted once is not verified again.
for read in (lambda: x + y, lambda: x + y, x.cpu, lambda: fresh.copy_(x), lambda: torch._foreach_copy_([fresh], [x]),
             lambda: torch.add(fresh, fresh, out=x)):
    try:
        read()
        print("accepted")
    except RuntimeError as error:
        print(str(error).splitlines()[0])
x.copy_(fresh)
torch._foreach_copy_([y], [torch.zeros(3)])
print((x + y).tolist())
"""


def test_data_that_a_restart_made_unsafe_are_refused_until_they_are_replaced(tmp_path: Path) -> None:
    *refused, safe = launched(tmp_path, UNSAFE).splitlines()
    assert refused == ["There is unsafe data in the input tensor."] * 6
    assert safe == "[1.0, 1.0, 1.0]"


def test_a_late_error_surfaces_where_the_host_waits(tmp_path: Path) -> None:
    """Submitting work succeeds. Synchronising and every way of copying numbers to the host fail."""
    code = """
import torch
x = torch.ones(3, device="npu")
torch.npu.synchronize()
y = x * 2 + torch.ones(3).to("npu")
for wait in (torch.npu.synchronize, y.cpu, y.tolist, y.sum().item, lambda: torch.empty(3).copy_(y)):
    try:
        wait()
        print("fine")
    except RuntimeError as error:
        print("507054" in str(error))
print((y * 2).device)
"""
    out = launched(tmp_path, code, NPU_SIM_SYNC_FAIL="2:507054").splitlines()
    assert [line for line in out if line in {"fine", "True", "False", "npu:0"}] == ["True"] * 5 + ["npu:0"], (
        out
    )


CONFIGURED = {
    "NPU_SIM_SOC": "Ascend910_9391",
    "NPU_SIM_CANN": "8.3.RC2",
    "NPU_SIM_HANG": "1:0.4",
    "NPU_SIM_COUNT": "2",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "NPU_SIM_FAULTS": "exp;scale;any;factor=3",
    "NPU_SIM_COUNT_CALLS": "1",
}
PROGRAM = """
import json, os, sys, time, torch, torch_npu
from torch_npu.npu.utils import get_cann_version
found = {"name": __name__, "script": sys.argv[0], "facts": json.loads(os.environ["NPU_MATRIX_DEVICE_FACTS"])}
begun = time.monotonic()
torch.npu.synchronize()
found["hang"] = time.monotonic() - begun
found["soc"], found["cann"] = torch.npu.get_device_name(0), get_cann_version("CANN")
a, b = torch.ones(3, device="npu:0"), torch.ones(3, device="npu:1")
c = a.to("npu:1") + b
found["sum"] = [torch.npu.device_count(), str(c.device), c.tolist(), str(torch.zeros(2, device="npu:1").device)]
try:
    a + b
except RuntimeError as error:
    found["refused"] = str(error)
with torch.npu.device(1):
    found["current"] = [str(torch.ones(2, device="npu").device), str(torch.rand(2, device="npu").device)]
w = torch.ones(3, device="npu:1", requires_grad=True)
(w * b).sum().backward()
found["gradient"], found["allocated"] = str(w.grad.device), torch.npu.memory_allocated(1)
found["exp"] = torch.exp(torch.zeros(2, device="npu")).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output and the report of a program that runs with all environment variables at once.

    A single process tests all of them, because importing torch_npu takes most of its time.
    """
    folder = tmp_path_factory.mktemp("configured")
    report = folder / "report.jsonl"
    out = launched(folder, PROGRAM, **CONFIGURED, NPU_SIM_REPORT=str(report))
    (line,) = (line for line in out.splitlines() if line.startswith("{"))
    return {**json.loads(line), "report": json.loads(report.read_text().splitlines()[-1])}


def test_soc_cann_version_and_a_hang_are_configured(configured: dict[str, Any]) -> None:
    assert (configured["soc"], configured["cann"]) == ("Ascend910_9391", "8.3.RC2")
    # The limit is half of the configured time, because clocks are coarse. Without a hang this takes no time.
    assert configured["hang"] > 0.2


def test_several_devices_and_expandable_segments(configured: dict[str, Any]) -> None:
    assert configured["sum"] == [2, "npu:1", [2.0, 2.0, 2.0], "npu:1"]
    assert "same device" in configured["refused"]
    assert configured["current"] == ["npu:1", "npu:1"]
    assert configured["gradient"] == "npu:1"
    assert configured["allocated"] > 0


def test_faults_from_the_environment_are_reported(configured: dict[str, Any], tmp_path: Path) -> None:
    assert configured["exp"] == [3.0, 3.0]
    assert [fault["hits"] for fault in configured["report"]["faults"]] == [1]
    assert configured["report"]["calls"]["aten::exp"] == 1
    assert "unknown kind" in launched(tmp_path, "", NPU_SIM_FAULTS="exp;explode")


def test_the_program_is_main_with_its_own_arguments(configured: dict[str, Any]) -> None:
    facts = configured["facts"]
    assert configured["name"] == "__main__"
    assert configured["script"].endswith("program.py")
    assert (facts["simulated"], facts["device"]) == (True, "npu:0")
    assert facts["torch_npu"]


def test_ray_counts_the_devices() -> None:
    npu = pytest.importorskip("ray._private.accelerators.npu").NPUAcceleratorManager
    assert npu.get_current_node_num_accelerators() == torch.npu.device_count()
    assert npu.get_current_node_accelerator_type() == torch.npu.get_device_name(0)


def test_importing_the_plugin_installs_the_device(tmp_path: Path) -> None:
    code = "import harness.devices.sim.start.sim_plugin, torch; print((torch.ones(2, device='npu') + 1).tolist())"
    for environment, expected in (({}, "[2.0, 2.0]"), ({"ASCEND_RT_VISIBLE_DEVICES": ""}, "Error")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert expected in done.stdout + done.stderr


def test_verl_takes_the_device_for_an_npu() -> None:
    pytest.importorskip("verl")
    from verl.utils.device import get_device_name, get_nccl_backend, is_npu_available

    assert is_npu_available
    assert get_device_name() == "npu"
    assert get_nccl_backend() == "hccl"


@pytest.mark.parametrize("name", ["vanilla", "gspo"])
def test_the_losses_of_verl_equal_the_cpu(name: str) -> None:
    pytest.importorskip("verl")
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    config = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1)
    generator = torch.Generator().manual_seed(0)
    old, new, advantages = (torch.randn(4, 9, generator=generator) * 0.3 for _ in range(3))
    mask = (torch.rand(4, 9, generator=generator) < 0.8).float()

    def value_and_gradient(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        inputs = [x.to(device, dtype) for x in (old, new, advantages, mask)]
        leaf = inputs[1].requires_grad_()
        loss = get_policy_loss_fn(name)(
            old_log_prob=inputs[0],
            log_prob=leaf,
            advantages=inputs[2],
            response_mask=inputs[3],
            loss_agg_mode="token-mean",
            config=config,
        )[0]
        return [loss.detach().cpu(), torch.autograd.grad(loss, leaf)[0].cpu()]

    expected = permitted(lambda: value_and_gradient("cpu", torch.float64), torch.float32)
    expected.require(value_and_gradient(NPU, torch.float32))
    with SIMULATION.faults.injected(FaultSpec(op="exp", kind="scale", factor=1 + 2.0**-12)) as (wrong,):
        found = value_and_gradient(NPU, torch.float32)
    assert wrong.hits
    assert max(expected.budgets(found)) > 1


def test_log_probs_of_verl_go_through_the_fused_operator() -> None:
    pytest.importorskip("verl")
    from verl.utils.torch_functional import logprobs_from_logits

    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(3, 5, 11, generator=generator)
    labels = torch.randint(0, 11, (3, 5), generator=generator)
    with SIMULATION.faults.injected(FaultSpec(op="npu_cross_entropy_loss", kind="scale", factor=1.0)) as (
        hit,
    ):
        actual = logprobs_from_logits(logits.to(NPU), labels.to(NPU))
    assert hit.hits == 1

    def formula() -> list[torch.Tensor]:
        return [torch.log_softmax(logits.double(), -1).gather(-1, labels[..., None]).squeeze(-1)]

    permitted(formula, torch.float32).require([actual])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "operator",
    [
        lambda x, y: functional.binary_cross_entropy_with_logits(x, y, y + 3, reduction="none"),
        lambda x, y: functional.soft_margin_loss(x, y * 2 - 1, reduction="none"),
        lambda x, y: functional.smooth_l1_loss(x, y, reduction="none", beta=0.3),
        lambda x, _y: torch.logsumexp(x, 1),
    ],
    ids=["binary_cross_entropy_with_logits", "soft_margin_loss", "smooth_l1_loss", "logsumexp"],
)
def test_what_is_one_kernel_rounds_once(operator: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """CANN has one kernel for each of these; the CPU has several operators, and each rounds."""
    drawn = torch.Generator().manual_seed(3)
    x = (torch.randn(64, 10, generator=drawn) * 3).to(dtype)
    y = torch.randint(0, 2, (64, 10), generator=drawn).to(dtype)
    found, expected = operator(x.npu(), y.npu()).cpu(), operator(x.float(), y.float()).to(dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
