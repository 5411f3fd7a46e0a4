"""The checks that run verl's own trainer: does it train on this cell's device? Imports are light."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cell_program.unsimulated_operators import judge_unsimulated_error
from harness.check import Check, Completed, TaskContext
from harness.evidence import evidence_of, read_device_facts
from harness.outcome import Evidence, Judgement, Measured, Status, Tier

if TYPE_CHECKING:
    from harness.convergence.decision.decide import Decision
    from harness.convergence.decision.reference_set import ReferenceSet
    from harness.convergence.trainer.judging.learned import Difference

PROGRAM = "harness.convergence.trainer.trainer_program"
MEASURED, CRASHED, HUNG, FAILED = "measured", "crashed", "hung", "failed"
# The program ends a trainer that stands still by itself; this is for a program that stands still.
TIMEOUT_S = 1800.0
MOST_TAIL = 4000
OLDEST = (0, 6)
FACETS = ("pins", "platform", "verl_tree", "patches[verl]", "patches[vllm_ascend]", "device", "versions")


def run(context: TaskContext) -> Measured:
    """Run the trainer in the cell; a trainer that hangs or crashes is a measurement."""
    return measure(context, ["--algorithm", str(context.params["algorithm"])])


def measure(context: TaskContext, arguments: Sequence[str]) -> Measured:
    """What `PROGRAM` makes of these arguments in the cell.

    Where there is a reference set of them, each run is read along and ended once it need not go on, and other
    seeds are trained until the decision rule is satisfied.
    """
    from harness.convergence.decision.decide import decide
    from harness.convergence.telemetry.series import decode_series
    from harness.convergence.trainer.judging import banded

    device = "cpu" if context.facets["device"]["kind"] == "cpu" else "npu"
    words = [*arguments, "--device", device]
    reference = _reference(context, words)
    runs: list[dict[str, Any]] = []
    for seed in banded.CANDIDATE_SEEDS if reference else banded.CANDIDATE_SEEDS[:1]:
        runs.append(_run(context, words, seed, reference, runs))
        if reference is None or runs[-1]["state"] != MEASURED:
            break
        if not decide(reference.runs, [decode_series(one["series"]) for one in runs]).runs_wanted:
            break
    found = dict(next((one for one in runs if one["state"] != MEASURED), runs[0]))
    if len(runs) > 1 and found["state"] == MEASURED:
        found["more"] = [{key: one[key] for key in ("recipe", "series", "stop")} for one in runs[1:]]
    found["reference"] = reference.digest if reference is not None else ""
    found["reference_provenance"] = dict(reference.provenance) if reference is not None else {}
    decision, _ = _decision(found) if found["state"] == MEASURED else (None, None)
    # For who looks at a report; `judge` decides again.
    found["decision"] = decision.as_json() if decision is not None else None
    found["curves"] = _curves(runs, reference)
    facts = found.get("device", {})
    return Measured(
        measurements=found,
        # Without the program's word nothing is known of the device but that something ran.
        evidence=evidence_of(read_device_facts(facts)),
        artifacts={path.name: str(path) for path in sorted(context.workdir.glob("run*.json"))},
        environment={"versions": found.get("versions", {}), "device": facts},
    )


def _reference(context: TaskContext, words: Sequence[str]) -> ReferenceSet | None:
    """The reference set of what the words ask for; none is made of a commit."""
    from harness.convergence.trainer import trainer_program as program
    from harness.convergence.trainer.judging import banded

    version, _, commit = str(context.facets["versions"].get("verl", "")).partition("@")
    if commit:
        return None
    options = program.parser().parse_args([*words, "--folder", ".", "--out", "."])
    found = banded.reference_for(program.settings_digest(options), version)
    return None if banded.too_few(found) else found


def _run(
    context: TaskContext,
    words: Sequence[str],
    seed: int,
    reference: ReferenceSet | None,
    earlier: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    from harness.convergence.telemetry.live_reader import Watcher
    from harness.convergence.telemetry.series import decode_series
    from harness.convergence.trainer.judging import banded

    # The first keeps its names: people know them.
    name = "" if not earlier else f"-{seed}"
    folder, out = context.workdir / f"task{name}", context.workdir / f"run{name}.json"
    live, stop_file = context.workdir / f"live-{seed}.json", context.workdir / f"stop-{seed}"
    folder.mkdir()
    before = [decode_series(one["series"]) for one in earlier]
    watcher = Watcher(
        read=lambda: banded.so_far(live),
        verdict=lambda series: banded.need_not_go_on(reference, before, series) if reference else "",
        steps=reference.steps if reference else 0,
        stop_file=stop_file,
    )
    with watcher:
        completed = context.in_cell(
            PROGRAM,
            *(*words, "--seed", str(seed), "--live", str(live), "--stop-file", str(stop_file)),
            *("--folder", str(folder), "--out", str(out)),
            timeout=TIMEOUT_S,
        )
    found = read_run(out, completed)
    found["stop"] = watcher.stop.as_json() if watcher.stop is not None else None
    return found


def read_run(out: Path, completed: Completed) -> dict[str, Any]:
    """Measurements of what `PROGRAM` wrote to `out`, or of its having written nothing."""
    tail = completed.tail[-MOST_TAIL:]
    if completed.returncode != 0 or completed.timed_out or not out.is_file():
        state = HUNG if completed.timed_out else FAILED
        return {"state": state, "returncode": completed.returncode, "tail": tail, "series": {}}
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return {**found, "curves": _curves([found], None), "tail": "" if found["state"] == MEASURED else tail}


def _curves(runs: Sequence[Mapping[str, Any]], reference: ReferenceSet | None) -> dict[str, Any]:
    """What a report draws; without a reference set there is no band."""
    from harness.convergence.decision.decision_curves import drawing
    from harness.convergence.telemetry.series import Run, decode_series

    drawn = [
        (int(one["recipe"]["seed"]), Run(series=decode_series(one["series"])))
        for one in runs
        if "recipe" in one
    ]
    return drawing(reference.runs if reference else (), drawn)


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """From the series alone: the decision rule where there is a reference set, gates, the bound that no blind
    policy passes, the recorded first step."""
    from harness.convergence.telemetry.series import decode_series
    from harness.convergence.trainer.judging.learned import LEAST_LAST, learned
    from harness.convergence.trainer.tiny_task import best_blind_reward

    if measurements["state"] != MEASURED:
        return not_measured(measurements)
    steps = int(measurements["recipe"]["steps"])
    decision, reference = _decision(measurements)
    series = decode_series(measurements["series"])
    worst = _worst_difference(measurements, series)
    unlike = [worst.sentence()] if worst is not None and worst.alarm else []
    if decision is not None and reference is not None and decision.status is not Status.PASS:
        return _not_passed(measurements, decision, reference, unlike)
    if crossed := _gate(measurements, series):
        return crossed
    whole = _whole(measurements, steps)
    if whole is None:
        reason = f"The trainer ended without an error after {len(series.get('reward', ()))} of {steps} steps."
        return failed(measurements, reason, remedy="Read the end of the task's log.")
    if steps < 2 * LEAST_LAST:
        return Judgement(status=Status.INCONCLUSIVE, reasons=(f"{steps} steps are too few to see learning.",))
    found = learned(whole["reward"], best_blind_reward())
    if not found.passed:
        return failed(measurements, found.sentence(), *unlike, remedy=_LEARNED_REMEDY)
    if unlike and _is_hardware(measurements):
        # Rounding in HF32 flips a sampled token of the first step on 15 % of the seeds, and then all differs.
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(found.sentence(), *unlike, *notes(measurements)),
            remedies=("Run it with another seed: chance does not strike twice as often as a fault.",),
        )
    if unlike:
        return failed(measurements, *unlike, found.sentence(), remedy=_TWIN_REMEDY)
    return _passed(measurements, decision, reference, (found.sentence(), _agreement(worst)))


def _decision(measurements: Mapping[str, Any]) -> tuple[Decision | None, ReferenceSet | None]:
    """The rule's decision about all runs, and the reference set it used; None for both without one."""
    from harness.convergence.decision.decide import decide
    from harness.convergence.decision.reference_set import by_digest
    from harness.convergence.telemetry.series import decode_series

    reference = by_digest(str(measurements.get("reference", ""))) if measurements.get("reference") else None
    if reference is None:
        return None, None
    runs = [measurements, *measurements.get("more", ())]
    return decide(reference.runs, [decode_series(one["series"]) for one in runs]), reference


