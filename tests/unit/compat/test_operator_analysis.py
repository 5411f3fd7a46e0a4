from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_zip import write_zip

from harness.compat.operators.operator_analysis import (
    TorchNpuApi,
    check_calls,
    find_misuses,
    read_torch_npu_uses,
)
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.surface.operator_schema import (
    OperatorSchemas,
    parse_schema,
    read_operators,
    schema_changes,
)
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.operator_calls import OperatorCall, find_operator_calls
from harness.compat.uses.package_pairs import Package
from harness.compat.uses.package_uses import find_uses
from harness.errors import InputError
from harness.sources.python_syntax import parse_source

OLD = [
    "npu_swiglu(Tensor self, int dim=-1) -> Tensor",
    "npu_rotary(Tensor(a!) query, Tensor cos, *, str layout='BSH', int[2] pad=[0, 0]) -> (Tensor(a!), Tensor)",
    "npu_gone(Tensor x) -> Tensor",
    "npu_cast(Tensor self, int format, int? dtype=None) -> Tensor",
    "npu_cast.Tensor(Tensor self, Tensor dst) -> Tensor",
]
NEW = [
    "npu_swiglu(Tensor self, int dim=-1, int limit=0) -> Tensor",
    "npu_rotary(Tensor(a!) query, Tensor cos, *, str layout='BSND', int[2] pad=[0, 0]) -> (Tensor(a!), Tensor)",
    "npu_cast(Tensor self, int format, *, int? dtype=None) -> Tensor",
    "npu_cast.Tensor(Tensor self, Tensor dst) -> Tensor",
    "npu_added(Tensor x) -> ()",
]


def wheel(path: Path, schemas: Iterable[str]) -> Path:
    lines = "".join(f'- func: "{schema}"\n' for schema in schemas)
    files = {
        "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml": f"backend: NPU\ncustom:\n{lines}",
        "torch_npu/op_plugin/atb/_atb_api_docs.py": "_npu_atb_only = 1\n",
    }
    return write_zip(path, files)


@pytest.fixture
def old(tmp_path: Path) -> OperatorSchemas:
    return read_operators(wheel(tmp_path / "old.whl", OLD))


@pytest.fixture
def new(tmp_path: Path) -> OperatorSchemas:
    return read_operators(wheel(tmp_path / "new.whl", NEW))


def calls_in(source: str) -> tuple[OperatorCall, ...]:
    tree = parse_source(source.encode("utf-8", "replace"))
    return find_operator_calls(tree, "a.py") if tree else ()


def problems(source: str, operators: OperatorSchemas) -> list[str]:
    calls = calls_in(f"import torch, torch_npu\n{source}")
    return [finding.text for finding in check_calls("verl", calls, operators)]


@pytest.mark.parametrize(
    "source",
    [
        "torch_npu.npu_swiglu(x)",
        "torch_npu.npu_swiglu(x, dim=1)",
        "torch_npu.npu_swiglu(input=x, dim=1)",
        "torch.ops.npu.npu_swiglu(x, 1)",
        "torch.ops.npu.npu_cast.Tensor(x, y)",
        "torch_npu.npu_rotary(q, c, layout='BSH')",
        "torch_npu.npu_swiglu(*arguments)",
        "torch_npu.npu_swiglu(x, **options)",
        "torch_npu._npu_atb_only(x)",
        "torch_npu.Format(x)",
        "other.npu_nothing(x)",
    ],
)
def test_calls_that_fit_or_cannot_be_checked_are_not_reported(source: str, old: OperatorSchemas) -> None:
    assert problems(source, old) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("torch_npu.npu_swiglu(x, dims=1)", "has no parameter 'dims'"),
        ("torch_npu.npu_swiglu(self=x)", "has no parameter 'self'"),
        ("torch_npu.npu_swiglu()", "misses input"),
        ("torch_npu.npu_swiglu(x, 1, dim=1)", "gets 'dim' twice"),
        ("torch_npu.npu_rotary(q, c, 'BSH')", "takes 2 positional arguments, but 3 are passed"),
        ("torch_npu.npu_mla_process(x)", "npu_mla_process is not in this torch_npu"),
        ("import torch_npu as t\nt.npu_swiglu(a, b, c)", "takes 2 positional"),
        ("from torch_npu import npu_swiglu as s\ns(a, b, c)", "takes 2 positional"),
        ("torch.ops.npu.npu_absent(x)", "not in this torch_npu"),
    ],
)
def test_calls_that_must_fail_are_found(source: str, message: str, old: OperatorSchemas) -> None:
    [text] = problems(source, old)
    assert message in text


def test_calls_are_checked_against_the_operators_of_the_version(
    old: OperatorSchemas, new: OperatorSchemas
) -> None:
    assert problems("torch_npu.npu_swiglu(x, limit=3)", old)
    assert not problems("torch_npu.npu_swiglu(x, limit=3)", new)
    assert problems("torch_npu.npu_gone(x)", new)
    assert problems("torch_npu.npu_cast(x, 2, torch.float)", new)


