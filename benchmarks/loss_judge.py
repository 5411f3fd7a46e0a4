"""How well the check `loss` separates wrong from correct implementations, on held-out seeds and mutants.

Legal evaluations differ in the order of summation, exponential, masking and precision inside; failing one is
a false alarm. A wrong loss counts on a case only where it changes the result by more than max(1e-4, two unit
roundoffs of the io format) in relative L2. Rivals judge the same arrays: torch.testing.assert_close with its
default tolerances (computed with numpy), and relative L2 (1e-3, and 5e-2 for 16-bit inputs). When a figure of
the held-out seeds or mutants leads to a change of the judge, take new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mutants import LEGAL, MUTANTS, REGRESSIONS
from plain_losses import PlainCandidate

from benchmarks.figures import Figure
from benchmarks.held_out_losses import HELD_OUT, LATER
from harness.numerics.arithmetic.precision_contract import BF16_IO, FORMATS, FP16_IO, FP32, round_to
from harness.numerics.loss.candidate import CandidateResult, evaluate_one
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedResult
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_measurements import REQUIRED, LossStatus

HELD_OUT_SEEDS = (9300,)
CLOSE = {"fp32": 1.3e-6, "bf16": 1.6e-2, "fp16": 1e-3}
#: A convention of scripts in use, not derived from anything.
RELATIVE_L2 = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The inputs of every rule: the case, its reference, the exact result, a correct evaluation in fp32."""

    case: LossCase
    expected: ExpectedResult
    exact: CandidateResult
    baseline: CandidateResult


Rule = Callable[[Evidence, CandidateResult], bool]


def evidence() -> Iterator[Evidence]:
    exact, baseline = PlainCandidate("fp64"), PlainCandidate("fp32")
    for contract in (FP32, BF16_IO, FP16_IO):
        for seed in HELD_OUT_SEEDS:
            for case in battery(seed=seed, contract=contract):
                if case.severity == REQUIRED:
                    yield Evidence(
                        case=case,
                        expected=reference(case),
                        exact=evaluate_one(exact, case),
                        baseline=evaluate_one(baseline, case),
                    )


def pairs(case: LossCase, got: CandidateResult, exact: CandidateResult) -> Iterator[tuple[Array, Array, str]]:
    """Value and gradient of both, rounded to their format."""
    io = case.contract.io
    for mine, right, form in ((got.value, exact.value, "fp32"), (got.gradient, exact.gradient, io)):
        if mine is not None and right is not None:
            yield round_to(np.asarray(mine), form), round_to(np.asarray(right), form), form


def accepts(item: Evidence, result: CandidateResult) -> bool:
    """The rule of the check `loss`; an ill-posed case is no failure."""
    return judge(item.case, result, item.expected).status is not LossStatus.FAIL


def assert_close(item: Evidence, result: CandidateResult) -> bool:
    """torch.testing.assert_close with its default tolerances."""
    return all(
        np.isfinite(got).all() and bool((np.abs(got - exact) <= 1e-5 + CLOSE[form] * np.abs(exact)).all())
        for got, exact, form in pairs(item.case, result, item.exact)
    )


def relative_l2(item: Evidence, result: CandidateResult) -> bool:
    """||got - exact|| <= tolerance * ||exact||."""
    return all(
        np.isfinite(got).all()
        and bool(np.linalg.norm(got - exact) <= RELATIVE_L2[form] * np.linalg.norm(exact) + 1e-12)
        for got, exact, form in pairs(item.case, result, item.exact)
    )


def differs(case: LossCase, result: CandidateResult, other: CandidateResult) -> bool:
    """Whether two results of a case differ after rounding to the input and output format."""
    threshold = max(1e-4, 2 * FORMATS[case.contract.io].unit_roundoff)
    for got, exact, _form in pairs(case, result, other):
        if not np.isfinite(exact).all():
            return False
        distance = np.linalg.norm(got - exact)
        if not np.isfinite(got).all() or distance > threshold * np.linalg.norm(exact):
            return True
    return False


def false_alarms(items: Sequence[Evidence]) -> tuple[int, Counter[str]]:
    """Correct evaluations, and how many of them each rule rejects."""
    counts: Counter[str] = Counter()
    evaluations = 0
    for item in items:
        for make in LEGAL.values():
            result = evaluate_one(make(), item.case)
            if not result.unsupported:
                evaluations += 1
                counts.update(name for name, rule in RULES.items() if not rule(item, result))
    return evaluations, counts


def kills(
    items: Sequence[Evidence], wrong: Mapping[str, type[PlainCandidate]], *, in_float64: bool
) -> tuple[int, Counter[str]]:
    """Wrong results that can be observed, and how many each rule fails.

    `in_float64`: the mutant must also differ where rounding plays no part.
    """
    counts: Counter[str] = Counter()
    observable = 0
    for item in items:
        for make in wrong.values():
            result = evaluate_one(make("fp32"), item.case)
            exact = evaluate_one(make("fp64"), item.case) if in_float64 else result
            if differs(item.case, exact, item.exact) and differs(item.case, result, item.baseline):
                rejected = [rule for rule, accepted in RULES.items() if not accepted(item, result)]
                observable += 1
                counts.update(rejected)
    return observable, counts


def figures() -> Iterator[Figure]:
    items = list(evidence())
    production = [one for one in items if "production" in one.case.name or "accumulated" in one.case.name]
    of, alarms = false_alarms(items)
    for rival in (name for name in RULES if name != OURS):
        yield Figure(
            claim=f"false alarms in {of} legal evaluations",
            measured=alarms[OURS],
            limit=0,
            rival=alarms[rival],
            rival_name=rival,
        )
    held_out = {**HELD_OUT, **LATER}
    groups = (
        ("held-out mutants failed, all cases", 99.5, items, held_out, True),
        ("held-out mutants failed, production micro-batch", 99.5, production, held_out, True),
        ("development mutants failed, production micro-batch", 99.5, production, MUTANTS, True),
        ("precision regressions failed", 95.0, items, REGRESSIONS, False),
    )
    for claim, limit, cases, wrong, in_float64 in groups:
        of, counts = kills(cases, wrong, in_float64=in_float64)
        best = max((name for name in RULES if name != OURS), key=lambda name: counts[name])
        yield Figure(
            claim=f"{claim} (n = {of})",
            measured=100 * counts[OURS] / of,
            unit="%",
            limit=limit,
            is_lower_limit=True,
            rival=100 * counts[best] / of,
            rival_name=best,
        )


OURS = "ours"
RULES: Mapping[str, Rule] = {OURS: accepts, "assert_close": assert_close, "relative L2": relative_l2}
