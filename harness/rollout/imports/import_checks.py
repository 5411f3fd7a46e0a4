"""The check that imports everything vllm-ascend and verl bring for this device."""

from __future__ import annotations

import json
from typing import Any

from harness.cell_program.built_environment import ENVIRONMENT_FORMAT
from harness.cell_program.ending import MEASURED, failure, require_setup
from harness.check import Check, TaskContext
from harness.evidence import evidence_of, read_device_facts
from harness.numerics.checks import FACETS
from harness.outcome import Evidence, Measured, Tier
from harness.rollout.generation.generation_checks import needs_engine
from harness.rollout.imports import import_breaks

# Against an import that stands still; 132 s on two cores with six programs beside it.
IMPORT_TIMEOUT_S = 3600.0
PACKAGES = ("vllm_ascend", "verl")


def run(context: TaskContext) -> Measured:
    """Import the modules in the cell, on its device. A program that hangs or dies is a measurement."""
    out = context.workdir / "imports.json"
    done = context.in_cell(
        "harness.rollout.imports.import_program",
        *("--out", str(out), *PACKAGES),
        env={
            "VLLM_CACHE_ROOT": str(context.workdir / "vllm"),
            "HF_HOME": str(context.workdir / "huggingface"),
        },
        timeout=IMPORT_TIMEOUT_S,
    )
    require_setup(done, "the imports")
    if done.returncode != 0 or not out.is_file():
        return Measured(measurements=failure(done), evidence=Evidence.CPU)
    report: dict[str, Any] = json.loads(out.read_text("utf-8"))
    environment = ENVIRONMENT_FORMAT.read(context.inputs["environment"].measurements)
    return Measured(
        measurements={
            "state": MEASURED,
            "packages": report["packages"],
            "breaks": report["breaks"],
            "device": report["device"],
            "left_out": sorted(environment.left_out),
            "seconds": report["seconds"],
        },
        evidence=evidence_of(read_device_facts(report["device"])),
        artifacts={out.name: out.name},
    )


IMPORT_CHECKS: tuple[Check, ...] = (
    Check(
        name="vllm-imports",
        # It needs no more than the environment.
        tier=Tier.BUILD,
        question="Can every module of vllm-ascend, and of verl's that touches the device, be imported?",
        facets=FACETS,
        run=run,
        judge=import_breaks.judge,
        needs=("environment",),
        # Released pairs have dead modules, which no engine loads. In a wrong pair no engine starts, which
        # `generation` says within a minute.
        stops=False,
        device=True,
        timeout_s=IMPORT_TIMEOUT_S + 60.0,
        expected_s=60.0,
        applies=needs_engine,
    ),
)
