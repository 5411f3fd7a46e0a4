"""Limits that no requirement in force states, as `inspect` tells them."""

import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.compat.knowledge.pack_at_hand import shipped_pack
from harness.compat.resolve.resolve_request import ResolveRequest
from harness.errors import InputError
from harness.matrix.cells.pins import pins_facet
from harness.matrix.reading.load_matrix import load_matrix
from harness.package import shipped_file
from harness.workspace.inspection.inspection_report import Stage
from harness.workspace.inspection.stack_checks import combination
from harness.workspace.inspection.unstated_limits import extra_problems, key_problems, numpy_problems

PACK = shipped_pack().pack
MATRIX = load_matrix(shipped_file("matrix.yaml"))
pytestmark = pytest.mark.skipif(PACK is None, reason="the surface pack is not built here")
OVIS = 'from transformers import AutoConfig\nAutoConfig.register("aimv2", 0)\n'


def fetcher(folder: Path, files: dict[str, str]) -> SimpleNamespace:
    file = folder / "sources.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return SimpleNamespace(sources=lambda _package, _version: SimpleNamespace(file=file))


@pytest.mark.parametrize(
    ("cann", "npu", "numpy", "fails"),
    [
        ("", "2.7.1", "2.0.2", True),
        ("8.3.RC1", "2.7.1", "2.0.2", True),
        ("9.0.0", "2.7.1", "2.0.2", False),
        ("8.3.RC1", "2.7.1", "1.26.4", False),
        ("", "2.10.0", "2.2.6", False),
    ],
)
def test_numpy_2_with_the_shipped_pack(cann, npu, numpy, fails):
    found = list(numpy_problems(PACK, {"torch-npu": npu, "numpy": numpy}, MATRIX, cann))
    assert bool(found) == fails
    assert all(one.fails and one.remedy == "install numpy 1.26.4" for one in found)


@pytest.mark.parametrize(("torch", "fails"), [("2.2.0", True), ("2.4.0", False), ("2.5.1+cpu", False)])
def test_the_extra_of_transformers_for_torch(torch, fails):
    axes = {"torch": torch.partition("+")[0], "transformers": "5.5.0"}
    cell = combination(MATRIX, axes, [], "a list")
    facts = {"python": "3.11", "arch": "aarch64"}
    request = ResolveRequest.from_facets(pins_facet(cell, MATRIX.axes), facts)
    found = list(extra_problems(PACK, {"torch": torch, "transformers": "5.5.0"}, request))
    assert [one.fails for one in found] == [True] * fails


@pytest.mark.parametrize(("init", "stage"), [("from vllm import ovis\n", Stage.IMPORT), ("", Stage.LATER)])
def test_a_key_that_the_later_transformers_has(tmp_path: Path, init: str, stage: Stage):
    source = fetcher(tmp_path, {"vllm/__init__.py": init, "vllm/ovis.py": OVIS})
    (found,) = key_problems(PACK, {"vllm": "0.9.2", "transformers": "4.56.2"}, source)
    assert (found.stage, found.fails) == (stage, stage is Stage.IMPORT)
    assert "vllm/ovis.py:2 registers 'aimv2' with transformers.AutoConfig" in found.text
    assert found.remedy == "install transformers 4.53.1, or a later vllm"


@pytest.mark.parametrize("transformers", ["4.53.1", "4.52.4", "main", "4.53.3"])
def test_an_earlier_transformers_has_not(tmp_path: Path, transformers: str):
    source = fetcher(tmp_path, {"vllm/__init__.py": OVIS})
    assert list(key_problems(PACK, {"vllm": "0.9.2", "transformers": transformers}, source)) == []


def test_without_sources_nothing_is_told():
    def sources(_package, _version):
        raise InputError("no index", fix="connect")

    source = SimpleNamespace(sources=sources)
    assert list(key_problems(PACK, {"vllm": "0.9.2", "transformers": "4.56.2"}, source)) == []
