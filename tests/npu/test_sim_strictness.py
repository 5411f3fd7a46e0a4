"""What the simulated device refuses as torch_npu does, what it computes otherwise, and formats of storage."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

import torch_npu  # noqa: E402 - needs the guards above

from harness.devices.sim.operators.dispatch import make_kernel  # noqa: E402
from harness.devices.sim.operators.schema_plan import plan_of  # noqa: E402
from harness.devices.sim.references.routing import largest  # noqa: E402
from harness.devices.sim.refusals.check_server import Refused, Unknown, classified  # noqa: E402
from harness.devices.sim.refusals.wheel_checks import SOCKET_VARIABLE, WheelChecks  # noqa: E402

SIMULATION = overlay.installed()
pytestmark = pytest.mark.skipif(SIMULATION is None, reason="only on the simulated device")
NPU = torch.device("npu", 0)


CHECKS = SIMULATION.machine.checks if SIMULATION is not None else None


def test_calls_are_verified() -> None:
    """Without the process that verifies, nothing below would mean anything."""
    assert CHECKS is not None
    assert CHECKS.permissive is not None


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # What a data type, a shape, a layout or a number of heads makes torch_npu refuse.
        pytest.param(lambda x: torch.cdist(x.int(), x.int()), "only supports floating", id="dtype"),
        pytest.param(lambda x: x @ x, "shapes cannot be multiplied", id="shape"),
        pytest.param(lambda x: x.sum(5), "out of range", id="dimension"),
        pytest.param(
            lambda x: torch_npu.npu_fusion_attention(*[x.view(1, 3, 4)] * 3, 1, "XYZ"),
            "input_layout should be .*BSH.*ERR01001",
            id="layout",
        ),
        pytest.param(
            lambda x: torch_npu.npu_fusion_attention(*[x.view(1, 3, 4)] * 3, 0, "BSH"), "head", id="heads"
        ),
    ],
)
def test_the_code_of_torch_npu_refuses(call: Any, message: str) -> None:
    for _time in range(2):
        with pytest.raises((RuntimeError, IndexError), match=re.compile(message, re.DOTALL)):
            call(X.to(NPU))


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        # op-plugin's GroupedMatmulKernelNpuOpApi.cpp has both: only the first one judges the argument.
        (
            "Use Tensor input with current cann version, The group type must be 0 or 2, but now is [1]",
            Refused,
        ),
        ("group_list don't support Tensor input with current cann version. Please update cann", Unknown),
        ("aclnnAdd failed, error code is 161002", Unknown),
    ],
)
def test_a_message_about_cann_refuses_a_call_only_with_the_value_it_got(message: str, answer: type) -> None:
    assert isinstance(classified(RuntimeError(message), was_read=False), answer)


def test_in_place_and_host_arguments_are_verified_too() -> None:
    x = X.to(NPU)
    with pytest.raises(RuntimeError, match="must match the size"):
        x.add_(torch.ones(2, device=NPU))
    assert torch.equal(x.cpu(), X)
    # Only the dimensionless tensor may be on the host.
    assert (x + torch.tensor(2.0)).cpu().eq(3).all()
    with pytest.raises(RuntimeError, match="same device"):
        x + X


def counting(kernel: Any = lambda *_args: None) -> tuple[Any, list[str | None], WheelChecks]:
    noted: list[str | None] = []
    checks = WheelChecks(os.environ[SOCKET_VARIABLE].partition(":")[0], noted.append)
    return checks.checked("aten::mm", kernel), noted, checks


def test_equal_calls_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, noted, checks = counting()
    asked: list[str] = []
    ask = checks._ask

    def counted(*call: Any) -> Any:
        asked.append(call[0])
        return ask(*call)

    monkeypatch.setattr(checks, "_ask", counted)
    a, b = torch.ones(3, 4, device=NPU), torch.ones(4, 2, device=NPU)
    for _time in range(3):
        run(a, b)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            run(a, a)
    # A refusal is asked for again, because the message depends on more than what identifies the call.
    assert (len(asked), noted, checks.permissive) == (4, [], [])


def test_what_cannot_be_verified_is_noted_once() -> None:
    run, noted, checks = counting()
    for _time in range(2):
        run(object())
    assert (noted, checks.permissive) == (["aten::mm"], ["aten::mm"])
    lost: list[str | None] = []
    assert WheelChecks(None, lost.append).permissive is None
    assert lost == [None]


def test_a_process_that_crashes_leaves_the_operator_permissive() -> None:
    run, noted, checks = counting()
    x = torch.ones(2, 2, device=NPU)
    run(x, x)
    connection: Any = checks._connection
    connection.send("no call")
    with pytest.raises((EOFError, OSError)):
        connection.recv()
    run(torch.ones(3, 3, device=NPU), torch.ones(3, 3, device=NPU))
    assert noted == ["aten::mm"]
    other = checks.checked("aten::add.Tensor", lambda *_args: None)
    with pytest.raises(RuntimeError, match="must match"):
        other(torch.ones(2, device=NPU), torch.ones(3, device=NPU))


def test_a_forked_process_has_a_connection_of_its_own() -> None:
    script = """
