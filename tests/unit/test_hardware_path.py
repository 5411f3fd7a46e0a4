"""What the commands of the benchmark get from the rehearsals before them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.hardware_path import CELL, PYTHON, SENT, made


def test_later_commands_get_the_cell_its_python_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_MATRIX_CACHE", str(tmp_path / "cache"))
    assert made(tmp_path) == {}
    environment = {"check": "environment", "measurements": {"python": "{cache}/cells/a/bin/python"}}
    report = tmp_path / "npu-matrix-rehearsal/reports/a2/report.json"
    sent = tmp_path / "npu-matrix-rehearsal/first-contact/a2.tar.gz"
    for file in (report, sent):
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"cells": [{"id": "row", "results": [environment]}]}))
    assert made(tmp_path) == {
        CELL: "row",
        PYTHON: f"{tmp_path}/cache/cells/a/bin/python",
        SENT: str(sent),
    }
