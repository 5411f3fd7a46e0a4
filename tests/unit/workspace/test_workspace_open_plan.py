"""A host with NPUs: the same command finds the cards and plans what fits. npu-smi and the nodes are fakes."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.devices.host.host_inspection import HostView, inspect_host
from harness.matrix.reading.load_matrix import load_matrix, parse_matrix
from harness.settings import load_settings
from harness.workspace.planning import open_plan as open_plan_module
from harness.workspace.planning.open_plan import host_python, open_plan

REPOSITORY = Path(__file__).parents[3]
MANAGERS = ["davinci_manager", "devmm_svm", "hisi_hdc"]
A2 = """| npu-smi {driver}    Version: {driver}    |
| 0     910B3   | OK            | 93.7  42   0 / 0        |
| 0             | 0000:C1:00.0  | 0     0 / 0   3405 / 65536 |
"""
A3 = """| npu-smi {driver}    Version: {driver}    |
| 0     Ascend910 | OK            | 93.7  42   0 / 0        |
| 0     0       | 0000:9D:00.0  | 0     0 / 0   3405 / 65536 |
| 0     Ascend910 | OK            | -     42   0 / 0        |
| 1     1       | 0000:9F:00.0  | 0     0 / 0   3405 / 65536 |
"""


@pytest.fixture
def plan_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(table: str, driver: str, machine: str = "aarch64"):
        monkeypatch.setattr(platform, "machine", lambda: machine)
        dev, program = tmp_path / "dev", tmp_path / "npu-smi"
        dev.mkdir()
        for node in ["davinci0", "davinci1", *MANAGERS]:
            (dev / node).touch()
        (tmp_path / "table").write_text(table.format(driver=driver))
        program.write_text(f'#!/bin/sh\ncat "{tmp_path}/table"\n')
        program.chmod(0o755)
        view = HostView(
            dev=dev,
            ascend=tmp_path,
            environ={"PATH": "/usr/bin:/bin"},
            which=lambda name: str(program) if name == "npu-smi" else None,
        )
        settings = load_settings({"state": str(tmp_path / "state")}, {}, REPOSITORY)
        bench = open_plan(settings, host=inspect_host(view))
        stack = {cell.id: cell.stack for cell in bench.plan.cells}
        return {(stack[entry.cell_id], entry.check): entry for entry in bench.plan.entries}

    return make


def test_an_a2_host_plans_the_a2_rows_and_says_why_not_the_a3_ones(plan_on):
    entries = plan_on(A2, "26.0.rc1")
    assert entries["gspo-qwen25-3b", "loss"].key
    assert entries["one-step-off-2card", "loss"].skip.reason == "the cell needs a3, this host has a2"


def test_a_host_of_another_architecture_is_told_while_planning(plan_on):
    entries = plan_on(A2, "26.0.rc1", machine="x86_64")
    assert entries["gspo-qwen25-3b", "loss"].skip.reason == "the cell is for aarch64, this host is x86_64"
    assert entries["gspo-qwen25-3b", "lint"].key


def test_an_a3_host_plans_the_a3_rows(plan_on):
    entries = plan_on(A3, "26.0.rc1")
    assert entries["one-step-off-2card", "loss"].key
    assert entries["gspo-qwen25-3b", "loss"].skip.reason == "the cell needs a2, this host has a3"


def test_an_old_driver_leaves_out_the_rows_it_is_too_old_for(plan_on):
    entries = plan_on(A2, "24.1.0.3")
    assert entries["gspo-qwen25-3b", "loss"].key
    assert "driver" in entries["gptoss-20b-grpo", "loss"].skip.reason


def test_the_simulated_cells_stay_simulated_on_a_host_with_cards(plan_on):
    entries = plan_on(A2, "26.0.rc1")
    devices = {entries[key].check for key in entries if key[0] == "" and entries[key].key}
    assert {"environment", "loss", "grpo", "gspo"} <= devices


def python_of_cells(monkeypatch: pytest.MonkeyPatch, own: int, here: tuple[str, ...], host: str) -> str:
    version = SimpleNamespace(major=3, minor=own)
    monkeypatch.setattr(open_plan_module.sys, "version_info", version)
    monkeypatch.setattr(
        open_plan_module, "find_interpreter", lambda name, _environ: (name, name) if name in here else None
    )
    limit = f'host: "{host}", ' if host else ""
    matrix = parse_matrix(
        f"format: 1\naxes: {{python: {{title: p, scheme: python, {limit}source: s}}}}\n"
        "profiles: {default: {title: t, select: [{product: {python: [host]}}]}}\n"
    )
    return host_python(matrix.axes["python"], {})


@pytest.mark.parametrize(
    ("own", "here", "host", "expected"),
    [
        (11, (), ">=3.10,<3.13", "3.11"),
        (13, ("3.10", "3.11"), ">=3.10,<3.13", "3.11"),
        (14, ("3.12", "3.11", "3.9"), ">=3.10,<3.13", "3.12"),
        (14, (), ">=3.10,<3.13", "3.12"),
        (14, ("3.11",), "", "3.14"),
        (14, ("3.11",), ">=3.20", "3.14"),
    ],
)
def test_the_python_of_cells_on_hosts_with_another_python(
    own: int, here: tuple[str, ...], host: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert python_of_cells(monkeypatch, own, here, host) == expected


def test_the_default_profile_does_not_need_the_python_that_runs_npu_matrix() -> None:
    axis = load_matrix(REPOSITORY / "matrix.yaml").axes["python"]
    assert axis.host is not None
    allowed = [
        f"3.{minor}" for minor in range(8, 16) if axis.host.holds({"python": axis.parse(f"3.{minor}")})
    ]
    assert allowed == ["3.10", "3.11", "3.12"]
