"""Calibration: what a device's arithmetic is, recorded and not judged.

The first thing to run on hardware nobody measured before. The contracts' constants come from documents; a
calibration says how far from them the device is, and which share of its tolerance each group of cases uses.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from harness.cell_program.ending import LAST_WORDS, MEASURED
from harness.cell_program.torch_device import device_name
from harness.check import Check, TaskContext
from harness.numerics.checks import FACETS
from harness.numerics.loss import loss_check
from harness.outcome import Judgement, Measured, Status, Tier

SCHEMA = {"name": "npu-matrix.numerics-calibration", "version": 1}
ARTIFACT = "calibration.json"
CONSTANTS_TIMEOUT_S = 120.0


def run(context: TaskContext) -> Measured:
    """The loss battery and the device's constants; the artifact `calibration.json` holds both."""
    from harness.errors import InfrastructureError

    measured = loss_check.run(context)
    constants = context.workdir / "constants.json"
    device = device_name(context.facets.get("device", {}))
    completed = context.in_cell(
        "harness.numerics.arithmetic.constants_program",
        *("--device", device, "--out", str(constants)),
        timeout=CONSTANTS_TIMEOUT_S,
    )
    if completed.returncode != 0 or not constants.is_file():
        raise InfrastructureError(
            "the device's constants could not be measured",
            why=completed.tail[-LAST_WORDS:].strip() or f"exit code {completed.returncode}",
            fix="run it by hand in the cell: "
            "python -m harness.numerics.arithmetic.constants_program --device ... --out ...",
        )
    record = calibration(measured.measurements, json.loads(constants.read_text(encoding="utf-8")))
    (context.workdir / ARTIFACT).write_text(json.dumps(record, indent=2), encoding="utf-8")
    return Measured(
        measurements={**measured.measurements, "calibration": record},
        evidence=measured.evidence,
        artifacts={**measured.artifacts, ARTIFACT: ARTIFACT},
        environment=measured.environment,
    )


def calibration(measurements: Mapping[str, Any], constants: Mapping[str, Any]) -> dict[str, Any]:
    """The record: device, constants, budget per group of cases (`schema` names its form)."""
    return {
        "schema": SCHEMA,
        "device": measurements["device"],
        "verl": measurements.get("verl", ""),
        "state": measurements["state"],
        "constants": list(constants["constants"]),
        "groups": budgets(measurements.get("cases", ())),
    }


def budgets(cases: Any) -> list[dict[str, Any]]:
    """Share of its tolerance that each group of cases uses: operation and contract, worst and median.

    Cases outside their interval count with what they are, so a budget above 1 is a defect or a constant that
    is wrong.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for entry in cases:
        if entry["status"] in {"pass", "fail"} and entry["severity"] == "required":
            contract = entry["name"].partition("@")[2] or "fp32"
            groups[entry["kind"], contract].append(entry)
    return [
        {
            "group": kind,
            "contract": contract,
            "cases": len(entries),
            "outside": sum(entry["status"] == "fail" for entry in entries),
            "median_budget": sorted(entry["budget"] for entry in entries)[len(entries) // 2],
            "worst_budget": max(entry["budget"] for entry in entries),
            "worst_case": max(entries, key=lambda entry: entry["budget"])["name"],
        }
        for (kind, contract), entries in sorted(groups.items())
    ]


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Nothing is judged: a calibration that was recorded has done what it is for."""
    if measurements["state"] != MEASURED:
        return loss_check.judge(measurements, {})
    constants = measurements["calibration"]["constants"]
    beyond = [row["constant"] for row in constants if not row["holds"]]
    told = f"beyond the contract: {', '.join(beyond)}" if beyond else "all within the contract"
    return Judgement(status=Status.PASS, reasons=(f"{len(constants)} constants recorded, {told}.",))


CALIBRATION = Check(
    name="calibration",
    tier=Tier.NUMERICS,
    question="What is this device's arithmetic?",
    facets=FACETS,
    run=run,
    judge=judge,
    needs=("environment",),
    device=True,
    timeout_s=loss_check.EMIT_TIMEOUT_S + loss_check.REFERENCE_TIMEOUT_S + 60.0 + CONSTANTS_TIMEOUT_S,
    expected_s=20.0,
)
"""Run by `npu-matrix numerics calibrate`; no part of a plan, for it cannot fail."""
