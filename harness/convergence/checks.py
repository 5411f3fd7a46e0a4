"""The convergence tier: does a short training on this cell's device learn as the reference does?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.check import Check, Completed, TaskContext
from harness.convergence.inference.inference_check import CHECK as GPT_OSS
from harness.convergence.trainer.one_step_check import CHECK as ONE_STEP_OFF
from harness.convergence.trainer.recipe_twin_check import CHECK as RECIPE_TWIN
from harness.convergence.trainer.trainer_check import CHECKS as TRAINER_CHECKS
from harness.convergence.trainer.vllm_check import CHECKS as VLLM_CHECKS
from harness.convergence.trainer.vllm_one_step_check import CHECK as VLLM_ONE_STEP_OFF
from harness.evidence import evidence_of, read_device_facts
from harness.outcome import Judgement, Measured, Status, Tier

if TYPE_CHECKING:
    from harness.convergence.decision.decide import Decision
    from harness.convergence.decision.reference_set import ReferenceSet
    from harness.convergence.telemetry.live_reader import Stop
    from harness.convergence.telemetry.series import Run, Series

# Reference sets use the seeds from 0 on; a candidate must be independent of them.
CANDIDATE_SEEDS = (1000, 1001, 1002)
MEASURED, HUNG, CRASHED = "measured", "hung", "crashed"
# A run takes 10 s of a core, and ten times that on a crowded machine; a hung one takes for ever.
RUN_TIMEOUT_S = 600.0
MOST_TAIL = 4000


def run(context: TaskContext) -> Measured:
    """Train the screening seed; train the others, one by one, only until they settle it.

    Each run is read along, and ended once it need not go on.
    """
    from harness.convergence.decision.reference_set import for_recipe
    from harness.convergence.smoke import smoke_recipe as recipes
    from harness.convergence.telemetry.live_reader import Watcher

    algorithm = str(context.params["algorithm"])
    device = "cpu" if context.facets.get("device", {}).get("kind") == "cpu" else "npu:0"
    chosen = recipes.recipe(algorithm)
    reference = for_recipe(chosen.digest())
    trained: list[tuple[int, Run]] = []
    stops: dict[int, Stop] = {}
    failure: Mapping[str, Any] = {"state": MEASURED}
    for seed in CANDIDATE_SEEDS:
        stop_file = context.workdir / f"stop-{seed}"
        watcher = Watcher(
            read=partial(_so_far, context.workdir / f"run-{seed}.jsonl"),
            verdict=partial(_need_not_go_on, tuple(trained), seed, reference),
            steps=chosen.steps,
            stop_file=stop_file,
        )
        with watcher:
            found, failure = _train(context, algorithm, device, (seed,), stop_file)
        trained += found
        if watcher.stop is not None:
            stops[seed] = watcher.stop
        if failure["state"] != MEASURED or not _decided(trained, reference).runs_wanted:
            break
    context.log(f"{len(trained)} runs, evidence from the device's own facts")
    return _measured(context, algorithm, chosen.digest(), reference, trained, stops, failure)


def _so_far(out: Path) -> Series:
    """The series of the run that is being written."""
    from harness.convergence.telemetry.series import read

    runs = read(out).runs if out.is_file() else ()
    return runs[-1].series if runs else {}


def _need_not_go_on(
    trained: Sequence[tuple[int, Run]], seed: int, reference: ReferenceSet | None, series: Series
) -> str:
    """Why the run of `seed` that has come this far need not go on, or ""."""
    from harness.convergence.decision.decide import decide

    if reference is None:
        return ""
    seeds = [*(one for one, _ in trained), seed]
    runs = [*(run.series for _, run in trained), series]
    decision = decide(reference.runs, runs, twins=reference.twins_of(seeds), running=True)
    return "" if decision.decided_by in ("running", "reference", "input") else decision.reasons[0]


def _train(
    context: TaskContext, algorithm: str, device: str, seeds: tuple[int, ...], stop_file: Path
) -> tuple[list[tuple[int, Run]], Mapping[str, Any]]:
    from harness.convergence.telemetry.series import read

    out = context.workdir / f"run-{seeds[0]}.jsonl"
    arguments = [text for seed in seeds for text in ("--seed", str(seed))]
    completed = context.in_cell(
        "harness.convergence.smoke.smoke_program",
        *("--algorithm", algorithm, *arguments, "--device", device, "--out", str(out)),
        *("--stop-file", str(stop_file)),
        timeout=RUN_TIMEOUT_S,
    )
    telemetry = read(out)
    runs = [(int(run.header.get("seed", -1)), run) for run in telemetry.runs]
    failure = _failure(completed)
    if failure["state"] == MEASURED and [seed for seed, _ in runs] != list(seeds):
        wrong = f"it recorded {len(runs)} of {len(seeds)} runs"
        failure = {"state": CRASHED, "returncode": 0, "tail": "; ".join([wrong, *telemetry.problems])}
    return runs, failure


def _failure(completed: Completed) -> Mapping[str, Any]:
    if completed.returncode == 0 and not completed.timed_out:
        return {"state": MEASURED}
    return {
        "state": HUNG if completed.timed_out else CRASHED,
        "returncode": completed.returncode,
        "tail": completed.tail[-MOST_TAIL:],
    }


def _decided(trained: list[tuple[int, Run]], reference: ReferenceSet | None) -> Decision:
    from harness.convergence.decision.decide import decide

    if reference is None:
        return decide((), [run.series for _, run in trained])
    twins = reference.twins_of([seed for seed, _ in trained])
    return decide(reference.runs, [run.series for _, run in trained], twins=twins)


def _measured(
    context: TaskContext,
    algorithm: str,
    recipe_digest: str,
    reference: ReferenceSet | None,
    trained: list[tuple[int, Run]],
    stops: Mapping[int, Stop],
    failure: Mapping[str, Any],
) -> Measured:
    from harness.convergence.decision.decision_curves import drawing
    from harness.convergence.decision.reference_set import LEFT_OUT, PERFORMANCE
    from harness.convergence.telemetry.series import encode, encode_series

    header = trained[0][1].header if trained else {}
    facts = header.get("device", {})
    seconds = [second for _, run in trained for second in run.series.get("seconds", ())]
    measurements = {
        **failure,
        "algorithm": algorithm,
        "recipe_digest": header.get("digest", recipe_digest),
        "recipe": header.get("recipe", {}),
        "reference": reference.digest if reference else "",
        "reference_provenance": dict(reference.provenance) if reference else {},
        "runs": [
            {
                "seed": seed,
                "fault": run.header.get("fault"),
                "problems": list(run.problems),
                "series": encode_series(
                    {name: values for name, values in run.series.items() if name not in LEFT_OUT}
                ),
                "stopped": stops[seed].as_json() if seed in stops else None,
                "host": run.header.get("host", {}),
                "performance": encode_series(
                    {name: run.series[name] for name in PERFORMANCE if name in run.series}
                ),
            }
            for seed, run in trained
        ],
        "curves": drawing(reference.runs if reference else (), trained),
        "device": facts,
        "seconds_per_step": encode(sorted(seconds)[len(seconds) // 2]) if seconds else None,
        "decision": _decided(trained, reference).as_json() if trained else None,
    }
    return Measured(
        measurements=measurements,
        # Without a header nothing reported the device, so nothing stronger than "ran on a CPU" is known.
        evidence=evidence_of(read_device_facts(facts)),
        artifacts={path.name: str(path) for path in sorted(context.workdir.glob("run-*.jsonl"))},
        environment={"versions": header.get("versions", {}), "device": facts},
    )


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Decide again from the recorded series and the reference set they were measured against."""
    from harness.convergence.decision.check_speed import REMEDY, speed
    from harness.convergence.decision.decide import decide
    from harness.convergence.decision.reference_set import by_digest, for_recipe
    from harness.convergence.telemetry.series import decode_series

    if measurements["state"] != MEASURED:
        return _not_measured(measurements)
    reference = by_digest(measurements["reference"]) or for_recipe(measurements["recipe_digest"])
    if reference is None or reference.recipe_digest != measurements["recipe_digest"]:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(
                "The reference is for other settings than this run's, so the curves cannot be compared.",
            ),
            remedies=(
                "Record a reference: python -m harness.convergence.smoke.record_smoke in a trusted cell.",
            ),
        )
    runs = [decode_series(run["series"]) for run in measurements["runs"]]
    twins = reference.twins_of([run["seed"] for run in measurements["runs"]])
    decision = decide(reference.runs, runs, twins=twins)
    times = speed(reference, measurements["runs"], measurements["device"])
    slower = decision.status is Status.PASS and bool(times.regressions)
    problems = [
        f"Run {run['seed']}: {problem}." for run in measurements["runs"] for problem in run["problems"]
    ]
    faults = sorted({run["fault"] for run in measurements["runs"] if run["fault"]})
    notes = [f"These runs carry the seeded fault {name}." for name in faults]
    cost = (
        f"{decision.runs_used} run{'s' if decision.runs_used != 1 else ''} (seed {_seeds(measurements)}), "
        f"reference {reference.name} {reference.digest[:12]}: {len(reference.runs)} runs on "
        f"{reference.provenance['device']['device']}."
    )
    return Judgement(
        status=Status.FAIL if slower else decision.status,
        reasons=(
            *(times.sentences if slower else ()),
            *decision.reasons,
            *_stops(measurements["runs"]),
            *notes,
            *problems,
            *(f"{note}." for note in decision.notes),
            *(() if slower else times.sentences),
            f"Measured in {cost}",
        ),
        remedies=(*decision.remedies, *([REMEDY] if slower else ())),
    )


