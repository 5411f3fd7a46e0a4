"""The checks of this room. Imports are light: planning reads this module, running reads the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.outcome import Judgement, Measured, Outcome, Tier


def _run_environment(ctx: TaskContext) -> Measured:
    if "engine" in ctx.facets["device"]:
        from harness.builds import contained_cell

        return contained_cell.run(ctx)
    from harness.builds import environment

    return environment.run(ctx)


def _judge_environment(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    from harness.builds import judge

    return judge.judge(measurements, params)


def _environment_holds(outcome: Outcome) -> str:
    if outcome.measurements.get("container"):
        from harness.builds import contained_cell

        return contained_cell.holds(outcome)
    from harness.builds import environment

    return environment.holds(outcome)


CHECKS: tuple[Check, ...] = (
    Check(
        name="environment",
        tier=Tier.BUILD,
        question="Can the environment be built from its lock, and does it hold what was locked and patched?",
        facets=("pins", "platform", "verl_tree", "patches[verl]", "patches[vllm_ascend]", "device"),
        sources=(
            "harness.builds.bundle",
            "harness.builds.checkout",
            "harness.builds.contain",
            "harness.builds.contained_cell",
            "harness.builds.container_command",
            "harness.builds.environment",
            "harness.builds.images",
            "harness.builds.inside",
            "harness.builds.interpreter",
            "harness.builds.judge",
            "harness.builds.layers",
            "harness.builds.lend",
            "harness.builds.leftout",
            "harness.builds.patched",
            "harness.builds.recipe",
            "harness.builds.room",
            "harness.builds.runtime",
            "harness.evidence",
            "harness.fixtures.environment_probe",
            "harness.fixtures.patch_probe",
            "harness.sources.fetch_failure",
            "harness.sources.index",
            "harness.sources.pip_files",
            "harness.sources.lockfile",
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
