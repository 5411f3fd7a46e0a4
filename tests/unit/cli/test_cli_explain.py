"""`explain` of one cell and of several: what the scaled-down recipe leaves out; `triage --stack`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.cli.app import main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    return tmp_path


def run(checkout: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["--root", str(checkout), "--cache", str(checkout / "cache"), *words])
    return int(stopped.value.code or 0)


def test_it_lists_what_the_twin_leaves_out_and_what_that_leaves_unanswered(checkout, capsys):
    assert run(checkout, "explain", "gspo-qwen3-30b-a3b") == 0
    shown = capsys.readouterr().out
    assert "training by Megatron" in shown
    assert "whether Megatron-core, MindSpeed and mbridge compute and update the same model" in shown


def test_a_glob_explains_several_cells(checkout, capsys):
    assert run(checkout, "explain", "gspo-qwen*", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"]["name"] == "npu-matrix.explain-cells"
    assert [cell["stack"] for cell in found["cells"]] == ["gspo-qwen25-3b", "gspo-qwen3-30b-a3b"]
    assert all(part["unanswered"] for cell in found["cells"] for part in cell["left_out"])
    assert run(checkout, "explain", "gspo-async", "--json") == 0
    assert json.loads(capsys.readouterr().out)["schema"]["name"] == "npu-matrix.explain"


def test_a_glob_of_nothing_is_an_error(checkout, capsys):
    assert run(checkout, "explain", "nothing-like-it*") == 3
    assert "no cell and no stack matches" in capsys.readouterr().err


def test_failures_of_a_stack_are_compared_with_their_causes(checkout, capsys):
    assert run(checkout, "triage", "--stack", "one-step-off-2card") == 0
    assert "5 of 5 failures" in capsys.readouterr().out
    text = (checkout / "matrix.yaml").read_text(encoding="utf-8")
    assert text.count("        cause: nccl\n") == 1
    changed = text.replace("        cause: nccl\n", "        cause: ray-gpus\n")
    (checkout / "matrix.yaml").write_text(changed, encoding="utf-8")
    assert run(checkout, "triage", "--stack", "one-step-off-2card", "--json") == 1
    found = json.loads(capsys.readouterr().out)["failures"]
    assert [one["found"] for one in found] == ["nccl"] * 4 + ["glibcxx"]


@pytest.mark.parametrize(("stack", "code"), [("verl-0-9-0-to-0-9-1", 3), ("gspo-nothing", 2)])
def test_a_stack_without_failures_is_no_pass(checkout, capsys, stack, code):
    assert run(checkout, "triage", "--stack", stack) == code
    assert stack in capsys.readouterr().err