@pytest.mark.parametrize(
    ("source", "guarded"),
    [
        ("try:\n    torch_npu.npu_absent(x)\nexcept AttributeError:\n    pass", True),
        ("try:\n    pass\nexcept AttributeError:\n    torch_npu.npu_absent(x)", False),
        ("try:\n    torch_npu.npu_absent(x)\nexcept KeyError:\n    pass", False),
        ("if hasattr(torch_npu, 'npu_absent'):\n    torch_npu.npu_absent(x)", True),
        ("if ready:\n    torch_npu.npu_absent(x)", False),
        ("HAS = hasattr(torch_npu, 'npu_absent')\ndef f():\n    torch_npu.npu_absent(x)", True),
        ("HAS = hasattr(torch_npu, 'npu_other')\ndef f():\n    torch_npu.npu_absent(x)", False),
        ("f = getattr(torch_npu, 'npu_absent', None)\ndef g():\n    torch_npu.npu_absent(x)", True),
        ("if is_mxfp8_npu:\n    torch_npu.npu_absent(x)", True),
        ("if is_310p():\n    torch_npu.npu_absent(x)", True),
        ("if self.config.soc_version in new:\n    torch_npu.npu_absent(x)", True),
        ("if is_fast:\n    torch_npu.npu_absent(x)", False),
    ],
)
def test_guards_are_recognised(source: str, guarded: bool, old: OperatorSchemas) -> None:
    [finding] = check_calls("verl", calls_in(f"import torch_npu\n{source}"), old)
    assert finding.guarded is guarded


def test_schema_changes_are_breaking_or_silent(old: OperatorSchemas, new: OperatorSchemas) -> None:
    changes = {(change.name, change.text): change for change in schema_changes(old, new)}
    assert changes["npu_gone", "removed"].breaking
    assert not changes["npu_added", "added"].breaking
    assert not changes["npu_swiglu", "argument limit added"].breaking
    assert changes["npu_cast", "argument dtype became keyword-only"].breaking
    silent = changes["npu_rotary", "default of layout changed from 'BSH' to 'BSND'"]
    assert silent.silent
    assert not silent.breaking
    assert not schema_changes(old, old)


def test_arguments_without_a_default_are_required(old: OperatorSchemas) -> None:
    """If every argument were read as optional, no other test would fail."""
    needed = {a.name for o in old.schemas["npu_rotary"] for a in o.arguments if a.default is None}
    assert needed == {"query", "cos"}


def test_results_and_brackets_are_counted() -> None:
    schema = parse_schema("npu_x(Tensor a, int[3] b=[1, 2, 3], str s='a, b') -> (Tensor(a!), Tensor[], int)")
    assert [argument.name for argument in schema.arguments] == ["a", "b", "s"]
    assert schema.returns == 3
    assert parse_schema("npu_y() -> ()").returns == 0


def test_calls_of_a_package_are_read_and_unparsed_files_listed(tmp_path: Path, old: OperatorSchemas) -> None:
    files = {
        "verl/a.py": "import torch_npu\ntorch_npu.npu_absent(1)\n",
        "verl/broken.py": "def torch_npu(:\n",
        "verl/data.bin": b"npu",
    }
    found = find_uses(ApiSurface(write_zip(tmp_path / "verl.whl", files)), {"torch_npu"})
    [finding] = check_calls("verl", found.calls, old)
    assert found.unparsed == ("verl/broken.py",)
    assert (finding.file, finding.line, finding.kind) == ("verl/a.py", 2, "missing")


@pytest.mark.parametrize("data", [b"no zip", b"PK\x03\x04"])
def test_damaged_wheels_are_input_errors(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(data)
    for read in (read_operators, ApiSurface):
        with pytest.raises(InputError) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_a_wheel_without_operator_signatures_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_operators(write_zip(tmp_path / "other.whl", {"a.py": ""}))


@given(text=st.text(max_size=120))
def test_any_source_can_be_read(text: str) -> None:
    calls_in(text)


@pytest.mark.parametrize(("caller", "guarded"), [("", True), ("show(1)\n", False)])
def test_a_name_that_torch_npu_lacks_in_a_function_that_nothing_calls(
    tmp_path: Path, caller: str, guarded: bool
) -> None:
    files = {"torch_npu/npu/__init__.py": "def current_stream():\n    return 1\n"}
    torch_npu = write_zip(tmp_path / "torch_npu.whl", files)
    api = TorchNpuApi(
        version="2.8.0",
        operators=OperatorSchemas(schemas={}, unsigned=frozenset()),
        surface=ApiSurface(torch_npu),
    )
    text = f"import torch_npu\n\n\ndef show(x):\n    torch_npu.npu._launch(x)\n\n\n{caller}"
    file = write_zip(tmp_path / "package.whl", {"vllm_ascend/__init__.py": "", "vllm_ascend/utils.py": text})
    consumer = Package(name="vllm-ascend", version="0.13.0", file=file)
    uses = read_torch_npu_uses(consumer, AnalysisCache(folder=tmp_path / "cache", code="x"))
    (misuse,) = find_misuses("vllm-ascend", uses, api)
    assert misuse.guarded is guarded
