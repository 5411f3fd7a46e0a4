"""The check `loss`: compares verl's losses, advantages and log-probabilities on the device with float64."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cell_program.program_run import (
    SHOWN_CHARACTERS,
    ProgramFailure,
    Unsupported,
    cell_device,
    run_in_cell,
)
from harness.cell_program.self_test import judge_self_test, self_test_summary
from harness.check import TaskContext
from harness.errors import InfrastructureError
from harness.evidence import evidence_of
from harness.numerics.loss.loss_measurements import (
    LOST,
    UNCALLABLE,
    LossCaseOutcome,
    LossMeasured,
    LossStatus,
)
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.package import IMPORT_ROOT
from harness.serialisation import json_object

if TYPE_CHECKING:
    from harness.numerics.loss.release_objectives import ReleaseObjective

MAX_REASONS = 8
PROGRAM_TIMEOUT_S = 300.0
REFERENCE_TIMEOUT_S = 120.0


LossResult = LossMeasured | ProgramFailure | Unsupported


def run(context: TaskContext) -> Measured[LossResult]:
    """Write the battery, evaluate it in the cell, compute the reference in another process, and compare."""
    # Planning imports this module, but not numpy.
    from harness.numerics.loss.cases.loss_battery import DEFAULT_SEED, default_battery
    from harness.numerics.loss.cases.loss_case import save_cases
    from harness.numerics.loss.loss_program import progress_file

    seed = int(context.params.get("seed", DEFAULT_SEED))
    cases = default_battery(seed)
    battery, results = (context.workdir / name for name in ("battery.npz", "results.npz"))
    save_cases(battery, cases)
    device = cell_device(context)
    end = run_in_cell(
        context,
        "harness.numerics.loss.loss_program",
        *("--cases", str(battery), "--out", str(results), "--device", device, "--faults"),
        out=results,
        what="the loss evaluation",
        timeout=PROGRAM_TIMEOUT_S,
        on=device,
        progress=progress_file(results),
    )
    if isinstance(end, (ProgramFailure, Unsupported)):
        # No device was reported, so the only known evidence is that it ran on a CPU.
        return Measured(measurements=end, evidence=Evidence.CPU, artifacts={battery.name: battery.name})
    return _compare(context, seed, cases, battery, results, end.seconds)


def _compare(
    context: TaskContext, seed: int, cases: Sequence[Any], battery: Path, results_file: Path, seconds: float
) -> Measured[LossResult]:
    # Planning imports this module, but not numpy.
    from harness.numerics.loss.candidate import load_facts, load_results
    from harness.numerics.loss.expected_result import load_expected, load_reference_facts
    from harness.numerics.loss.loss_compare import compare
    from harness.numerics.loss.release_objectives import release_objective

    facts = load_facts(results_file)
    # The release whose objective is expected: that of the cell, otherwise the installed one.
    tree = context.facets.get("verl_tree", {})
    release = str(tree.get("version") or facts.verl)
    # A commit is known by its own source, not by the release that follows.
    revision = f"{release}@{tree['commit']}" if tree.get("commit") else release
    objective = release_objective(revision, facts.source)
    references = context.workdir / "reference.npz"
    _compute_references(context, battery, references, objective)
    reference = load_reference_facts(references)
    compared = compare(cases, load_results(results_file), load_expected(references), objective)
    return Measured(
        measurements=LossMeasured(
            seed=seed,
            verl=release,
            cases=compared.cases,
            counts=compared.counts,
            findings=compared.findings,
            worst_budget=compared.worst_budget,
            self_test=compared.self_test,
            device=facts.device,
            core_algos=facts.core_algos,
            capabilities=facts.capabilities,
            reference=reference,
            seconds={**facts.seconds, "in_cell": round(seconds, 3), "reference": reference.seconds},
        ),
        evidence=evidence_of(facts.device),
        artifacts={path.name: path.name for path in (battery, results_file, references)},
        environment={
            "python": facts.python,
            "numpy": facts.numpy,
            "verl": facts.verl,
            "device": json_object(facts.device),
        },
    )


def _compute_references(context: TaskContext, battery: Path, out: Path, objective: ReleaseObjective) -> None:
    """Write the reference intervals in a process of this host that cannot import torch or verl."""
    completed = context.command(
        [
            *(sys.executable, "-m", "harness.numerics.loss.loss_reference_program"),
            *("--cases", str(battery), "--out", str(out)),
            *("--differences", ",".join(one.id for one in objective.differences)),
        ],
        env={"PYTHONPATH": str(IMPORT_ROOT), "OMP_NUM_THREADS": "1"},
        timeout=REFERENCE_TIMEOUT_S,
    )
    if completed.returncode != 0 or not out.is_file():
        raise InfrastructureError(
            "the reference process failed",
            why=completed.tail[-SHOWN_CHARACTERS:].strip() or f"exit code {completed.returncode}",
            fix=f"run it by hand: {shlex.join(completed.argv)}",
        )


def judge(measurements: LossResult, _params: Mapping[str, Any]) -> Judgement:
    """Pass if no required case fails, a case passes in every group that contains ill-posed cases, and every
    injected fault was caught."""
    if isinstance(measurements, ProgramFailure):
        return _judge_program_failure(measurements)
    if isinstance(measurements, Unsupported):
        return Judgement(status=Status.UNSUPPORTED, reasons=(measurements.why,))
    required = [case for case in measurements.cases if case.is_required]
    failed = [case for case in required if case.status is LossStatus.FAIL]
    if failed:
        return _judge_failed(failed, len(required), measurements.device.device)
    uncallable = [case for case in required if _is_uncallable(case)]
    if uncallable:
        return _judge_uncallable(uncallable, len(required), measurements.verl)
    missed = judge_self_test(measurements.self_test)
    if missed:
        return missed
    passed = sum(case.status is LossStatus.PASS for case in required)
    ill_posed = [case.name for case in required if case.status is LossStatus.ILL_POSED]
    unanswered = sorted({_question(name) for name in ill_posed} - _answered(required))
    if unanswered:
        return _judge_unanswered(unanswered, len(ill_posed), passed)
    unsupported = len(required) - passed - len(ill_posed)
    not_offered = (
        f"; {unsupported} more cases test functions that verl {measurements.verl} does not have"
        if unsupported
        else ""
    )
    summary = (
        f"{passed} cases agree with the float64 reference (worst error {measurements.worst_budget:.0%} of "
        f"its tolerance){not_offered}; {self_test_summary(measurements.self_test)}."
    )
    undecided = (
        (f"{len(ill_posed)} cases are ill-posed in this arithmetic and were not judged.",)
        if ill_posed
        else ()
    )
    findings = (
        f"Finding {finding.id} ({len(finding.cases)} cases): {finding.what}."
        for finding in measurements.findings
    )
    return Judgement(status=Status.PASS, reasons=(summary, *undecided, *findings))


def _question(name: str) -> str:
    """The group of a case: `policy/grpo-near@bf16-io` for `policy/grpo-near/token-mean@bf16-io`."""
    path, at, contract = name.partition("@")
    return "/".join(path.split("/")[:2]) + at + contract


def _answered(required: Sequence[LossCaseOutcome]) -> set[str]:
    return {_question(case.name) for case in required if case.status is LossStatus.PASS}


def _judge_unanswered(questions: Sequence[str], ill_posed: int, passed: int) -> Judgement:
    """Inconclusive: an ill-posed case is accepted only if another case of the same group passed."""
    named = ", ".join(questions[:MAX_REASONS])
    reason = (
        f"{ill_posed} of {passed + ill_posed} cases are ill-posed: the precision is too low for them. "
        f"In {len(questions)} groups of cases ({named}) no case passed."
    )
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=(reason,),
        remedies=("Compute the loss in fp32, or use another seed.",),
    )


def _judge_failed(failed: Sequence[LossCaseOutcome], total: int, device: str) -> Judgement:
    reasons = [f"{len(failed)} of {total} loss cases are wrong on {device}."]
    reasons += [f"{case.name}: {'; '.join(case.reasons)}." for case in failed[:MAX_REASONS]]
    if len(failed) > MAX_REASONS:
        reasons.append(f"{len(failed) - MAX_REASONS} more are listed in the measurements.")
    remedies = [REMEDIES[case.name] for case in failed if case.name in REMEDIES]
    if any(case.reasons[0].startswith(LOST) for case in failed):
        remedies.append(LOST_REMEDY)
    if any(_is_uncallable(case) for case in failed):
        remedies.append(UNCALLABLE_REMEDY)
    kinds = ", ".join(sorted({case.kind for case in failed if _has_value(case)}))
    if kinds:
        remedies.append(
            f"Evaluate the same battery with --device cpu. If {kinds} also fails there, verl's code is "
            "wrong; otherwise the arithmetic of the device is wrong."
        )
    return Judgement(status=Status.FAIL, reasons=tuple(reasons), remedies=tuple(dict.fromkeys(remedies)))


def _is_uncallable(case: LossCaseOutcome) -> bool:
    return case.reasons[:1] != () and case.reasons[0].startswith(UNCALLABLE)


def _has_value(case: LossCaseOutcome) -> bool:
    """Whether something was computed, so that verl's code or the device can be wrong."""
    return not case.reasons[0].startswith((LOST, UNCALLABLE, "raised "))


