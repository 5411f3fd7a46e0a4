"""Judges the measurements of the checks of vLLM's engine. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.cell_program.unsimulated_operators import judge_unsimulated
from harness.outcome import Judgement, Status
from harness.rollout.generation.generation_measurements import (
    CaseResult,
    EngineFailure,
    EngineGroup,
    FaultResult,
    GeneratedCase,
    GenerationMeasurements,
    PlumbingMeasurements,
    PlumbingStep,
    RaisedCase,
    SkippedCase,
    UnmeasuredFault,
)
from harness.rollout.operators.operator_result import OperatorMeasurement

FORGOTTEN = "one tensor forgotten"
MOST_REASONS = 8

SHARED_KERNELS = (
    "The simulated device and the CPU reference use the same kernels: agreement shows that tokens, caches, "
    "masks and weights are routed correctly, but says nothing about the rounding of Ascend hardware."
)
UNCOVERED = ("graph mode", "torchair")
UNCOVERED_SIMULATED = (*UNCOVERED, "compiled Triton kernels", "HCCL itself")


Fault = FaultResult | UnmeasuredFault
Engine = EngineGroup | EngineFailure


def generation(measured: GenerationMeasurements, _params: Mapping[str, Any]) -> Judgement:
    """Judge the generated cases.

    Pass when every case is within its tolerance, every token was chosen correctly, and every injected fault
    was detected and, unless it is a fault of graphs, traced to its operator.
    Fail when a case is outside its tolerance or raised an error.
    Inconclusive when nothing is wrong, but the simulated device lacks an operator, or a fault was not
    detected, or no fault was injected.
    """
    ends = list(_engine_failures(measured.groups))
    if ends:
        return Judgement(status=Status.FAIL, reasons=tuple(ends), remedies=(READ_LOG,))
    missing = judge_unsimulated(_unsimulated(measured.cases))
    wrong = _wrong_operators(measured.operators)
    failed = [reason for case in measured.cases for reason in _case_failures(case)]
    if failed or wrong:
        operators = [f"Operator {name} is wrong: it differs from its plain formula." for name in wrong]
        return Judgement(
            status=Status.FAIL,
            reasons=(*_shortened(failed), *operators, *missing.reasons, *_generation_caveats(measured)),
            remedies=(_look_at(wrong),),
        )
    if missing.reasons:
        return missing
    missed = list(_missed_faults(measured.faults)) or _without_faults(measured.faults)
    generated = [case for case in measured.cases if isinstance(case, GeneratedCase)]
    if missed or not generated:
        why = missed or ["No case generated anything."]
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=("The check did not detect every injected fault, so a pass would prove little.", *why),
            remedies=("Look at `faults` in the measurements, and report it with the results artifact.",),
        )
    return Judgement(
        status=Status.PASS,
        reasons=(
            *_summary(generated, measured.faults),
            *_skipped(measured.cases),
            *_generation_caveats(measured),
        ),
    )


def plumbing(measured: PlumbingMeasurements, _params: Mapping[str, Any]) -> Judgement:
    """Judge the steps of sleep, wake-up, reload and weight sync.

    Pass when every step behaves as a trainer expects, the engine generates what the CPU reference computes
    with the old and with the new weights, and an update that omits a tensor is detected.
    """
    ends = list(_engine_failures(measured.groups))
    if ends:
        return Judgement(status=Status.FAIL, reasons=tuple(ends), remedies=(READ_LOG,))
    missing = judge_unsimulated(sorted({name for step in measured.steps for name in step.not_simulated}))
    cases = {case.name: case for case in measured.cases}
    failed = [reason for step in measured.steps for reason in _step_failures(step)]
    failed += [reason for name, case in cases.items() if name != FORGOTTEN for reason in _case_failures(case)]
    if failed:
        reasons = (*_shortened(failed), *missing.reasons, *_caveats(measured.groups))
        return Judgement(status=Status.FAIL, reasons=reasons, remedies=(READ_LOG,))
    if missing.reasons:
        return missing
    forgotten = cases.get(FORGOTTEN)
    if forgotten is None or forgotten.budget <= 1:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=("An update that omits a tensor was not detected, so a pass would prove little.",),
        )
    summary = (
        f"All {len(measured.steps)} steps of sleep, wake-up, reload and weight sync behave as expected. With "
        "the new weights the engine agrees with the CPU reference "
        f"(error {cases['new weights'].budget:.0%} of the tolerance), and an update that omits a tensor is "
        "detected."
    )
    return Judgement(status=Status.PASS, reasons=(summary, *_caveats(measured.groups)))


READ_LOG = "Read the task's log and the results among its artifacts."


def _engine_failures(groups: Iterable[Engine]) -> Iterator[str]:
    for group in groups:
        if isinstance(group, EngineFailure):
            yield f"The engine ({group.group}) {group.ending}."
            yield from group.last_line


def _unsimulated(cases: Iterable[CaseResult]) -> list[str]:
    raised = [case for case in cases if isinstance(case, RaisedCase)]
    return sorted({name for case in raised for name in case.not_simulated})


def _wrong_operators(results: Iterable[OperatorMeasurement]) -> list[str]:
    return sorted({result.operator for result in results if result.budget > 1})


def _case_failures(case: CaseResult) -> Iterator[str]:
    if isinstance(case, RaisedCase) and not case.not_simulated:
        yield f"{case.name}: {case.error}"
    if not isinstance(case, GeneratedCase):
        return
    if case.budget > 1:
        yield (
            f"{case.name}: log-probabilities are off by up to {case.largest:.3g} "
            f"(tolerance {case.permitted.largest:.3g}), rms {case.rms:.3g} "
            f"(tolerance {case.permitted.rms:.3g})."
        )
    if case.choice:
        yield f"{case.name}: {case.choice}."
    if case.expects_cached and not case.cached:
        yield f"{case.name}: the prefix cache was never used."
    if case.expects_replays and not case.replays:
        yield f"{case.name}: no graph was replayed."


def _without_faults(faults: Sequence[Fault]) -> list[str]:
    return [] if faults else ["No fault was injected, so the check did not show that it detects faults."]


def _missed_faults(faults: Iterable[Fault]) -> Iterator[str]:
    for fault in faults:
        if isinstance(fault, UnmeasuredFault):
            if fault.state == "unplaced":
                yield (
                    f"{fault.case}: no fault was injected into the operators of the family {fault.family}, "
                    "because none of the called operators belongs to it."
                )
        elif not fault.hit:
            yield f"{fault.case}: fault {fault.fault} affected no operator."
        elif fault.budget <= 1 and not fault.choice:
            yield f"{fault.case}: fault {fault.fault} in {_names(fault.hit)} was not detected."
        elif not fault.only_in_graphs and not set(fault.hit) <= set(fault.named):
            unnamed = set(fault.hit) - set(fault.named)
            yield f"{fault.case}: fault {fault.fault} was detected but not traced to {_names(unnamed)}."


def _step_failures(step: PlumbingStep) -> Iterator[str]:
    if step.not_simulated:
        return
    if step.found != step.expect:
        message = f": {step.message}" if step.message else ""
        yield f"{step.name}: {_MEANING[step.expect]}, but {_FOUND[step.found]}{message}."
    if step.bytes is not None and step.bytes.asleep >= step.bytes.before:
        yield f"{step.name}: sleep mode freed none of the {step.bytes.before} bytes in use."


_MEANING = {
    "same": "the generated tokens must stay the same",
    "different": "the generated tokens must change",
    "refused": "vllm-ascend must refuse this setting",
}
_FOUND = {
    "same": "they stayed the same",
    "different": "they changed",
    "refused": "the setting was refused",
    "accepted": "the setting was accepted",
    "raised": "an error was raised",
}


def _summary(generated: Sequence[GeneratedCase], faults: Iterable[Fault]) -> Iterator[str]:
    tokens = sum(case.tokens for case in generated)
    worst = max(case.budget for case in generated)
    injected = [fault for fault in faults if isinstance(fault, FaultResult)]
    yield (
        f"In {len(generated)} cases with {tokens} tokens the log-probabilities agree with transformers in "
        f"float64 (worst error {worst:.0%} of the tolerance)."
    )
    replays = sum(case.replays for case in generated)
    if replays:
        yield f"Graphs were replayed {replays} times."
    of_graphs = sum(fault.only_in_graphs for fault in injected)
    if injected:
        quiet = sum(fault.likeliest == fault.tokens for fault in injected)
        yield (
            f"All {len(injected)} injected faults were detected and traced to their operators; {quiet} of "
            "them change no token."
            if not of_graphs
            else f"All {len(injected)} injected faults were detected, and those of operators "
            f"({len(injected) - of_graphs}) traced to them; {quiet} of them change no token."
        )


def _skipped(cases: Iterable[CaseResult]) -> Iterator[str]:
    for case in cases:
        if isinstance(case, SkippedCase):
            yield f"Not run: {case.name} ({case.why})."


def _generation_caveats(measured: GenerationMeasurements) -> Iterator[str]:
    for result in measured.operators:
        if result.state == "raised":
            yield f"Operator {result.operator} could not be tested on its own: {result.message}"
    graphs = any(isinstance(case, GeneratedCase) and case.replays for case in measured.cases)
    yield from _caveats(measured.groups, covered=UNCOVERED[:1] if graphs else ())


def _caveats(groups: Iterable[Engine], covered: Sequence[str] = ()) -> Iterator[str]:
    simulated = any(isinstance(group, EngineGroup) and group.device.simulated for group in groups)
    if simulated:
        yield SHARED_KERNELS
    uncovered = [what for what in (UNCOVERED_SIMULATED if simulated else UNCOVERED) if what not in covered]
    yield f"Not covered: {', '.join(uncovered)}."


def _look_at(wrong: Sequence[str]) -> str:
    if wrong:
        return f"Start with {_names(wrong)}."
    return (
        "No operator of the test battery is wrong: look at the inputs of the operators, or at operators that "
        "the battery does not test."
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _shortened(reasons: Sequence[str]) -> list[str]:
    if len(reasons) <= MOST_REASONS:
        return list(reasons)
    return [*reasons[:MOST_REASONS], f"... and {len(reasons) - MOST_REASONS} more, in the measurements."]
