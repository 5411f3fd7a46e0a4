"""The check `vllm-imports`: imports all modules of vllm-ascend, and those of verl that use the device."""

from __future__ import annotations

from harness.cell_program.built_environment import ENVIRONMENT_FORMAT
from harness.cell_program.program_run import ProgramFailure, Unsupported, run_in_cell
from harness.check import Check, TaskContext
from harness.errors import EXIT_NOTHING_SELECTED
from harness.evidence import evidence_of
from harness.measurements import read_shape
from harness.numerics.checks import FACETS
from harness.outcome import Evidence, Measured, Tier
from harness.rollout.generation.generation_checks import needs_engine
from harness.rollout.imports import import_breaks
from harness.rollout.imports.import_measurements import IMPORT_FORMAT, ImportMeasurements, ImportReport

# The limit is for hung imports: on two busy cores the check takes 132 s.
IMPORT_TIMEOUT_S = 3600.0
PACKAGES = ("vllm_ascend", "verl")


def run(context: TaskContext) -> Measured[ImportMeasurements | ProgramFailure]:
    """Import the modules in the cell, on its device. A program that hangs or crashes is a measurement."""
    out = context.workdir / "imports.json"
    ended = run_in_cell(
        context,
        "harness.rollout.imports.import_program",
        *("--out", str(out), *PACKAGES),
        out=out,
        what="the imports",
        timeout=IMPORT_TIMEOUT_S,
        env={
            "VLLM_CACHE_ROOT": str(context.workdir / "vllm"),
            "HF_HOME": str(context.workdir / "huggingface"),
        },
    )
    if isinstance(ended, Unsupported):
        ended = ProgramFailure(state="crashed", returncode=EXIT_NOTHING_SELECTED, tail=ended.why)
    if isinstance(ended, ProgramFailure):
        return Measured(measurements=ended, evidence=Evidence.CPU)
    report = read_shape(ImportReport, out)
    environment = ENVIRONMENT_FORMAT.read(context.inputs["environment"].measurements)
    return Measured(
        measurements=ImportMeasurements(
            packages=report.packages,
            breaks=report.breaks,
            device=report.device,
            left_out=tuple(sorted(environment.left_out)),
            seconds=report.seconds,
        ),
        evidence=evidence_of(report.device),
        artifacts={out.name: out.name},
    )


IMPORT_CHECKS: tuple[Check, ...] = (
    Check(
        name="vllm-imports",
        # It needs nothing but the environment.
        tier=Tier.BUILD,
        question="Can every module of vllm-ascend, and of verl's that touches the device, be imported?",
        facets=FACETS,
        measurements=IMPORT_FORMAT,
        run=run,
        judge=import_breaks.judge,
        needs=("environment",),
        # Even released pairs of versions contain unused modules that cannot be imported, so a failure does
        # not skip the expensive tiers. If the engine itself cannot start, `generation` fails within a minute.
        stops=False,
        device=True,
        timeout_s=IMPORT_TIMEOUT_S + 60.0,
        expected_s=60.0,
        applies=needs_engine,
    ),
)
