"""`advise` for a host: what is printed for each stack, and what never mixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.app import main

ROOT = Path(__file__).parents[3]
HOST = ("--soc", "a2", "--cann", "8.5.0", "--driver", "25.5.0", "--no-index")


@pytest.fixture
def advise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPU_MATRIX_MATRIX", str(ROOT / "matrix.yaml"))
    monkeypatch.setenv("NPU_MATRIX_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("NPU_MATRIX_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--root", str(ROOT), "advise", *arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


def test_each_stack_has_evidence_risks_with_a_mend_and_three_commands(advise: Any) -> None:
    code, text = advise(*HOST, "--need", "gspo,vllm", "--json")
    assert code == 0
    report = json.loads(text)
    assert report["schema"] == {"name": "npu-matrix.advice", "version": 1}
    first = report["stacks"][0]
    assert (first["axes"]["verl"], first["axes"]["vllm_ascend"]) == ("0.7.1", "0.13.0")
    assert first["publication"] == "published"
    assert first["axes"]["torch_npu"] == "2.8.0.post2"
    assert first["never_tried"]
    assert first["passed"] == []
    assert any("patches mend" in risk["what"] and risk["do"] for risk in first["risks"])
    for one in report["stacks"]:
        assert len(one["commands"]) == 3
        assert one["axes"]["device"] == "npu"
    assert report["rejected"][0]["reasons"]


def test_an_old_driver_is_a_risk_with_a_mend(advise: Any) -> None:
    _code, text = advise("--soc", "a2", "--cann", "8.5.0", "--driver", "24.1.0", "--no-index")
    assert "published with driver 25.5 or newer" in text
    assert "do: update driver and firmware" in text
    _code, text = advise(*HOST)
    assert "published with driver" not in text


def test_what_is_not_known_of_this_host_must_be_said(advise: Any) -> None:
    code, text = advise("--no-index")
    assert code == 2
    assert "--soc" in text
    for wrong in (["--soc", "a9"], ["--cann", "x y"], ["--python", "?"], ["--need", "magic"]):
        given = {"--soc": "a2", "--cann": "8.5.0", **dict([wrong])}
        code, text = advise(*(word for pair in given.items() for word in pair), "--no-index")
        assert code == 2, text


def test_nothing_fits(advise: Any) -> None:
    code, text = advise("--soc", "a2", "--cann", "12.0.0", "--no-index")
    assert code == 3
    assert "no stack" in text


def test_options_of_a_host_are_refused_for_an_axis(advise: Any) -> None:
    code, text = advise("verl", "--cann", "8.5.0")
    assert code == 2
    assert "--with cann=VALUE" in text
