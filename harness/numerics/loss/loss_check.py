"""The check `loss`: verl's losses, advantages and log-probabilities on the device against float64."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.cell_program.ending import LAST_WORDS, MEASURED, ended, failure, last_words, require_setup
from harness.cell_program.torch_device import device_name
from harness.check import Completed, TaskContext
from harness.evidence import evidence_of, read_device_facts
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.package import IMPORT_ROOT

MOST_REASONS = 8
EMIT_TIMEOUT_S = 300.0
REFERENCE_TIMEOUT_S = 120.0


def run(context: TaskContext) -> Measured:
    """Write the battery, evaluate it in the cell, compute the reference in another process, compare."""
    from harness.numerics.loss.cases.loss_battery import DEFAULT_SEED, default_battery
    from harness.numerics.loss.cases.loss_case import save_cases
    from harness.numerics.loss.loss_program import progress_file

    seed = int(context.params.get("seed", DEFAULT_SEED))
    cases = default_battery(seed)
    battery, results, references = (
        context.workdir / name for name in ("battery.npz", "results.npz", "reference.npz")
    )
    save_cases(battery, cases)
    device = device_name(context.facets.get("device", {}))
    emitted = context.in_cell(
        "harness.numerics.loss.loss_program",
        *("--cases", str(battery), "--out", str(results), "--device", device, "--faults"),
        timeout=EMIT_TIMEOUT_S,
    )
    require_setup(emitted, "the loss evaluation")
    if emitted.returncode != 0 or not results.is_file():
        return _not_measured(emitted, progress_file(results), device, battery)
    release = _verl_version(context, results)
    referenced = context.command(
        [
            *(sys.executable, "-m", "harness.numerics.loss.loss_reference_program"),
            *("--cases", str(battery), "--out", str(references), "--verl-version", release),
        ],
        env={"PYTHONPATH": str(IMPORT_ROOT), "OMP_NUM_THREADS": "1"},
        timeout=REFERENCE_TIMEOUT_S,
    )
    _require(referenced)
    return _measured(cases, battery, results, references, release, seed, emitted.seconds)


def _measured(
    cases: Any,
    battery: Path,
    results_file: Path,
    references_file: Path,
    release: str,
    seed: int,
    seconds: float,
) -> Measured:
    from harness.numerics.loss.candidate import load_results
    from harness.numerics.loss.expected_result import load_expected
    from harness.numerics.loss.loss_compare import compare
    from harness.numerics.loss.release_objectives import release_objective

    results, facts = load_results(results_file)
    intervals, reference_facts = load_expected(references_file)
    measurements = {
        "state": MEASURED,
        "seed": seed,
        "verl": release,
        **compare(cases, results, intervals, release_objective(release)),
        "device": facts["device"],
        "core_algos": facts["core_algos"],
        "capabilities": facts["capabilities"],
        "reference": reference_facts,
        "seconds": {
            **facts["seconds"],
            "in_cell": round(seconds, 3),
            "reference": reference_facts["seconds"],
        },
    }
    return Measured(
        measurements=measurements,
        evidence=evidence_of(read_device_facts(facts["device"])),
        artifacts={path.name: path.name for path in (battery, results_file, references_file)},
        environment={name: facts[name] for name in ("python", "numpy", "verl", "device")},
    )


def _not_measured(emitted: Completed, progress: Path, device: str, battery: Path) -> Measured:
    """The program in the cell hung or crashed, which is a measurement of the cell."""
    case = progress.read_text(encoding="utf-8") if progress.is_file() else ""
    return Measured(
        measurements={
            **failure(emitted),
            "during": case,
            "device": {"device": device},
            "seconds": {"in_cell": round(emitted.seconds, 3)},
        },
        # Nothing reported the device, so nothing stronger than "ran on a CPU" is known.
        evidence=Evidence.CPU,
        artifacts={battery.name: battery.name},
    )


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pure: pass when every required case passes, none of the battery's questions is left open by rounding,
    and every seeded fault was caught; otherwise why, and what to do."""
    if measurements["state"] != MEASURED:
        return _judge_not_measured(measurements)
    required = [entry for entry in measurements["cases"] if entry["severity"] == "required"]
    failed = [entry for entry in required if entry["status"] == "fail"]
    if failed:
        return _judge_failed(failed, len(required), measurements)
    passed = sum(entry["status"] == "pass" for entry in required)
    missed = [entry["fault"] for entry in measurements["self_test"] if not entry["caught"]]
    if missed or not measurements["self_test"]:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(
                f"The self-test missed {', '.join(missed) or 'every fault'}, so green would mean nothing.",
            ),
            remedies=("Look at self_test in the measurements; report it with the results artifact.",),
        )
    ill_posed = [entry["name"] for entry in required if entry["status"] == "ill-posed"]
    open_questions = sorted({_question(name) for name in ill_posed} - _answered(required))
    if passed == 0 or open_questions:
        return _judge_open(open_questions, len(ill_posed), passed)
    unsupported = len(required) - passed - len(ill_posed)
    summary = (
        f"{passed} cases agree with the float64 reference (worst error "
        f"{measurements['worst_budget']:.0%} of its bound), {unsupported} are not offered by verl "
        f"{measurements['verl']}, all {len(measurements['self_test'])} seeded faults were caught."
    )
    undecided = (f"{len(ill_posed)} cases are ill-posed and decide nothing.",) if ill_posed else ()
    return Judgement(status=Status.PASS, reasons=(summary, *undecided, *_findings(measurements)))