def _stops(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    from harness.convergence.telemetry.live_reader import sentence

    return [
        f"Run {run['seed']}: {sentence(run['stopped'], len(run['series'].get('reward', ())))}"
        for run in runs
        if run.get("stopped")
    ]


def _seeds(measurements: Mapping[str, Any]) -> str:
    return ", ".join(str(run["seed"]) for run in measurements["runs"])


def _not_measured(measurements: Mapping[str, Any]) -> Judgement:
    reached = [
        max((len(values) for values in run["series"].values()), default=0) for run in measurements["runs"]
    ]
    where = f"after {reached[-1]} steps" if reached else "before its first step"
    hung = measurements["state"] == HUNG
    what = (
        f"did not end within {RUN_TIMEOUT_S:.0f} s"
        if hung
        else f"ended with code {measurements['returncode']}"
    )
    words = [line.strip() for line in measurements["tail"].splitlines() if line.strip()]
    return Judgement(
        status=Status.FAIL,
        reasons=(f"The training {what}, {where}.", *((f"Its last words: {words[-1]}",) if words else ())),
        remedies=("Read the task's log; an operation the device lacks is named there.",),
    )


FACETS = (
    "pins",
    "platform",
    "verl_tree",
    "patches[verl]",
    "patches[vllm_ascend]",
    "device",
    "versions",
)


def _check(algorithm: str) -> Check:
    return Check(
        name=algorithm,
        tier=Tier.CONVERGENCE,
        question=f"Does a short {algorithm.upper()} training with verl's functions learn as it should?",
        facets=FACETS,
        # The device's facts come from numerics.
        run=run,
        judge=judge,
        needs=("environment",),
        params={"algorithm": algorithm},
        device=True,
        timeout_s=len(CANDIDATE_SEEDS) * RUN_TIMEOUT_S + 60.0,
        expected_s=25.0,
    )


CHECKS = (
    _check("grpo"),
    _check("gspo"),
    *TRAINER_CHECKS,
    *VLLM_CHECKS,
    VLLM_ONE_STEP_OFF,
    ONE_STEP_OFF,
    RECIPE_TWIN,
    GPT_OSS,
)
