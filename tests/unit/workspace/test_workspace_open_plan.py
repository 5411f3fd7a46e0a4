"""A host with NPUs: the same command finds the cards and plans what fits. npu-smi and the nodes are fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.devices.host.inventory import HostView, inspect_host
from harness.settings import load_settings
from harness.workspace.planning.open_plan import open_plan

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
def plan_on(tmp_path: Path):
    def make(table: str, driver: str):
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
