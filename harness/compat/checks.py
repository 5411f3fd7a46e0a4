"""The checks of this package.

Planning imports this module. The functions below import the code that runs and judges a check, because its
import would double the start time of `npu-matrix plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.compat.api.api_measurements import API_FORMAT, ApiMeasured
from harness.compat.lint.lint_measurements import LINT_FORMAT, LintMeasured
from harness.compat.operators.operator_measurements import OPERATORS_FORMAT, OperatorsMeasured
from harness.matrix.model.environment_facets import ConstraintsFacet
from harness.measurements import measurement_format
from harness.outcome import Judgement, Measured, Outcome, Tier
from harness.sources.packages.resolve_measurements import RESOLVE_FACETS, RESOLVE_FORMAT, ResolveMeasured


def _run_resolve(ctx: TaskContext) -> Measured[ResolveMeasured]:
    from harness.compat.resolve import resolve_check

    return resolve_check.run(ctx)


def _judge_resolve(measurements: ResolveMeasured, params: Mapping[str, object]) -> Judgement:
    from harness.compat.resolve import resolve_check

    return resolve_check.judge(measurements, params)


def _resolve_holds(measurements: ResolveMeasured, outcome: Outcome) -> str:
    from harness.compat.resolve import resolve_check

    return resolve_check.holds(measurements, outcome)


def _run_constraints(ctx: TaskContext) -> Measured[ConstraintsFacet]:
    from harness.compat import constraint_check

    return constraint_check.run(ctx)


def _judge_constraints(measurements: ConstraintsFacet, params: Mapping[str, object]) -> Judgement:
    from harness.compat import constraint_check

    return constraint_check.judge(measurements, params)


def _constraints_apply(facets: Mapping[str, Any]) -> str:
    compared = facets["constraints"]["compared"]
    return "" if compared else "matrix.yaml has no constraint and no published table about its versions"


def _run_lint(ctx: TaskContext) -> Measured[LintMeasured]:
    from harness.compat.lint import lint_check

    return lint_check.run(ctx)


def _judge_lint(measurements: LintMeasured, params: Mapping[str, object]) -> Judgement:
    from harness.compat.lint import lint_check

    return lint_check.judge(measurements, params)


def _lint_holds(measurements: LintMeasured, _outcome: Outcome) -> str:
    from harness.compat.lint import lint_check

    return lint_check.holds(measurements)


def _run_npu_ops(ctx: TaskContext) -> Measured[OperatorsMeasured]:
    from harness.compat.operators import operator_check

    return operator_check.run(ctx)


def _judge_npu_ops(measurements: OperatorsMeasured, params: Mapping[str, object]) -> Judgement:
    from harness.compat.operators import operator_check

    return operator_check.judge(measurements, params)


def _run_api(ctx: TaskContext) -> Measured[ApiMeasured]:
    from harness.compat.api import api_check

    return api_check.run(ctx)


def _judge_api(measurements: ApiMeasured, params: Mapping[str, object]) -> Judgement:
    from harness.compat.api import api_check

    return api_check.judge(measurements, params)


def _api_holds(measurements: ApiMeasured, _outcome: Outcome) -> str:
    from harness.compat.api import api_check

    return api_check.holds(measurements)


def _npu_ops_hold(measurements: OperatorsMeasured, _outcome: Outcome) -> str:
    from harness.compat.operators import operator_check

    return operator_check.holds(measurements)


def _npu_ops_apply(facets: Mapping[str, Any]) -> str:
    """Why the check does not apply to the cell, or ""."""
    torch_npu = facets["torch_npu"]
    if not torch_npu["version"]:
        return "the cell has no torch_npu"
    if torch_npu["kind"] != "release":
        return f"its torch_npu is built from {torch_npu['commit']}, for which no wheel is published"
    if not facets["verl_tree"]["version"] and not facets["vllm_ascend"]["version"]:
        return "the cell has neither verl nor vllm-ascend"
    return ""


def _lint_applies(facets: Mapping[str, Any]) -> str:
    return "" if facets["recipe"] else "the cell has no recipe"


def _api_applies(facets: Mapping[str, Any]) -> str:
    has_consumer = facets["verl_tree"]["version"] or facets["vllm_ascend"]["version"]
    if has_consumer or len(facets["paired"]) > 1:
        return ""
    return "the cell has neither verl nor vllm-ascend"


CONSTRAINTS_FORMAT = measurement_format(ConstraintsFacet, version=1)

CHECKS: tuple[Check, ...] = (
    Check(
        name="resolve",
        tier=Tier.STATIC,
        question="Are the pins compatible, and does the package index have them for this platform?",
        facets=RESOLVE_FACETS,
        measurements=RESOLVE_FORMAT,
        run=_run_resolve,
        judge=_judge_resolve,
        holds=_resolve_holds,
        timeout_s=600.0,
        expected_s=3.0,
    ),
    Check(
        name="constraints",
        tier=Tier.STATIC,
        question="Do the versions satisfy the constraints of the matrix, and do published tables list them?",
        facets=("constraints",),
        measurements=CONSTRAINTS_FORMAT,
        run=_run_constraints,
        judge=_judge_constraints,
        applies=_constraints_apply,
        timeout_s=600.0,
        expected_s=0.1,
    ),
    Check(
        name="lint",
        tier=Tier.STATIC,
        question="Do these versions support the recipe's settings, and is none of them a known mistake?",
        facets=("recipe", "versions", "patches[verl]", "patches[vllm_ascend]", *RESOLVE_FACETS),
        informed_by=("resolve",),
        measurements=LINT_FORMAT,
        run=_run_lint,
        judge=_judge_lint,
        applies=_lint_applies,
        holds=_lint_holds,
        timeout_s=600.0,
        expected_s=3.0,
    ),
    Check(
        name="npu-ops",
        tier=Tier.STATIC,
        question="Does this torch_npu have the operators that verl and vllm-ascend call, and do calls fit?",
        facets=("torch_npu", "verl_tree", "vllm_ascend", *RESOLVE_FACETS),
        informed_by=("resolve",),
        measurements=OPERATORS_FORMAT,
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
        question="Do these packages have the names that verl, vllm-ascend and our patches use from them?",
        facets=(
            "verl_tree",
            "vllm_ascend",
            "paired",
            "patches[verl]",
            "patches[vllm_ascend]",
            *RESOLVE_FACETS,
        ),
        informed_by=("resolve",),
        measurements=API_FORMAT,
        run=_run_api,
        judge=_judge_api,
        applies=_api_applies,
        holds=_api_holds,
        timeout_s=600.0,
        expected_s=10.0,
    ),
)
