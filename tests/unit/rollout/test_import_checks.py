"""What the check of imports calls its evidence, by what the program in the cell reported."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from environments import GOOD

from harness.check import Completed
from harness.digest import canonical_json
from harness.evidence import Runtime
from harness.measurements import json_object
from harness.outcome import Evidence, Status
from harness.rollout.imports import import_checks, import_program


class Cell:
    """A cell whose program leaves a report of the given device."""

    def __init__(self, workdir: Path, device: dict[str, Any], **report: Any) -> None:
        self.workdir = workdir
        self.report = {"packages": {}, "breaks": [], "device": device, "seconds": 1.0, **report}
        self.inputs = {"environment": SimpleNamespace(measurements=json_object(GOOD))}

    def in_cell(self, *_arguments: str, **_settings: object) -> Completed:
        (self.workdir / "imports.json").write_text(json.dumps(self.report))
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
    monkeypatch.setattr(import_program, "runtime_kind", lambda: runtime)
    device = import_program.examine([])["device"]
    assert import_checks.run(Cell(tmp_path, device)).evidence is evidence


@pytest.mark.parametrize(
    ("runtime", "status"), [(Runtime.CANN, Status.FAIL), (Runtime.SIMULATED, Status.INCONCLUSIVE)]
)
def test_what_the_program_reports_can_be_judged(monkeypatch, tmp_path, runtime, status):
    monkeypatch.setattr(import_program, "runtime_kind", lambda: runtime)
    package = {"version": "1", "modules": 2, "requires": []}
    lacking = import_program.Break(
        module="vllm_ascend.ops", kind="error", type="RuntimeError", message="not simulated: aclnnNew"
    )
    device = import_program.examine([])["device"]
    cell = Cell(tmp_path, device, packages={"vllm_ascend": package}, breaks=[asdict(lacking)])
    measured = import_checks.run(cell)
    [check] = import_checks.IMPORT_CHECKS
    assert check.judge(json.loads(canonical_json(measured.measurements)), {}).status is status