import os, torch, torch_npu
def refused(x):
    try:
        x @ torch.ones(3, 4, device="npu")
    except RuntimeError as error:
        return "cannot be multiplied" in str(error)
from harness.devices.sim.start import overlay
checks = overlay.installed().machine.checks
spec = ("aten::mm", (torch.ones(3, 4), torch.ones(3, 4)), {})
assert checks._ask(*spec) is not None
first = checks._connection
if not os.fork():
    assert checks._connection is None
    os._exit(7 if checks._ask(*spec) is not None else 8)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert checks._connection is first and refused(torch.ones(3, 4, device="npu"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_results_grow_into_their_out_arguments() -> None:
    x = torch.arange(12.0, device=NPU).view(3, 4)
    for before in (0, 1):
        out = torch.empty(before, device=NPU)
        torch.add(x, x, out=out)
        assert out.tolist() == (x.cpu() * 2).tolist()
    out = torch.empty(2, 2, device=NPU)
    torch.cat([x, x], out=out)
    assert out.tolist() == torch.cat([x.cpu()] * 2).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_that_the_cpu_lacks_are_rounded_from_float32(dtype: torch.dtype) -> None:
    x = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=dtype)
    values = torch.linalg.inv(x.to(NPU))
    assert values.dtype is dtype
    assert values.tolist() == torch.linalg.inv(x.float()).to(dtype).tolist()


def test_classes_can_be_int32() -> None:
    x = torch.randn(3, 4)
    targets = torch.tensor([0, 1, 2])
    found = torch.nn.functional.cross_entropy(x.to(NPU), targets.int().to(NPU))
    assert found.item() == torch.nn.functional.cross_entropy(x, targets).item()


def test_lengths_of_packed_sequences_are_on_the_host() -> None:
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 4, device=NPU), torch.tensor([3, 2]))
    assert (packed.data.device, packed.batch_sizes.tolist()) == (NPU, [2, 2, 1])


def test_private_formats_are_seen_and_change_no_numbers() -> None:
    x = torch.randn(20, 24)
    private = torch_npu.npu_format_cast(x.to(NPU), 29)
    assert int(torch_npu.get_npu_format(private)) == 29
    # FRACTAL_NZ pads both dimensions to 16: 32 x 32 elements of 4 bytes.
    assert private.untyped_storage().nbytes() == 4096
    assert torch.equal(private.cpu(), x)
    assert torch.equal((private + 1).cpu(), x + 1)
    back = torch_npu.npu_format_cast(private, 2)
    assert (int(torch_npu.get_npu_format(back)), back.tolist()) == (2, x.tolist())


@pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel"), reason="torch before 2.9 hides replaced kernels"
)
def test_a_cast_between_base_formats_renames_the_tensor() -> None:
    x = torch.ones(2, 2, 3, 3, device=NPU)
    for acl_format in (1, 0, 2):
        out = torch_npu.npu_format_cast(x, acl_format)
        assert (int(torch_npu.get_npu_format(out)), int(torch_npu.get_npu_format(x))) == (
            acl_format,
            acl_format,
        )
        assert out.data_ptr() == x.data_ptr()


