"""Lists of versions as cells: requirements are replaced, and aarch64 is the host, only for stacks on an NPU."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.matrix.model.cell import Cell
from harness.matrix.reading.load_matrix import load_matrix
from harness.package import shipped_file
from harness.plan.keys.facets import FACETS, READS
from harness.settings import load_settings
from harness.workspace.inspection.stack_checks import combination
from harness.workspace.planning.open_plan import facet_inputs


def cell(**axes: str) -> Cell:
    return combination(load_matrix(shipped_file("matrix.yaml")), axes, [], "a list")


def test_without_an_npu_all_requirements_of_vllm_are_in_force():
    found = cell(vllm="0.6.3", torch="2.6.0")
    assert found.overrides == ()
    assert found.axes["arch"] == "x86_64"


@pytest.mark.parametrize("other", [{"torch_npu": "2.5.1"}, {"cann": "8.0.0"}, {"device": "sim"}])
def test_on_an_npu_vllm_is_built_without_kernels(other):
    found = cell(vllm="0.9.1", torch="2.5.1", **other)
    assert any(pin.of == "vllm" and pin.requirement == "torch" for pin in found.overrides)
    assert "arch" not in found.axes


def test_a_stated_architecture_stays():
    assert cell(vllm="0.6.3", torch="2.6.0", arch="aarch64").axes["arch"] == "aarch64"


def test_cells_of_other_architectures_do_not_share_the_facet_platform():
    assert "arch" in READS["platform"]


def test_packages_of_a_list_alone_are_paired_and_torch_npu_is_not(tmp_path: Path) -> None:
    """torch_npu adds names to torch before it uses them."""
    matrix = load_matrix(shipped_file("matrix.yaml"))
    listed = combination(matrix, {"torch": "2.7.1", "torch_npu": "2.7.1"}, ["peft==0.17.0"], "a list")
    inputs = facet_inputs(load_settings({}, {}, tmp_path), matrix)
    assert FACETS["paired"](listed, inputs) == {"torch": "2.7.1", "peft": "0.17.0"}
    assert FACETS["paired"](replace(listed, inspected=False), inputs) == {}
