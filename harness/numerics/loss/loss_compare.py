"""Compares results with references: a verdict for each case, findings, and the self-test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.numerics.loss.candidate import CandidateResult
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedResult
from harness.numerics.loss.judge_case import LossVerdict, judge
from harness.numerics.loss.loss_faults import LOSS_FAULTS, SELF_TEST_CASES, SEPARATOR
from harness.numerics.loss.loss_measurements import (
    LOST,
    ROBUSTNESS,
    UNCALLABLE,
    LossCaseOutcome,
    LossFinding,
    LossInjectedFault,
    LossStatus,
)
from harness.numerics.loss.loss_reference_program import ACTUAL
from harness.numerics.loss.release_objectives import (
    MISSING_CAPABILITIES,
    ObjectiveDifference,
    ReleaseObjective,
)

SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class BatteryComparison:
    """The comparison of results with references. The fields are those of `LossMeasured`."""

    cases: tuple[LossCaseOutcome, ...]
    counts: Mapping[str, int]
    findings: tuple[LossFinding, ...]
    worst_budget: float
    self_test: tuple[LossInjectedFault, ...]


def compare(
    cases: Sequence[LossCase],
    results: Mapping[str, CandidateResult],
    intervals: Mapping[str, ExpectedResult],
    objective: ReleaseObjective,
) -> BatteryComparison:
    """Judge the results of one run.

    A case passes if its result agrees with the standard objective or with the objective that the release is
    known to compute. If these differ, a finding says with which of them the result agrees.
    """
    outcomes = []
    findings = _Findings()
    for case in cases:
        result = results.get(case.name, CandidateResult(error="was not evaluated"))
        standard = judge(case, result, intervals[case.name])
        released, differences = objective.released_case(case)
        verdict = standard
        if differences:
            recorded = judge(released, result, intervals[case.name + ACTUAL])
            findings.objective(case, standard, recorded, differences)
            verdict = standard if standard.ok else recorded
        if _is_lost(case, verdict, objective):
            verdict = _lost(objective, verdict)
        if _is_uncallable(verdict) and not objective.known:
            verdict = replace(verdict, status=LossStatus.UNSUPPORTED)
        if verdict.status is LossStatus.FAIL and result.place:
            verdict = replace(verdict, reasons=(*verdict.reasons, f"it is computed in {result.place}"))
        findings.case(case, verdict)
        outcomes.append(_outcome(case, verdict))
    required = [outcome for outcome in outcomes if outcome.is_required]
    return BatteryComparison(
        cases=tuple(outcomes),
        counts=dict(Counter(outcome.status.value for outcome in required)),
        findings=findings.sorted(),
        worst_budget=max(
            (outcome.budget for outcome in required if outcome.status is LossStatus.PASS), default=0.0
        ),
        self_test=self_test(cases, results, intervals),
    )


def self_test(
    cases: Sequence[LossCase],
    results: Mapping[str, CandidateResult],
    intervals: Mapping[str, ExpectedResult],
) -> tuple[LossInjectedFault, ...]:
    """For each injected fault, whether every self-test case that was evaluated with it detected it.

    A fault that was not evaluated, or whose cases also fail without it, counts as missed.
    """
    by_name = {case.name: case for case in cases}
    report = []
    for fault in LOSS_FAULTS:
        verdicts = {
            name: judge(by_name[name], results[key], intervals[name])
            for name in SELF_TEST_CASES
            if name in by_name and (key := f"{fault.id}{SEPARATOR}{name}") in results
            if not results[key].unsupported
        }
        caught = [name for name, verdict in verdicts.items() if _is_caught(verdict)]
        clean = [name for name in caught if judge(by_name[name], results[name], intervals[name]).ok]
        report.append(
            LossInjectedFault(
                fault=fault.id,
                what=fault.what,
                caught=bool(verdicts) and len(clean) == len(verdicts),
                caught_in=tuple(clean),
                missed_in=tuple(sorted(set(verdicts) - set(clean))),
                scale={name: _rounded_scale(verdict.scale) for name, verdict in verdicts.items()},
            )
        )
    return tuple(report)


def _is_lost(case: LossCase, verdict: LossVerdict, objective: ReleaseObjective) -> bool:
    """Whether a case was not evaluated although this release has everything that it requires."""
    return verdict.status is LossStatus.UNSUPPORTED and objective.capabilities.issuperset(case.requires)


def _lost(objective: ReleaseObjective, verdict: LossVerdict) -> LossVerdict:
    why = f"{LOST}verl {objective.version} as released computes this, the installed package does not"
    return LossVerdict(status=LossStatus.FAIL, reasons=(why, *verdict.reasons))


def _is_uncallable(verdict: LossVerdict) -> bool:
    return any(reason.startswith(UNCALLABLE) for reason in verdict.reasons)


def _is_caught(verdict: LossVerdict) -> bool:
    return verdict.status is LossStatus.FAIL and not any(
        reason.startswith(("raised", UNCALLABLE)) for reason in verdict.reasons
    )


def _outcome(case: LossCase, verdict: LossVerdict) -> LossCaseOutcome:
    return LossCaseOutcome(
        name=case.name,
        kind=case.operation,
        severity=case.severity,
        status=verdict.status,
        reasons=verdict.reasons,
        budget=_rounded(verdict.budget),
        scale=_rounded_scale(verdict.scale),
    )


def _rounded_scale(scale: float | None) -> float | None:
    return None if scale is None else _rounded(scale)


def _rounded(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")


class _Findings:
    """Collects findings by id, with the cases in which they occur."""

    def __init__(self) -> None:
        self.found: dict[str, LossFinding] = {}

    def add(self, identifier: str, kind: str, what: str, source: str, case: LossCase) -> None:
        finding = self.found.get(identifier) or LossFinding(
            id=identifier, kind=kind, what=what, source=source, cases=()
        )
        self.found[identifier] = replace(finding, cases=(*finding.cases, case.name))

    def objective(
        self,
        case: LossCase,
        standard: LossVerdict,
        recorded: LossVerdict,
        differences: Iterable[ObjectiveDifference],
    ) -> None:
        """Record with which of the two objectives a result agrees."""
        for difference in differences:
            if recorded.ok and not standard.ok:
                what = f"{difference.what}; {difference.consequence}"
                self.add(difference.id, "objective", what, difference.source, case)
            elif standard.ok and not recorded.ok:
                what = (
                    "computes the standard objective although this release is known to differ from it: "
                    f"{difference.what}"
                )
                self.add(f"standard-despite-{difference.id}", "objective", what, difference.source, case)

    def case(self, case: LossCase, verdict: LossVerdict) -> None:
        """Record capabilities that a release lacks, and values of padding that change results."""
        if verdict.status is LossStatus.UNSUPPORTED:
            for capability in case.requires:
                if verdict.reasons and verdict.reasons[0].endswith(f"has no {capability}"):
                    what = MISSING_CAPABILITIES.get(capability, f"does not offer {capability}")
                    source = "signatures of the installed package"
                    self.add(f"no-{capability}", "capability", what, source, case)
        elif verdict.status is LossStatus.FAIL and case.severity == ROBUSTNESS:
            what = "infinite values or NaN in padding change the loss or its gradient"
            self.add("padding-leaks", "robustness", what, "measured", case)

    def sorted(self) -> tuple[LossFinding, ...]:
        return tuple(self.found[identifier] for identifier in sorted(self.found))
