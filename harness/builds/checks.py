"""The checks of this room. Imports are light: planning reads this module, running reads the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.outcome import Judgement, Measured, Outcome, Tier


def _run_environment(ctx: TaskContext) -> Measured:
    if "engine" in ctx.facets["device"]:
        from harness.builds.cell import container_environment

        return container_environment.run(ctx)
    from harness.builds.cell import venv_environment

    return venv_environment.run(ctx)


def _judge_environment(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    from harness.builds.cell import environment_judge

    return environment_judge.judge(measurements, params)


def _environment_holds(_measurements: Mapping[str, Any], outcome: Outcome) -> str:
    if outcome.measurements.get("container"):
        from harness.builds.cell import container_environment

        return container_environment.holds(outcome)
    from harness.builds.cell import venv_environment

    return venv_environment.holds(outcome)


CHECKS: tuple[Check, ...] = (
    Check(
        name="environment",
        tier=Tier.BUILD,
        question="Can the environment be built from its lock, and does it hold what was locked and patched?",
        facets=("pins", "platform", "verl_tree", "patches[verl]", "patches[vllm_ascend]", "device"),
        sources=(
            "harness.builds.cell.bundle",
            "harness.builds.cell.commit_package",
            "harness.builds.engines.container_run",
            "harness.builds.cell.container_environment",
            "harness.builds.engines.container_command",
            "harness.builds.cell.venv_environment",
            "harness.builds.engines.image_build",
            "harness.builds.cell.cell_probe",
            "harness.builds.cell.interpreter",
            "harness.builds.cell.environment_judge",
            "harness.builds.engines.image_layers",
            "harness.builds.engines.build_time_files",
            "harness.builds.lock.omitted_packages",
            "harness.builds.cell.patched_files",
            "harness.builds.cell.environment_spec",
            "harness.builds.cell.disk_space",
            "harness.builds.cell.cell_command",
            "harness.evidence",
            "harness.cell_program",
            "harness.package",
            "harness.fixtures.environment_probe",
            "harness.fixtures.patch_probe",
            "harness.sources.packages.fetch_failure",
            "harness.sources.packages.index_settings",
            "harness.sources.packages.pip_config",
            "harness.sources.packages.lockfile",
        ),
        needs=("resolve", "patches"),
        device=True,
        run=_run_environment,
        judge=_judge_environment,
        holds=_environment_holds,
        timeout_s=1800.0,
        expected_s=30.0,
    ),
)
