"""The checks of this room. Imports are light: planning reads this module, running reads the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.outcome import Judgement, Measured, Tier


def _run_resolve(ctx: TaskContext) -> Measured:
    from harness.compat import resolve

    return resolve.run(ctx)


def _judge_resolve(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    from harness.compat import resolve

    return resolve.judge(measurements, params)


def _run_lint(ctx: TaskContext) -> Measured:
    from harness.compat import lint

    return lint.run(ctx)


def _judge_lint(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    from harness.compat import lint

    return lint.judge(measurements, params)


CHECKS: tuple[Check, ...] = (
    Check(
        name="resolve",
        tier=Tier.STATIC,
        question="Do the pins go together, and does the index have them for this target?",
        facets=("pins", "platform"),
        sources=(
            "harness.compat.explain",
            "harness.compat.remedy",
            "harness.compat.request",
            "harness.compat.resolve",
            "harness.sources.fetch_failure",
            "harness.sources.index",
            "harness.sources.lockfile",
        ),
        run=_run_resolve,
        judge=_judge_resolve,
        timeout_s=600.0,
        expected_s=3.0,
    ),
    Check(
        name="lint",
        tier=Tier.STATIC,
        question="Does the recipe set what these versions understand, and what is known to go well?",
        facets=("recipe", "versions"),
        sources=(
            "harness.compat.expression",
            "harness.compat.hydra",
            "harness.compat.lint",
            "harness.compat.recipe",
            "harness.compat.rules",
            "harness.compat.ruleset",
            "harness.matrix.versions",
            "harness.sources.release",
        ),
        run=_run_lint,
        judge=_judge_lint,
        applies=lambda facets: "" if facets["recipe"] else "the cell has no recipe",
        timeout_s=60.0,
        expected_s=0.2,
    ),
)