def _not_passed(
    measurements: Mapping[str, Any], decision: Decision, reference: ReferenceSet, unlike: Sequence[str]
) -> Judgement:
    """`unlike`: what is said of a first step that differs, which on hardware alone decides nothing."""
    sure = decision.status is Status.FAIL or (bool(unlike) and not _is_hardware(measurements))
    return Judgement(
        status=Status.FAIL if sure else decision.status,
        reasons=(
            *decision.reasons,
            *unlike,
            *_cost(measurements, decision, reference),
            *notes(measurements),
        ),
        remedies=(*decision.remedies, *([_TWIN_REMEDY] if unlike else ())),
    )


def _passed(
    measurements: Mapping[str, Any],
    decision: Decision | None,
    reference: ReferenceSet | None,
    reasons: Sequence[str],
) -> Judgement:
    from harness.convergence.decision.check_speed import REMEDY, speed
    from harness.convergence.trainer.judging.banded import too_few

    if decision is None or reference is None:
        shape = too_few(None)
        said = (*reasons, f"{shape[:1].upper()}{shape[1:]}.", *notes(measurements))
        return Judgement(status=Status.PASS, reasons=said)
    run = {**measurements, "stopped": measurements["stop"], "performance": measurements["series"]}
    times = speed(reference, [run], measurements["device"])
    if times.regressions:
        return Judgement(status=Status.FAIL, reasons=(*times.sentences, *reasons), remedies=(REMEDY,))
    cost = _cost(measurements, decision, reference)
    said = (*decision.reasons, *reasons, *times.sentences, *cost, *notes(measurements))
    return Judgement(status=Status.PASS, reasons=said)


