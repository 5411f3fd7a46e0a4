"""What the check of imports calls its evidence, by what the program in the cell reported."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.check import Completed
from harness.evidence import Runtime
from harness.outcome import Evidence
from harness.rollout import import_checks, imports


class Cell:
    """A cell whose program leaves a report of the given device."""

    def __init__(self, workdir: Path, device: dict[str, Any]) -> None:
        self.workdir, self.device = workdir, device
        self.inputs = {"environment": SimpleNamespace(measurements={})}

    def in_cell(self, *_arguments: str, **_settings: object) -> Completed:
        report = {"packages": {}, "breaks": [], "device": self.device, "seconds": 1.0}
        (self.workdir / "imports.json").write_text(json.dumps(report))
        return Completed(argv=(), returncode=0, tail="", seconds=1.0)


@pytest.mark.parametrize(
    ("runtime", "evidence"),
    [
        (Runtime.CANN, Evidence.HARDWARE),
        (Runtime.SIMULATED, Evidence.SIMULATED),
        (Runtime.NONE, Evidence.CPU),
    ],
)
def test_imports_prove_what_the_cells_runtime_shows(monkeypatch, tmp_path, runtime, evidence):
    monkeypatch.setattr(imports, "runtime_kind", lambda: runtime)
    device = imports.examine([])["device"]
    assert import_checks.run(Cell(tmp_path, device)).evidence is evidence
