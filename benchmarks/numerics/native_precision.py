"""Native 16-bit arithmetic: what share of the loss battery is ill-posed, correct evaluations that fail, and
wrong gradients that pass.

    python -m benchmarks.numerics.native_precision --seeds 10

Run it with the Python of an environment that has verl. verl's own functions run on tensors that stay in bf16
or fp16; the same cases in float64, and in fp32 with a result that is rounded once, are correct, too. A wrong
gradient is that of a correct evaluation, zero or 10 % off. A case is in doubt neither way if it is ill-posed.
Exit code 1 if a correct evaluation fails, a wrong gradient passes, or more cases are ill-posed than LIMITS.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from harness.numerics.arithmetic.precision_contract import BF16_NATIVE, FP16_NATIVE, FP32, Contract, round_to
from harness.numerics.loss.candidate import CandidateResult, evaluate_one
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedResult
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_measurements import REQUIRED, LossStatus
from harness.numerics.loss.release_objectives import release_objective
from harness.numerics.loss.verl_adapters import VerlCandidate

LIMITS = {"bf16-native": 0.1525, "fp16-native": 0.135}
"""Half of the shares of the prototype of the judge."""

FIRST_SEED = 51_000
FACTORS = (0.0, 0.9, 1.1)


class NativeCandidate(VerlCandidate):
    """verl's functions on tensors that keep the format of the inputs."""

    def _as_fp32(self, tensor: object) -> object:
        return tensor


def exact(case: LossCase, expected: ExpectedResult) -> CandidateResult:
    """The reference itself, its gradient rounded to the format of the inputs."""
    gradient = expected.gradient
    rounded = None if gradient is None else round_to(gradient.exact, case.contract.io)
    return CandidateResult(value=expected.value, gradient=rounded)


def with_more_precision(candidate: VerlCandidate, case: LossCase) -> CandidateResult:
    """verl in fp32, its gradient rounded once."""
    found = evaluate_one(candidate, replace(case, contract=replace(FP32, io=case.contract.io)))
    if found.gradient is None:
        return found
    return replace(found, gradient=round_to(found.gradient, case.contract.io))


def wrong_gradients(case: LossCase, right: CandidateResult) -> Iterator[CandidateResult]:
    """A correct evaluation whose gradient is zero, and 10 % too small or too large."""
    if right.gradient is None or not np.any(right.gradient):
        return
    for factor in FACTORS:
        yield replace(right, gradient=round_to(factor * right.gradient, case.contract.io))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.numerics.native_precision", description=__doc__
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, npu:0")
    parser.add_argument("--seeds", type=int, default=10, help="batteries to draw")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--show", action="store_true", help="name the cases")
    arguments = parser.parse_args(argv)
    native, usual = NativeCandidate(arguments.device), VerlCandidate(arguments.device)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    kept = True
    for contract in (BF16_NATIVE, FP16_NATIVE):
        kept = measure(native, usual, contract, seeds, show=arguments.show) and kept
    return 0 if kept else 1


def measure(
    native: VerlCandidate, usual: VerlCandidate, contract: Contract, seeds: range, *, show: bool
) -> bool:
    """Count and print one contract; whether its limits are kept."""
    objective = release_objective(native.version)
    counts: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for case in (one for seed in seeds for one in battery(seed=seed, contract=contract)):
        if case.severity != REQUIRED or not objective.capabilities.issuperset(case.requires):
            continue
        released = objective.released_case(case)[0]
        expected = reference(released)
        right = [
            exact(released, expected),
            evaluate_one(native, case),
            with_more_precision(usual, case),
        ]
        counts["cases"] += 1
        verdicts = [judge(released, one, expected) for one in right]
        for what, verdict in zip(("exact", "native", "fp32"), verdicts, strict=True):
            counts["correct"] += 1
            if verdict.status is LossStatus.FAIL:
                counts["false alarms"] += 1
                named[f"false alarm, {what}: {case.name}: {verdict.reasons[0]}"] += 1
        if verdicts[0].status is LossStatus.ILL_POSED:
            counts["ill-posed"] += 1
            named[f"ill-posed: {case.name}: {verdicts[0].reasons[0]}"] += 1
        for wrong in (one for result in right[:2] for one in wrong_gradients(case, result)):
            counts["wrong"] += 1
            if judge(released, wrong, expected).status is LossStatus.PASS:
                counts["passed"] += 1
                named[f"wrong gradient passes: {case.name}"] += 1
    share = counts["ill-posed"] / max(counts["cases"], 1)
    print(
        f"{contract.name}, verl {native.version}: {share:.1%} of {counts['cases']} cases are ill-posed "
        f"(limit {LIMITS[contract.name]:.1%}), {counts['false alarms']} of {counts['correct']} correct "
        f"evaluations fail, {counts['passed']} of {counts['wrong']} wrong gradients pass"
    )
    for line, number in sorted(named.items()) if show else ():
        print(f"  {number} x {line}")
    return share <= LIMITS[contract.name] and not counts["false alarms"] and not counts["passed"]


if __name__ == "__main__":
    sys.exit(main())