def _cost(measurements: Mapping[str, Any], decision: Decision, reference: ReferenceSet) -> list[str]:
    """What was run for the decision, what stopping saved, and what it was held against."""
    from harness.convergence.telemetry.live_reader import sentence

    runs = (measurements, *measurements.get("more", ()))
    seeds = ", ".join(str(one["recipe"]["seed"]) for one in runs)
    device = reference.provenance["device"]
    simulated = "the simulated " if device.get("simulated") else ""
    saved = [
        f"Seed {one['recipe']['seed']}: {sentence(one['stop'], len(one['series'].get('reward', ())))}"
        for one in runs
        if one.get("stop")
    ]
    number = "1 run" if decision.runs_used == 1 else f"{decision.runs_used} runs"
    against = (
        f"{reference.name} {reference.digest[:12]}, {len(reference.runs)} runs of verl "
        f"{reference.provenance['versions']['verl']} on {simulated}{device['device']}"
    )
    return [*saved, f"Decided from {number} (seed {seeds}) against the reference {against}."]


def _gate(measurements: Mapping[str, Any], series: Mapping[str, tuple[float, ...]]) -> Judgement | None:
    """The failure of the gate that the first run crosses, or None."""
    from harness.convergence.decision import run_gates
    from harness.convergence.decision.bands import arrays
    from harness.convergence.decision.decision_rule import Rule

    gate = run_gates.crossed(arrays(series), Rule()) if series.get("reward") else None
    if gate is None:
        return None
    stopped = [
        f"It was stopped there, after {len(series['reward'])} of {measurements['recipe']['steps']} steps."
    ]
    what = f"{gate.reason[:1].upper()}{gate.reason[1:]}."
    return failed(measurements, what, *(stopped * bool(measurements["stopped"])), remedy=gate.hint)


def _whole(measurements: Mapping[str, Any], steps: int) -> Mapping[str, tuple[float, ...]] | None:
    """The first run that came to its end, or None. Others are only trained where a reference set is used."""
    from harness.convergence.telemetry.series import decode_series

    first = [measurements] if measurements["complete"] else []
    runs = (decode_series(one["series"]) for one in (*first, *measurements.get("more", ())))
    return next((series for series in runs if len(series.get("reward", ())) >= steps), None)


_LEARNED_REMEDY = "Look at the advantages (sign, grouping), the optimizer, and the backward of attention."
_TWIN_REMEDY = "Compare the numerics tier's loss check, which names the function."


