"""What the measurements of generation and of its plumbing mean. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.cell_program.ending import MEASURED, ended, last_words
from harness.cell_program.unsimulated_operators import judge_unsimulated
from harness.outcome import Judgement, Status

HEALTHY, FORGOTTEN = "healthy", "one tensor forgotten"
MOST_REASONS = 8

SHARED_KERNELS = (
    "The simulated device computes with the kernels of the CPU reference: agreement shows that tokens, "
    "caches, masks and weights go where they belong, not how Ascend rounds."
)
UNCOVERED = "Not covered: graph mode, torchair."
UNCOVERED_SIMULATED = "Not covered: graph mode, torchair, compiled Triton kernels, HCCL itself."


def generation(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pass when every case is within what is permitted, every choice is right and every seeded fault was
    found and traced; fail when a case is not or raised.

    Inconclusive when nothing is wrong but the simulation lacks an operator, or a fault went unnoticed, or
    none was seeded.
    """
    ends = list(_ends(measurements["groups"]))
    if ends:
        return Judgement(status=Status.FAIL, reasons=tuple(ends), remedies=(READ_LOG,))
    missing = judge_unsimulated(_missing(measurements["cases"]))
    wrong = _wrong_operators(measurements["operators"])
    failed = [reason for case in _computed(measurements["cases"]) for reason in _case_failures(case)]
    if failed or wrong:
        operators = [f"Against plain formulas, operator {name} is wrong." for name in wrong]
        return Judgement(
            status=Status.FAIL,
            reasons=(*_shortened(failed), *operators, *missing.reasons, *_caveats(measurements)),
            remedies=(_look_at(wrong),),
        )
    if missing.reasons:
        return missing
    missed = list(_missed_faults(measurements["faults"])) or _unseeded(measurements["faults"])
    generated = [case for case in measurements["cases"] if case["state"] == "generated"]
    if missed or not generated:
        why = missed or ["No case generated anything."]
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=("Green would mean little.", *why),
            remedies=("Look at `faults` in the measurements; report it with the results artifact.",),
        )
    return Judgement(
        status=Status.PASS,
        reasons=(
            *_summary(generated, measurements["faults"]),
            *_skipped(measurements),
            *_caveats(measurements),
        ),
    )


