"""The check `npu-ops` with small wheels of verl, vllm-ascend and torch_npu."""

from __future__ import annotations

from typing import Any

import pytest

from harness.compat.checks import CHECKS
from harness.compat.operators.operator_check import holds, judge, run
from harness.compat.operators.operator_measurements import OPERATORS_FORMAT
from harness.outcome import Status

UNLOCKED = {"pins": {"requirements": []}, "platform": {"python": "3.11", "arch": "x86_64", "host": True}}
CHECK = next(check for check in CHECKS if check.name == "npu-ops")
OLD = ["npu_swiglu(Tensor self, int dim=-1) -> Tensor", "npu_rope(Tensor q, *, str layout='BSH') -> Tensor"]
NEW = [OLD[0], "npu_rope(Tensor q, *, str layout='BSND') -> Tensor", "npu_quant(Tensor x) -> Tensor"]


def schemas(lines: list[str], memory: str = "") -> dict[str, str]:
    return {
        "torch_npu/csrc/aten/npu_native_functions.yaml": "custom:\n"
        + "".join(f'- func: "{s}"\n' for s in lines),
        "torch_npu/npu/__init__.py": "from . import memory\n",
        "torch_npu/npu/memory.py": f"def empty_cache(): ...\n{memory}",
    }


@pytest.fixture
def stack(wheels: Any) -> Any:
    wheels.add("torch-npu", "2.7.1", files=schemas(OLD))
    wheels.add("torch-npu", "2.9.0", files=schemas(NEW, "def trim(): ...\n"))
    return wheels


def consumer(stack: Any, name: str, text: str, *requires: str) -> None:
    module = name.replace("-", "_")
    stack.add(name, "1.0", *requires, files={f"{module}/ops.py": f"import torch\nimport torch_npu\n{text}\n"})


def release(version: str) -> dict[str, str]:
    return {"package": "x", "kind": "release", "version": version}


def run_check(context: Any, torch_npu: str, **versions: str) -> Any:
    facets = {
        **UNLOCKED,
        "torch_npu": release(torch_npu),
        "verl_tree": release(""),
        "vllm_ascend": release(""),
    }
    measured = run(context({**facets, **{name: release(version) for name, version in versions.items()}}))
    assert OPERATORS_FORMAT.read(OPERATORS_FORMAT.write(measured.measurements)) == measured.measurements
    return measured.measurements, judge(measured.measurements, {})


def test_calls_that_fit_pass(stack: Any, context: Any) -> None:
    consumer(stack, "verl", "torch_npu.npu_swiglu(x, dim=1)\ntorch.npu.memory.empty_cache()")
    _, judgement = run_check(context, "2.7.1", verl_tree="1.0")
    assert judgement.status is Status.PASS


def test_a_package_in_which_no_operator_call_is_found_does_not_pass(stack: Any, context: Any) -> None:
    """A source package without its folder of modules, for example."""
    stack.add("verl", "1.0", files={"verl/__init__.py": ""})
    _, judgement = run_check(context, "2.7.1", verl_tree="1.0")
    assert judgement.status is Status.INCONCLUSIVE
    assert "No operator call was found in verl" in judgement.reasons[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("torch_npu.npu_quant(x)", "verl/ops.py:3: npu_quant is not in this torch_npu"),
        ("torch_npu.npu_swiglu(x, dims=1)", "npu_swiglu has no parameter 'dims'"),
        ("torch.npu.memory.trim()", "torch_npu.npu.memory has no trim"),
    ],
)
def test_calls_that_do_not_fit_fail_with_their_location(
    stack: Any, context: Any, line: str, message: str
) -> None:
    consumer(stack, "verl", line)
    _, judgement = run_check(context, "2.7.1", verl_tree="1.0")
    assert judgement.status is Status.FAIL
    assert message in judgement.reasons[0]


def test_a_guarded_call_does_not_fail(stack: Any, context: Any) -> None:
    consumer(stack, "verl", "try:\n    torch_npu.npu_quant(x)\nexcept AttributeError:\n    pass")
    measurements, judgement = run_check(context, "2.7.1", verl_tree="1.0")
    assert [use.guarded for use in measurements.uses] == [True]
    assert judgement.status is Status.PASS


def test_uses_that_fail_with_the_pinned_torch_npu_too_do_not_fail_the_cell(stack: Any, context: Any) -> None:
    consumer(stack, "vllm-ascend", "torch_npu.npu_nowhere(x)\ntorch_npu.npu_quant(x)", "torch-npu==2.9.0")
    _, own = run_check(context, "2.9.0", vllm_ascend="1.0")
    assert own.status is Status.PASS
    assert any("npu_nowhere" in reason for reason in own.reasons)
    _, other = run_check(context, "2.7.1", vllm_ascend="1.0")
    assert other.status is Status.FAIL
    assert "npu_quant" in other.reasons[0]
    assert other.remedies == ("vllm-ascend pins torch_npu 2.9.0.",)


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ("torch_npu.npu_rope(q)", Status.FAIL),
        ("torch_npu.npu_rope(q, layout='BSH')", Status.PASS),
        ("torch_npu.npu_rope(q, **options)", Status.PASS),
    ],
)
def test_a_changed_default_is_found_in_calls_that_use_it(
    stack: Any, context: Any, call: str, status: Status
) -> None:
    consumer(stack, "vllm-ascend", call, "torch-npu==2.7.1")
    _, judgement = run_check(context, "2.9.0", vllm_ascend="1.0")
    assert judgement.status is status
    if status is Status.FAIL:
        assert "default of layout changed from 'BSH' to 'BSND'" in judgement.reasons[0]


def test_a_version_that_is_not_on_the_index_gives_not_run(stack: Any, context: Any) -> None:
    consumer(stack, "verl", "torch_npu.npu_swiglu(x)")
    for torch_npu, verl in (("2.7.1", "9.9"), ("9.9", "1.0")):
        _, judgement = run_check(context, torch_npu, verl_tree=verl)
        assert judgement.status is Status.NOT_RUN
        assert "9.9" in judgement.reasons[0]


def test_a_commit_without_a_mirror_gives_not_run(
    stack: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = {"package": "verl", "kind": "commit", "version": "0.6.1", "commit": "d" * 40, "repository": "r"}
    facets = {**UNLOCKED, "torch_npu": release("2.7.1"), "verl_tree": commit, "vllm_ascend": release("")}
    monkeypatch.delenv("NPU_MATRIX_MIRRORS", raising=False)
    measured = run(context(facets))
    assert judge(measured.measurements, {}).status is Status.NOT_RUN
    assert not holds(measured.measurements)
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", "/somewhere")
    assert not holds(measured.measurements), "a folder without the commit is no reason to run again"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"torch_npu": release("")}, "no torch_npu"),
        ({"torch_npu": {"kind": "commit", "version": "2.6.0", "commit": "v7.2"}}, "v7.2"),
        ({"verl_tree": release("")}, "neither verl nor vllm-ascend"),
        ({}, ""),
    ],
)
def test_the_check_applies_only_to_cells_with_these_packages(changed: dict[str, Any], message: str) -> None:
    facets = {"torch_npu": release("2.7.1"), "verl_tree": release("1.0"), "vllm_ascend": release("")}
    reason = CHECK.applies({**facets, **changed})
    assert message in reason
    assert bool(message) == bool(reason)