def _worst_difference(
    measurements: Mapping[str, Any], series: Mapping[str, tuple[float, ...]]
) -> Difference | None:
    from harness.convergence.trainer.judging.learned import differences
    from harness.convergence.trainer.record_trainer import same_start

    verl = str(measurements["versions"].get("verl", ""))
    known = same_start(measurements["recipe"], str(measurements["digest"]), verl)
    if known is None:
        return None
    found = differences(series, known.series, same_verl=known.verl == verl)
    return found[0] if found else None


def _agreement(worst: Difference | None) -> str:
    if worst is None:
        return "There is no recorded run of these settings to hold the first step against."
    how = f"to {worst.size:.1e} or better" if worst.size else "exactly"
    return f"The first step agrees with the recorded run of the same seed {how}."


def _is_hardware(measurements: Mapping[str, Any]) -> bool:
    return evidence_of(read_device_facts(measurements["device"])) is Evidence.HARDWARE


def not_measured(measurements: Mapping[str, Any]) -> Judgement:
    """Fail, with how and where the trainer ended, or inconclusive where it is the simulation that lacks an
    operator; of measurements whose state is not `MEASURED`."""
    if lacking := judge_unsimulated_error(
        read_device_facts(measurements.get("device", {})), measurements["tail"]
    ):
        return lacking
    steps = max((len(values) for values in measurements["series"].values()), default=0)
    reached = f"after {steps} steps" if steps else "before its first step"
    words = _last_words(measurements["tail"])
    if measurements["state"] == HUNG:
        where = measurements.get("where", "")
        stood = f" {where}." if where else " No stack says where."
        return failed(
            measurements,
            f"The trainer stopped getting on {reached} and was ended.{stood}",
            remedy="Look at the stacks in run.json; a wait for ever is often a resource that nobody has.",
        )
    return failed(
        measurements,
        f"The trainer ended with code {measurements['returncode']} {reached}.",
        *([f"Its last words: {words}"] if words else []),
        remedy="Read the task's log; what the stack lacks is named there.",
    )


def _last_words(tail: str) -> str:
    """The last line that names an error, else the last line."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] and not line.startswith("[ERROR]")]
    return (errors or lines or [""])[-1]


def failed(measurements: Mapping[str, Any], *reasons: str, remedy: str) -> Judgement:
    """Fail with these reasons and what else is to be said of the run."""
    return Judgement(status=Status.FAIL, reasons=(*reasons, *notes(measurements)), remedies=(remedy,))


def notes(measurements: Mapping[str, Any]) -> list[str]:
    """What is said of a run whatever its verdict: problems of its log, processes left behind, times."""
    seconds = measurements.get("seconds", {})
    durations = measurements["series"].get("seconds", ())
    steps = sorted(value for value in durations if isinstance(value, (int, float)))
    found = [f"{problem}." for problem in measurements.get("problems", ())]
    if measurements.get("swept"):
        found.append(f"{measurements['swept']} processes had to be ended after it.")
    if seconds.get("start_up") is not None and steps:
        found.append(
            f"First step after {seconds['start_up']:.0f} s, then {steps[len(steps) // 2]:.2f} s per step "
            f"(median), {seconds['whole']:.0f} s in all."
        )
    return found


def applies(facets: Mapping[str, Any]) -> str:
    """Why the trainer of this cell's verl cannot be driven, or ""."""
    version = str(facets.get("versions", {}).get("verl", "")).partition("@")[0]
    if not version:
        return "there is no verl in this cell"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return f"verl {version} has no rollout registry; the trainer is driven from verl 0.6 on"
    return ""


def _check(algorithm: str) -> Check:
    return Check(
        name=f"trainer-{algorithm}",
        tier=Tier.CONVERGENCE,
        question=f"Does verl's own trainer learn with {algorithm.upper()} on this cell's device?",
        facets=FACETS,
        run=run,
        judge=judge,
        needs=("environment",),
        params={"algorithm": algorithm},
        device=True,
        timeout_s=TIMEOUT_S + 60.0,
        expected_s=120.0,
        applies=applies,
    )


CHECKS = (_check("grpo"), _check("gspo"))