def _question(name: str) -> str:
    """What a case asks: `policy/grpo-near@bf16-io` of `policy/grpo-near/token-mean@bf16-io`; the rest varies
    how."""
    path, at, contract = name.partition("@")
    return "/".join(path.split("/")[:2]) + at + contract


def _answered(required: list[Mapping[str, Any]]) -> set[str]:
    return {_question(entry["name"]) for entry in required if entry["status"] == "pass"}


def _judge_open(questions: list[str], ill_posed: int, passed: int) -> Judgement:
    """No share of ill-posed cases makes a green: a question with no other case was not answered."""
    if not questions:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=("No case was judged: this verl offers none of what the battery asks.",),
            remedies=("Look at the reasons of the cases in the measurements.",),
        )
    named = ", ".join(questions[:MOST_REASONS])
    reason = (
        f"{ill_posed} of {passed + ill_posed} cases are ill-posed: arithmetic too coarse for them. Nothing "
        f"else answers {len(questions)} of the battery's questions ({named})."
    )
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=(reason,),
        remedies=("Compute the loss in fp32, or use another seed.",),
    )


def _judge_failed(failed: list[Mapping[str, Any]], total: int, measurements: Mapping[str, Any]) -> Judgement:
    reasons = [f"{len(failed)} of {total} loss cases are wrong on {measurements['device']['device']}."]
    reasons += [f"{entry['name']}: {'; '.join(entry['reasons'])}." for entry in failed[:MOST_REASONS]]
    if len(failed) > MOST_REASONS:
        reasons.append(f"... and {len(failed) - MOST_REASONS} more, in the measurements.")
    remedies = [REMEDIES[entry["name"]] for entry in failed if entry["name"] in REMEDIES]
    kinds = sorted({entry["kind"] for entry in failed})
    remedies.append(
        f"Evaluate the same battery with --device cpu: if {', '.join(kinds)} fails there too, verl's code "
        "is wrong, otherwise the device's arithmetic is."
    )
    return Judgement(status=Status.FAIL, reasons=tuple(reasons), remedies=tuple(dict.fromkeys(remedies)))


REMEDIES = {
    "advantage/equal-rewards": "Equal rewards give an advantage that is not 0: the mean is off by a rounding "
    "error, which is divided by epsilon. Apply a patch for groups without variance, or filter such groups.",
    "aggregation/all-masked": "A micro-batch without valid tokens divides by zero. Apply a patch that guards "
    "the denominator, or pass global denominators.",
}


def _judge_not_measured(measurements: Mapping[str, Any]) -> Judgement:
    during = measurements["during"] or "the start, before the first case"
    return Judgement(
        status=Status.FAIL,
        reasons=(
            f"The loss evaluation {ended(measurements)} during {during}.",
            *last_words(measurements["tail"]),
        ),
        remedies=("Read the task's log; run the check again to see whether it is stable.",),
    )


def _findings(measurements: Mapping[str, Any]) -> list[str]:
    return [
        f"Finding {entry['id']} ({len(entry['cases'])} cases): {entry['what']}."
        for entry in measurements["findings"]
    ]


def _verl_version(context: TaskContext, results: Path) -> str:
    """The release whose objective is expected: what the cell names, else what is installed."""
    from harness.numerics.loss.candidate import load_results

    named = context.facets.get("verl_tree", {}).get("version")
    return str(named or load_results(results)[1]["verl"])


def _require(completed: Completed) -> None:
    from harness.errors import InfrastructureError

    if completed.returncode != 0:
        raise InfrastructureError(
            "the reference process failed",
            why=completed.tail[-LAST_WORDS:] or f"exit code {completed.returncode}",
            fix=f"run it by hand: {json.dumps(list(completed.argv))}",
        )
