"""`advise` for a host: what is printed for each stack, and what never mixes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import __version__
from harness.cli import host_advice_output
from harness.cli.app import main
from harness.devices.host.host_inspection import HostReport
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.workspace.execution import host_advice

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


def test_stacks_that_authors_published_for_the_host_are_named(advise: Any) -> None:
    host = (
        "--soc",
        "a2",
        "--cann",
        "8.2.RC2",
        "--driver",
        "24.1.0.3",
        "--need",
        "gspo,megatron",
        "--no-index",
    )
    _code, text = advise(*host)
    assert "stacks of matrix.yaml that their authors published for this SoC and CANN:" in text
    assert "  gspo-qwen25-3b: GSPO of Qwen2.5-3B" in text
    assert "npu-matrix explain gspo-qwen25-3b" in text
    _code, text = advise(*host, "--json")
    assert [one["name"] for one in json.loads(text)["stacks_of_authors"]] == [
        "gspo-qwen25-3b",
        "gspo-qwen3-30b-a3b",
    ]
    _code, text = advise(*host[:2], "--cann", "8.3.RC1", "--driver", "25.3", "--no-index")
    assert "\n  and verl-npu-plugin, " in text


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


def test_cards_without_a_running_driver_are_known_by_the_pci_bus(
    advise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostReport(
        npu=None,
        npu_error="the driver is not running",
        pci_soc="a2",
        davinci=(0, 1),
        missing_nodes=(),
        cann="8.5.0",
        compiler="",
        git="",
        container_engines=(),
        cpus=8,
    )
    monkeypatch.setattr(host_advice_output, "inspect_this_host", lambda: host)
    code, text = advise("--no-index")
    assert (code, text.startswith("for a2, CANN 8.5.0, driver not known")) == (0, True)
    monkeypatch.setattr(host_advice_output, "inspect_this_host", lambda: replace(host, pci_soc=""))
    code, text = advise("--no-index")
    assert code == 2
    assert "why: the driver is not running" in text


def test_nothing_fits(advise: Any) -> None:
    code, text = advise("--soc", "a2", "--cann", "12.0.0", "--no-index")
    assert code == 3
    assert "no stack" in text


def test_options_of_a_host_are_refused_for_an_axis(advise: Any) -> None:
    code, text = advise("verl", "--cann", "8.5.0")
    assert code == 2
    assert "--with cann=VALUE" in text


FOREIGN = ("--soc", "a2", "--cann", "8.5.0", "--driver", "25.5.0", "--no-index")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs commands in a folder without matrix.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPU_MATRIX_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out

    return run


def test_the_commands_to_go_on_work_in_a_folder_without_matrix(elsewhere: Any, tmp_path: Path) -> None:
    _code, text = elsewhere("advise", *FOREIGN, "--json")
    stacks = json.loads(text)["stacks"]
    known = next(one for one in stacks if one["cell"])
    assert known["commands"][0] == "npu-matrix init"
    unknown = next(one for one in stacks if not one["cell"])
    add, run, lock = (shlex.split(command)[1:] for command in unknown["commands"])
    assert elsewhere(*add)[0] == 0
    assert (tmp_path / "matrix.yaml").is_file()
    assert run[0] == "run"
    code, text = elsewhere("plan", *run[1:], "--json")
    assert code == 0
    [cell] = json.loads(text)["cells"]
    assert cell["stack"] == lock[1]
    assert {axis: cell["axes"][axis] for axis in unknown["axes"]} == unknown["axes"]


def test_every_stack_that_is_shown_can_be_added(elsewhere: Any) -> None:
    _code, text = elsewhere("advise", *FOREIGN, "--most", "6", "--json")
    unknown = [one for one in json.loads(text)["stacks"] if not one["cell"]]
    code, text = elsewhere(*shlex.split(unknown[-1]["commands"][0])[1:])
    assert (code, text.split()[0]) == (0, "wrote")


def test_a_stack_is_added_to_a_matrix_once_and_runs_without_a_profile(elsewhere: Any, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(f"# mine\nformat: 1\ninclude: npu-matrix:{__version__}\n")
    _code, text = elsewhere("advise", *FOREIGN, "--json")
    stack = next(one for one in json.loads(text)["stacks"] if not one["cell"])
    add = shlex.split(stack["commands"][0])[1:]
    code, said = elsewhere(*add)
    assert (code, said.split()[:3]) == (0, ["added", "the", "stack"])
    written = file.read_text()
    assert written.startswith("# mine\n")
    name = add[-1]
    assert name in written
    code, text = elsewhere("plan", "--only", f"{name}*", "--json")
    assert code == 0, "no profile selects it"
    assert [cell["stack"] for cell in json.loads(text)["cells"]] == [name]
    code, said = elsewhere(*add)
    assert code == 0
    assert file.read_text() == written
    assert elsewhere(*add[:-1], "another")[0] == 2


def test_every_risk_says_what_to_do(elsewhere: Any) -> None:
    _code, text = elsewhere("advise", *FOREIGN, "--json", "--most", "8")
    for one in json.loads(text)["stacks"]:
        assert all(risk["do"] for risk in one["risks"]), one


def test_megatron_has_its_versions_or_says_which_are_not_pinned(advise: Any) -> None:
    _code, text = advise(*HOST, "--need", "megatron,gspo,vllm", "--most", "1", "--json")
    [pinned] = json.loads(text)["stacks"]
    assert pinned["axes"]["megatron_core"] == "0.12.1"
    assert pinned["axes"]["mindspeed"] == "2.3.0@v2.3.0_core_r0.12.1"
    assert not any("MindSpeed" in risk["what"] for risk in pinned["risks"])
    host = ("--soc", "a3", "--cann", "9.0.0", "--no-index", "--with", "verl=0.9.0")
    _code, text = advise(*host, "--need", "megatron,vllm", "--most", "1", "--json")
    [branch] = json.loads(text)["stacks"]
    [risk] = [one for one in branch["risks"] if "MindSpeed" in one["what"]]
    assert "core_r0.16.0, which is no release" in risk["what"]
    assert "`mindspeed: VERSION@COMMIT`" in risk["do"]
    code, text = advise(
        "--soc", "a2", "--cann", "8.1.RC1", "--no-index", "--need", "megatron", "--with", "verl=0.6.0"
    )
    assert (code, "no stack of the matrix says which megatron_core" in text) == (3, True)


def test_a_host_of_another_architecture_has_stacks_of_its_own(elsewhere: Any, tmp_path: Path) -> None:
    host = ("advise", "--soc", "910B2C", "--cann", "8.5.0", "--no-index", "--arch", "AMD64", "--most", "1")
    code, text = elsewhere(*host, "--json")
    report = json.loads(text)
    assert (code, report["host"]["soc"], report["stacks"][0]["axes"]["arch"]) == (0, "a2", "x86_64")
    assert report["stacks"][0]["cell"] is None
    adding = shlex.split(report["stacks"][0]["commands"][0])
    assert elsewhere(*adding[1:])[0] == 0
    assert "arch: x86_64" in (tmp_path / "matrix.yaml").read_text()
    assert elsewhere("matrix", "validate")[0] == 0
    assert "arch" not in json.loads(elsewhere(*host[:7], "aarch64", "--json")[1])["stacks"][0]["axes"]
    assert elsewhere(*host[:7], "sparc")[0] == 2


@pytest.mark.parametrize("soc", ["A2", "910B3", "Ascend910B2", "910B2C"])
def test_a_chip_is_its_family(elsewhere: Any, soc: str) -> None:
    code, text = elsewhere("advise", *FOREIGN, "--soc", soc, "--json")
    assert (code, json.loads(text)["host"]["soc"]) == (0, "a2")


def test_a_chip_without_stacks_and_a_driver_that_is_none_are_refused(advise: Any) -> None:
    code, text = advise("--soc", "Ascend310P3", "--cann", "8.5.0", "--no-index")
    assert (code, "no stack of this matrix is for 310p" in text) == (3, True)
    code, text = advise("--soc", "Ascend999", "--cann", "8.5.0", "--no-index")
    assert (code, "is no known chip or family" in text) == (2, True)
    code, text = advise("--soc", "a2", "--cann", "8.5.0", "--driver", "banana", "--no-index")
    assert (code, "is not a driver version" in text) == (2, True)


def test_what_this_python_cannot_install_is_not_advised(
    elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Index:
        def files(self, requirements: list[str], target: Any = None) -> tuple[str, ...]:
            if target is not None and (target.python, requirements[0][:6]) == ("3.13", "torch="):
                raise ReleaseNotFoundError("no file for this Python")
            return ("a file",)

    monkeypatch.setattr(host_advice, "_index", Index)
    monkeypatch.setattr(host_advice, "host_wheels", lambda *_args: ())
    monkeypatch.setattr(host_advice_output, "releases_on_index", lambda *_args: {})
    host = FOREIGN[:-1]
    code, text = elsewhere("advise", *host, "--python", "3.11", "--json")
    assert code == 0
    code, text = elsewhere("advise", *host, "--python", "3.13", "--json")
    report = json.loads(text)
    assert (code, report["stacks"]) == (3, [])
    assert any("not for Python 3.13" in reason for one in report["rejected"] for reason in one["reasons"])
    assert [one["python"] for one in report["with_other_python"]] == ["3.11"]
    code, text = elsewhere("advise", *host, "--python", "3.13")
    assert "\nwithout --python 3.13 there is a stack: verl " in text