def plumbing(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pass when every step did what a trainer relies on, healthy and new weights generate as the CPU says,
    and a forgotten tensor shows."""
    ends = list(_ends(measurements["groups"]))
    if ends:
        return Judgement(status=Status.FAIL, reasons=tuple(ends), remedies=(READ_LOG,))
    missing = judge_unsimulated(_missing(measurements["steps"]))
    cases = {case["name"]: case for case in measurements["cases"]}
    failed = [reason for step in _computed(measurements["steps"]) for reason in _step_failures(step)]
    failed += [reason for name, case in cases.items() if name != FORGOTTEN for reason in _case_failures(case)]
    if failed:
        reasons = (*_shortened(failed), *missing.reasons, *_caveats(measurements))
        return Judgement(status=Status.FAIL, reasons=reasons, remedies=(READ_LOG,))
    if missing.reasons:
        return missing
    forgotten = cases.get(FORGOTTEN)
    if forgotten is None or forgotten["budget"] <= 1:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=("An update that leaves a tensor out was not noticed, so green would mean little.",),
        )
    new = cases["new weights"]["budget"]
    summary = (
        f"{len(measurements['steps'])} steps of sleep, wake-up, reload and update did what they should; new "
        f"weights generate as the CPU says (error {new:.0%} of what is permitted), a forgotten tensor shows."
    )
    return Judgement(status=Status.PASS, reasons=(summary, *_caveats(measurements)))


READ_LOG = "Read the task's log; the results are among the artifacts."


def _ends(groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for group in groups:
        if group["state"] != MEASURED:
            yield f"The engine ({group['group']}) {ended(group)}."
            yield from last_words(group["tail"])


def _missing(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({name for entry in entries for name in entry.get("not_simulated", ())})


def _computed(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that did not end because the simulation has no answer."""
    return [entry for entry in entries if not entry.get("not_simulated")]


def _wrong_operators(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({entry["operator"] for entry in entries if entry.get("budget", 0) > 1})


def _case_failures(case: Mapping[str, Any]) -> Iterator[str]:
    if case["state"] == "raised":
        yield f"{case['name']}: {case['error']}"
    if case["state"] != "generated":
        return
    if case["budget"] > 1:
        largest, rms = (
            f"{case[name]:.3g} ({case['permitted'][name]:.3g} is permitted)" for name in ("largest", "rms")
        )
        yield f"{case['name']}: log-probabilities are off by up to {largest}, rms {rms}."
    if case["choice"]:
        yield f"{case['name']}: {case['choice']}."
    if case["expects_cached"] and not case["cached"]:
        yield f"{case['name']}: the prefix cache was never used."


def _unseeded(faults: Sequence[Mapping[str, Any]]) -> list[str]:
    return [] if faults else ["No fault was seeded, so nothing shows that one would be noticed."]


def _missed_faults(faults: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for fault in faults:
        if fault["state"] == "unplaced":
            yield f"{fault['case']}: no operator of the family {fault['family']} is known among those called."
        if fault["state"] != "generated":
            continue
        if not fault["hit"]:
            yield f"{fault['case']}: fault {fault['fault']} struck no operator."
        elif fault["budget"] <= 1 and not fault["choice"]:
            yield f"{fault['case']}: fault {fault['fault']} in {_names(fault['hit'])} was not noticed."
        elif not set(fault["hit"]) <= set(fault["named"]):
            unnamed = set(fault["hit"]) - set(fault["named"])
            yield f"{fault['case']}: fault {fault['fault']} was noticed but not traced to {_names(unnamed)}."


def _step_failures(step: Mapping[str, Any]) -> Iterator[str]:
    if step["found"] != step["expect"]:
        message = f": {step['message']}" if step.get("message") else ""
        yield f"{step['name']}: {_MEANING[step['expect']]}, but {_FOUND[step['found']]}{message}."
    used = step.get("bytes")
    if used and used["asleep"] >= used["before"]:
        yield f"{step['name']}: sleeping freed nothing of {used['before']} bytes."


_MEANING = {
    "same": "what is generated must stay the same",
    "different": "what is generated must change",
    "refused": "vllm-ascend must refuse this setting",
}
_FOUND = {
    "same": "it stayed the same",
    "different": "it changed",
    "refused": "it was refused",
    "accepted": "it was accepted",
    "raised": "it raised",
}


def _summary(generated: Sequence[Mapping[str, Any]], faults: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    tokens = sum(case["tokens"] for case in generated)
    worst = max(case["budget"] for case in generated)
    struck = [fault for fault in faults if fault["state"] == "generated"]
    yield (
        f"{len(generated)} ways to generate, {tokens} tokens: log-probabilities agree with transformers in "
        f"float64 (worst error {worst:.0%} of what is permitted)."
    )
    if struck:
        quiet = sum(fault["likeliest"] == fault["tokens"] for fault in struck)
        yield (
            f"All {len(struck)} seeded faults were noticed and traced to their operators, {quiet} of which "
            "change no token."
        )


def _skipped(measurements: Mapping[str, Any]) -> Iterator[str]:
    for case in measurements["cases"]:
        if case["state"] == "skipped":
            yield f"Not run: {case['name']} ({case['why']})."


def _caveats(measurements: Mapping[str, Any]) -> Iterator[str]:
    for entry in measurements.get("operators", ()):
        if entry["state"] == "raised":
            yield f"Operator {entry['operator']} could not be tried by itself: {entry['message']}"
    if any(group["device"]["simulated"] for group in measurements["groups"]):
        yield SHARED_KERNELS
        yield UNCOVERED_SIMULATED
    else:
        yield UNCOVERED


def _look_at(wrong: Sequence[str]) -> str:
    if wrong:
        return f"Start with {_names(wrong)}."
    return "No operator of the battery is wrong by itself: look at what feeds them, or at another one."


def _names(names: Any) -> str:
    return ", ".join(sorted(names))


def _shortened(reasons: Sequence[str]) -> list[str]:
    if len(reasons) <= MOST_REASONS:
        return list(reasons)
    return [*reasons[:MOST_REASONS], f"... and {len(reasons) - MOST_REASONS} more, in the measurements."]
