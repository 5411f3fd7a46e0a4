"""The checks of this room. Imports are light: planning reads this module, running reads the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.outcome import Judgement, Measured, Outcome, Tier

# What reading packages and holding them against each other is made of.
READING = (
    "harness.compat.analysis",
    "harness.compat.bindings",
    "harness.compat.border",
    "harness.compat.class_facts",
    "harness.compat.guards",
    "harness.compat.mentions",
    "harness.compat.module_names",
    "harness.compat.op_calls",
    "harness.compat.op_schema",
    "harness.compat.overrides",
    "harness.compat.open_ended",
    "harness.compat.own_imports",
    "harness.compat.pairs",
    "harness.compat.published",
    "harness.compat.reach",
    "harness.compat.reference",
    "harness.compat.remote",
    "harness.compat.shelf",
    "harness.compat.signature",
    "harness.compat.surface",
    "harness.compat.syntax",
    "harness.compat.visitor",
)


def _run_resolve(ctx: TaskContext) -> Measured:
    from harness.compat import resolve

    return resolve.run(ctx)


def _judge_resolve(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    from harness.compat import resolve

    return resolve.judge(measurements, params)


def _resolve_holds(outcome: Outcome) -> str:
    from harness.compat import resolve

    return resolve.holds(outcome)


def _run_lint(ctx: TaskContext) -> Measured:
    from harness.compat import lint

    return lint.run(ctx)


def _judge_lint(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    from harness.compat import lint

    return lint.judge(measurements, params)


def _run_npu_ops(ctx: TaskContext) -> Measured:
    from harness.compat import npu_ops

    return npu_ops.run(ctx)


def _judge_npu_ops(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    from harness.compat import npu_ops

    return npu_ops.judge(measurements, params)


def _run_api(ctx: TaskContext) -> Measured:
    from harness.compat import api

    return api.run(ctx)


def _judge_api(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    from harness.compat import api

    return api.judge(measurements, params)


def _api_holds(outcome: Outcome) -> str:
    from harness.compat import api

    return api.holds(outcome)


def _npu_ops_hold(outcome: Outcome) -> str:
    from harness.compat import npu_ops

    return npu_ops.holds(outcome)


def _npu_ops_apply(facets: Mapping[str, Any]) -> str:
    """Why there is nothing to ask about, or ""; said here because planning imports nothing heavy."""
    torch_npu = facets["torch_npu"]
    if not torch_npu["version"]:
        return "the cell has no torch_npu"
    if torch_npu["kind"] != "release":
        return f"its torch_npu is built from {torch_npu['commit']}, of which no wheel is published"
    if not facets["verl_tree"]["version"] and not facets["vllm_ascend"]["version"]:
        return "the cell has neither verl nor vllm-ascend"
    return ""


CHECKS: tuple[Check, ...] = (
    Check(
        name="resolve",
        tier=Tier.STATIC,
        question="Do the pins go together, and does the index have them for this target?",
        facets=("pins", "platform"),
        sources=(
            "harness.compat.archives",
            "harness.compat.explain",
            "harness.compat.published",
            "harness.compat.remedy",
            "harness.compat.remote",
            "harness.compat.request",
            "harness.compat.resolve",
            "harness.sources.fetch_failure",
            "harness.sources.index",
            "harness.sources.pip_files",
            "harness.sources.lockfile",
            "harness.sources.requirements",
        ),
        run=_run_resolve,
        judge=_judge_resolve,
        holds=_resolve_holds,
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
    Check(
        name="npu-ops",
        tier=Tier.STATIC,
        question="Does this torch_npu have the operators that verl and vllm-ascend call, as they call them?",
        facets=("torch_npu", "verl_tree", "vllm_ascend"),
        sources=(*READING, "harness.compat.consumers", "harness.compat.npu_ops"),
        run=_run_npu_ops,
        judge=_judge_npu_ops,
        applies=_npu_ops_apply,
        holds=_npu_ops_hold,
        timeout_s=600.0,
        expected_s=5.0,
    ),
    Check(
        name="api",
        tier=Tier.STATIC,
        question="Have these packages the names that verl, vllm-ascend and our patches take from them?",
        facets=("pins", "verl_tree", "vllm_ascend", "patches[verl]", "patches[vllm_ascend]"),
        sources=(
            *READING,
            "harness.compat.api",
            "harness.compat.consumers",
            "harness.compat.lifetime",
            "harness.compat.patched",
        ),
        run=_run_api,
        judge=_judge_api,
        applies=lambda facets: "" if facets["verl_tree"]["version"] else "the cell has no verl",
        holds=_api_holds,
        timeout_s=600.0,
        expected_s=10.0,
    ),
)
