"""Results against references: verdict per case, findings, self-test; all as JSON measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.numerics.loss.candidate import CandidateResult
from harness.numerics.loss.cases.loss_case import ROBUSTNESS, LossCase
from harness.numerics.loss.expected_result import ExpectedResult
from harness.numerics.loss.judge_case import LossStatus, LossVerdict, judge
from harness.numerics.loss.loss_faults import LOSS_FAULTS, SELF_TEST_CASES, SEPARATOR
from harness.numerics.loss.loss_reference_program import ACTUAL
from harness.numerics.loss.release_objectives import (
    MISSING_CAPABILITIES,
    ObjectiveDifference,
    ReleaseObjective,
)

SIGNIFICANT_DIGITS = 4


def compare(
    cases: Sequence[LossCase],
    results: Mapping[str, CandidateResult],
    intervals: Mapping[str, ExpectedResult],
    profile: ReleaseObjective,
) -> dict[str, Any]:
    """Measurements of one run: `cases` (one object each), `counts`, `findings`, `worst_budget`, `self_test`.

    A case passes when the result is what the release is known to compute or what the standard objective is;
    where those two differ, which one it was is a finding.
    """
    entries = []
    findings = _Findings()
    for case in cases:
        result = results.get(case.name, CandidateResult(error="was not evaluated"))
        standard = judge(case, result, intervals[case.name])
        actual, differences = profile.actual(case)
        verdict = standard
        if differences:
            recorded = judge(actual, result, intervals[case.name + ACTUAL])
            findings.objective(case, standard, recorded, differences)
            verdict = standard if standard.ok else recorded
        findings.case(case, verdict)
        entries.append(_entry(case, verdict))
    required = [entry for entry in entries if entry["severity"] != ROBUSTNESS]
    judged = [entry["budget"] for entry in required if entry["status"] == LossStatus.PASS.value]
    return {
        "cases": entries,
        "counts": dict(Counter(entry["status"] for entry in required)),
        "findings": findings.to_json(),
        "worst_budget": max(judged, default=0.0),
        "self_test": self_test(cases, results, intervals),
    }


def self_test(
    cases: Sequence[LossCase], results: Mapping[str, CandidateResult], intervals: Mapping[str, ExpectedResult]
) -> list[dict[str, Any]]:
    """Each seeded fault: whether it was caught in every self-test case that was evaluated under it.

    A fault that was evaluated nowhere, or whose cases are wrong without it already, counts as not caught.
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
        seen = [name for name, verdict in verdicts.items() if _is_caught(verdict)]
        clean = [name for name in seen if judge(by_name[name], results[name], intervals[name]).ok]
        report.append(
            {
                "fault": fault.id,
                "what": fault.what,
                "caught": bool(verdicts) and len(clean) == len(verdicts),
                "caught_in": clean,
                "missed_in": sorted(set(verdicts) - set(clean)),
                "scale": {name: _rounded(verdict.scale) for name, verdict in verdicts.items()},
            }
        )
    return report


def _is_caught(verdict: LossVerdict) -> bool:
    return verdict.status is LossStatus.FAIL and not any(
        reason.startswith("raised") for reason in verdict.reasons
    )


def _entry(case: LossCase, verdict: LossVerdict) -> dict[str, Any]:
    return {
        "name": case.name,
        "kind": case.operation,
        "severity": case.severity,
        "status": verdict.status.value,
        "reasons": list(verdict.reasons),
        "budget": _rounded(verdict.budget),
        "scale": _rounded(verdict.scale),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.{SIGNIFICANT_DIGITS}g}")


class _Findings:
    """Collects findings by id, each with the cases that show it."""

    def __init__(self) -> None:
        self.what: dict[str, dict[str, Any]] = {}

    def add(self, identifier: str, kind: str, what: str, source: str, case: LossCase) -> None:
        entry = self.what.setdefault(
            identifier, {"id": identifier, "kind": kind, "what": what, "source": source, "cases": []}
        )
        entry["cases"].append(case.name)

    def objective(
        self,
        case: LossCase,
        standard: LossVerdict,
        recorded: LossVerdict,
        differences: Iterable[ObjectiveDifference],
    ) -> None:
        """Which of two objectives a result agrees with."""
        for difference in differences:
            if recorded.ok and not standard.ok:
                self.add(difference.id, "objective", difference.what, difference.source, case)
            elif standard.ok and not recorded.ok:
                what = (
                    f"computes the standard objective although its release is known not to: {difference.what}"
                )
                self.add(f"standard-despite-{difference.id}", "objective", what, difference.source, case)

    def case(self, case: LossCase, verdict: LossVerdict) -> None:
        """What a release does not offer, and what it does not promise but would be good to have."""
        if verdict.status is LossStatus.UNSUPPORTED:
            for need in case.requires:
                if verdict.reasons and verdict.reasons[0].endswith(f"has no {need}"):
                    what = MISSING_CAPABILITIES.get(need, f"does not offer {need}")
                    self.add(f"no-{need}", "capability", what, "signatures of the installed package", case)
        elif verdict.status is LossStatus.FAIL and case.severity == ROBUSTNESS:
            what = "numbers that are not finite leak from padding into the loss or its gradient"
            self.add("padding-leaks", "robustness", what, "measured", case)

    def to_json(self) -> list[dict[str, Any]]:
        return [self.what[identifier] for identifier in sorted(self.what)]
