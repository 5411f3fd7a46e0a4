"""What the check of imports calls its evidence, by what the program in the cell reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from environments import GOOD

from harness.check import Completed
from harness.digest import canonical_json
from harness.evidence import Runtime
from harness.outcome import Evidence, Status
from harness.rollout.imports import import_checks, import_program
from harness.rollout.imports.import_measurements import (
    IMPORT_FORMAT,
    BrokenImport,
    ImportedPackage,
    ImportReport,
)
from harness.serialisation import json_object, to_json


class Cell:
    """A cell whose program leaves a report of the given device."""

    def __init__(self, workdir: Path, report: ImportReport) -> None:
        self.workdir = workdir
        self.report = report
        self.inputs = {"environment": SimpleNamespace(measurements=json_object(GOOD))}

    def in_cell(self, *_arguments: str, **_settings: object) -> Completed:
        (self.workdir / "imports.json").write_text(json.dumps(to_json(self.report)))
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
    assert import_checks.run(Cell(tmp_path, import_program.examine([]))).evidence is evidence


@pytest.mark.parametrize(
    ("runtime", "status"), [(Runtime.CANN, Status.FAIL), (Runtime.SIMULATED, Status.INCONCLUSIVE)]
)
def test_what_the_program_reports_can_be_judged(monkeypatch, tmp_path, runtime, status):
    monkeypatch.setattr(import_program, "runtime_kind", lambda: runtime)
    lacking = BrokenImport(
        module="vllm_ascend.ops", kind="error", type="RuntimeError", message="not simulated: aclnnNew"
    )
    package = ImportedPackage(version="1", modules=2)
    report = replace(import_program.examine([]), packages={"vllm_ascend": package}, breaks=(lacking,))
    measured = import_checks.run(Cell(tmp_path, report))
    [check] = import_checks.IMPORT_CHECKS
    stored = json.loads(canonical_json(IMPORT_FORMAT.write(measured.measurements)))
    assert check.judge(IMPORT_FORMAT.read(stored), {}).status is status