def _judge_uncallable(cases: Sequence[LossCaseOutcome], total: int, verl: str) -> Judgement:
    """Unsupported: this commit of verl has other interfaces than all that the check was written for."""
    reasons = [
        f"{len(cases)} of {total} loss cases were not evaluated, because verl {verl} has other interfaces."
    ]
    reasons += [f"{case.name}: {'; '.join(case.reasons)}." for case in cases[:MAX_REASONS]]
    return Judgement(
        status=Status.UNSUPPORTED,
        reasons=tuple(reasons),
        remedies=("Read the interfaces of this commit: python -m benchmarks.verl_losses compares releases.",),
    )


UNCALLABLE_REMEDY = (
    "This release as published accepts the calls of this check. Look for a patch that changes the arguments "
    "of the function; verl's trainer calls it in the same way."
)
LOST_REMEDY = (
    "The installed verl lacks a function, or an argument of a function, that this release has. Look for a "
    "patch that removes, renames or replaces it, also in the modules that register it or import it by name."
)
REMEDIES = {
    "advantage/equal-rewards": "Equal rewards must give an advantage of 0. Here a rounding error of the mean "
    "is divided by epsilon. Apply a patch that handles groups without variance, or filter such groups.",
    "aggregation/all-masked": "A micro-batch without valid tokens divides by zero. Apply a patch that guards "
    "the denominator, or pass global denominators.",
}


def _judge_program_failure(failure: ProgramFailure) -> Judgement:
    during = failure.during or "the start, before the first case"
    return Judgement(
        status=Status.FAIL,
        reasons=(f"The loss evaluation {failure.ending} during {during}.", *failure.last_line),
        remedies=("Read the task's log. Run the check again to see whether the failure is repeatable.",),
    )
