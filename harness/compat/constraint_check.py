"""Check `constraints`: which constraints of the matrix do the versions of a cell violate?

The facet contains the violations (`harness.matrix.cells.violations`), so there is nothing to run. A violated
constraint fails, unless it is a requirement that an override replaces. Combinations that a published table
merely does not list are stated beside a pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.check import TaskContext
from harness.matrix.model.constraints import ViolationKind
from harness.matrix.model.environment_facets import ConstraintsFacet, ViolatedRule
from harness.measurements import read_shape
from harness.outcome import UNLISTED, Evidence, Judgement, Measured, Status


def run(ctx: TaskContext) -> Measured[ConstraintsFacet]:
    """The facet `constraints` as measurements."""
    facet = read_shape(ConstraintsFacet, ctx.facets["constraints"])
    for violated in facet.violated:
        ctx.log(f"{violated.kind} {violated.rule}: {violated.what}")
    return Measured(measurements=facet, evidence=Evidence.STATIC)


def judge(measurements: ConstraintsFacet, _params: Mapping[str, object]) -> Judgement:
    """Fail if the versions are incompatible or violate a package's requirement that no override replaces."""
    if not measurements.compared:
        return Judgement(
            status=Status.UNSUPPORTED, reasons=("No constraint or table is about versions of this cell.",)
        )
    unlisted = [rule for rule in measurements.violated if rule.kind == ViolationKind.UNLISTED.value]
    others = [rule for rule in measurements.violated if rule not in unlisted]
    broken = [rule for rule in others if not rule.override]
    permitted = [rule for rule in others if rule.override]
    return Judgement(
        status=Status.FAIL if broken else Status.PASS,
        reasons=(
            *map(_sentence, broken),
            *(f"Overridden: {_sentence(rule)} Override: {rule.override}." for rule in permitted),
            *(f"{UNLISTED}{_sentence(rule)}" for rule in unlisted),
        ),
        remedies=tuple(
            f"Choose versions that satisfy {rule.rule}, or correct the constraint if they work together."
            for rule in broken
        ),
    )


def _sentence(rule: ViolatedRule) -> str:
    return f"{rule.what}: {rule.reason.rstrip('.')} ({rule.rule} in matrix.yaml; {rule.source})."
