"""Precision regressions that the judge lets pass: could any judge have told them from a legal evaluation?

    PYTHONPATH=.:tests/unit/numerics python benchmarks/numerics/survivors.py --contract bf16-io --seeds 9300

Needs numpy alone. For each regression that survives on a case, the legal evaluation nearest to it is made:
the plain candidate, whose exponentials and sums are moved towards the regression's as far as the contract
permits, and no farther. Where that returns the same bits (value in fp32, gradient in the io format), every
judge that fails the regression fails a legal evaluation. The judge must flag none of these evaluations, which
are as far off as the contract permits in every exponential and sum.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from kill_rule import differs
from mutants import REGRESSIONS

from harness.numerics.arithmetic.precision_contract import CONTRACTS, FORMATS, Contract, round_to
from harness.numerics.loss.candidate import CandidateResult, evaluate_one
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_measurements import REQUIRED
from harness.numerics.loss.plain_losses import Floats, PlainCandidate


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A regression that passed a case, and what the nearest legal evaluation returns."""

    case: LossCase
    name: str
    result: CandidateResult
    nearest: CandidateResult

    @property
    def alike(self) -> bool:
        """Whether the nearest legal evaluation returns the same bits."""
        pairs = [(self.result.value, self.nearest.value, "fp32")]
        if self.result.gradient is not None:
            pairs.append((self.result.gradient, self.nearest.gradient, self.case.contract.io))
        return all(
            np.array_equal(round_to(np.asarray(one), form), round_to(np.asarray(other), form))
            for one, other, form in pairs
        )


class Recording(PlainCandidate):
    """Mixed into a regression: keeps what its exponentials and sums return, in the order of the calls."""

    def __call__(self, case: LossCase) -> CandidateResult:
        self.calls: list[Floats] = []
        return super().__call__(case)

    def exp(self, exponent: Floats) -> Floats:
        """As the regression computes it."""
        return self._kept(super().exp(exponent))

    def total(self, terms: Floats, axis: int | None = None) -> Floats:
        """As the regression computes it."""
        return self._kept(super().total(terms, axis))

    def _kept(self, returned: Floats) -> Floats:
        self.calls.append(np.array(returned))
        return returned


class Nearest(PlainCandidate):
    """Legal: every exponential and sum is as near to the given ones as the contract permits."""

    def __init__(self, contract: Contract, calls: Sequence[Floats]) -> None:
        super().__init__("fp32")
        self.contract, self.calls = contract, iter(calls)

    def exp(self, exponent: Floats) -> Floats:
        """Within the contract's units in the last place."""
        wide = np.asarray(exponent, dtype=np.float64)
        ulps = self.contract.exp_ulp + self.contract.exp_ulp_per_unit * np.abs(wide)
        return self._towards(np.exp(wide), ulps * self.contract.ulp * np.exp(wide))

    def total(self, terms: Floats, axis: int | None = None) -> Floats:
        """Within what a sum of so many terms may lose, in any order; counting loses nothing."""
        wide = np.asarray(terms, dtype=np.float64)
        if (wide == np.round(wide)).all() and np.abs(wide).sum() <= 1 / FORMATS["fp32"].unit_roundoff:
            next(self.calls)
            return np.asarray(wide.sum(axis=axis).astype(np.float32))
        count = wide.size if axis is None else wide.shape[axis]
        lost = self.contract.growth(count) * self.contract.unit_sum * np.abs(wide).sum(axis=axis)
        return self._towards(wide.sum(axis=axis), lost)

    def _towards(self, exact: Floats, permitted: Floats) -> Floats:
        wanted = np.asarray(next(self.calls), dtype=np.float64)
        # Rounding to fp32 must not leave what is permitted.
        inside = np.maximum(permitted - self.contract.unit * np.abs(exact), 0.0)
        return np.asarray(np.clip(wanted, exact - inside, exact + inside).astype(np.float32))


def survivors(seeds: Sequence[int], contract: Contract, counts: Counter[str]) -> Iterator[Survivor]:
    """What passes although it can be observed; `counts` gets how many were `observable` and `killed`, and how
    many `legal` evaluations were made and `flagged`."""
    for seed in seeds:
        for case in battery(seed=seed, contract=contract):
            if case.severity != REQUIRED:
                continue
            exact, baseline = (evaluate_one(PlainCandidate(form), case) for form in ("fp64", "fp32"))
            expected = reference(case)
            for name, make in REGRESSIONS.items():
                recorded = type("Recorded", (Recording, make), {})("fp32")
                result = evaluate_one(recorded, case)
                nearest = evaluate_one(Nearest(contract, recorded.calls), case)
                counts["legal"] += 1
                counts["flagged"] += not judge(case, nearest, expected).ok
                if not differs(case, result, exact) or not differs(case, result, baseline):
                    continue
                counts["observable"] += 1
                if judge(case, result, expected).ok:
                    yield Survivor(case=case, name=name, result=result, nearest=nearest)
                else:
                    counts["killed"] += 1


def main() -> int:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--contract", choices=("fp32", "bf16-io", "fp16-io"), default="bf16-io")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[9300])
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    for one in survivors(arguments.seeds, CONTRACTS[arguments.contract], counts):
        counts["alike"] += one.alike
        told = "a" if one.alike else "no known"
        print(f"{one.case.name} {one.name}: {told} legal evaluation returns the same bits")
    found = counts["observable"]
    print(
        f"{counts['killed']} of {found} killed ({100 * counts['killed'] / found:.2f} %), "
        f"{counts['alike']} that no judge can tell, {found - counts['killed'] - counts['alike']} others; "
        f"{counts['flagged']} of {counts['legal']} legal evaluations flagged"
    )
    return 1 if counts["flagged"] else 0


if __name__ == "__main__":
    sys.exit(main())