def test_a_cast_to_the_same_format_keeps_the_gradient() -> None:
    x = torch.ones(16, 16, device=NPU, requires_grad=True)
    (torch_npu.npu_format_cast(x, 2) * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.cpu().eq(3).all()


def test_masks_of_dropout_are_bits_and_repeat_in_the_backward_pass() -> None:
    torch.npu.manual_seed(1)
    x = torch.ones(300, device=NPU, requires_grad=True)
    result, mask = torch_npu._npu_dropout(x, 0.25)
    assert (mask.dtype, mask.numel()) == (torch.uint8, 48)
    values = set(result.detach().cpu().tolist())
    assert values == {0.0, torch.tensor(1 / 0.75).item()}
    assert 40 < int((result == 0).sum()) < 110
    result.sum().backward()
    assert torch.equal(x.grad.cpu(), result.detach().cpu())
    again = torch_npu.npu_dropout_do_mask(x.detach(), mask, 0.25)[0]
    assert torch.equal(again.cpu(), result.detach().cpu())
    torch.npu.manual_seed(1)
    assert torch.equal(torch_npu._npu_dropout(x, 0.25)[1].cpu(), mask.cpu())


def test_masks_of_bytes_repeat_in_the_backward_pass() -> None:
    x = torch.ones(300, device=NPU, requires_grad=True)
    result, mask = torch_npu._dropout_with_byte_mask(x, 0.25)
    kept = mask.cpu().bool()
    assert (mask.dtype, mask.shape) == (torch.uint8, x.shape)
    assert 190 < int(kept.sum()) < 260
    assert torch.equal(result.detach().cpu(), torch.where(kept, 1 / 0.75, 0.0))
    result.sum().backward()
    assert torch.equal(x.grad.cpu(), result.detach().cpu())


def test_inactive_entries_of_routing_have_no_row() -> None:
    """The golden of op-plugin's test_npu_moe_init_routing_v2.py, written down for one case."""
    rows, numbers, counts, scales = torch_npu.npu_moe_init_routing_v2(
        torch.arange(8.0, device=NPU).view(4, 2),
        torch.tensor([[0, 5], [1, 0], [7, 1], [5, 5]], dtype=torch.int32, device=NPU),
        scale=torch.arange(4.0, device=NPU),
        active_num=8,
        expert_num=2,
        drop_pad_mode=0,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[0, 2],
        quant_mode=-1,
        row_idx_type=0,
    )
    assert rows.tolist() == [[0, 1], [2, 3], [2, 3], [4, 5], *[[0, 0]] * 4]
    assert numbers.tolist() == [0, -1, 2, 1, -1, 3, -1, -1]
    assert counts.tolist() == [2, 2]
    assert scales.tolist() == [0, 1, 1, 2, 0, 0, 0, 0]


def test_equal_scores_keep_the_order_of_experts() -> None:
    if not hasattr(torch_npu, "npu_moe_gating_top_k"):
        pytest.skip("this torch_npu has no npu_moe_gating_top_k")
    experts = torch_npu.npu_moe_gating_top_k(torch.ones(2, 8, device=NPU), 3)[1]
    assert experts.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("count", [1, 3, 9])
def test_selected_experts_are_the_first_of_a_stable_sort(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    # With two values nearly every row has equal scores inside and outside, with 50 some have none.
    for values in (2, 8, 50):
        scores = torch.randint(values, (40, 9), generator=generator).float()
        scores[::3, 4] = float("nan")
        expected = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :count]
        assert torch.equal(largest(scores, count), expected)


def test_host_code_cannot_read_an_address_of_the_device() -> None:
    assert torch.ones(1, device=NPU).data_ptr() >> 52 == 1


@pytest.mark.parametrize("count", [1, 2])
def test_pending_collectives_are_waited_for_by_kernels(count: int) -> None:
    """A kernel first waits for the collectives of its tensors' device; one device is always the current one."""
    waited: list[int | None] = []
    operator = torch.ops.aten.mm.default
    machine = replace(
        SIMULATION.machine,
        pending=SimpleNamespace(value=1),
        enter=waited.append,
        devices=[torch.device("npu", index) for index in range(count)],
    )
    run = make_kernel(plan_of(operator, operator._schema), lambda *_args: torch.zeros(1), machine)
    run(torch.ones(1, 1, device=NPU), torch.ones(1, 1, device=NPU))
    assert waited == ([None] if count == 1 else [0])


def test_traced_calls_are_not_verified() -> None:
    """`torch.compile` traces the kernels that torch_npu has for composite operators, with fake tensors."""
    from torch._functorch.aot_autograd import aot_function, make_boxed_compiler

    x, y = (torch.ones(2, 3, size, device=NPU) for size in (4, 5))
    graphs: list[Any] = []

    @make_boxed_compiler
    def kept(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    traced = aot_function(lambda x, y: torch.matmul(x.transpose(1, 2), y).softmax(-1), kept)
    assert torch.equal(traced(x, y).cpu(), torch.full((2, 4, 5), 0.2))
    assert graphs
