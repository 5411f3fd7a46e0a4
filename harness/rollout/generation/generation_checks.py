"""The checks on vLLM's engine in the cell: its log-probabilities, sleep mode and weight sync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from harness.cell_program.program_run import (
    SHOWN_CHARACTERS,
    ProgramFailure,
    Unsupported,
    run_in_cell,
    run_reference,
)
from harness.check import Check, Completed, TaskContext
from harness.errors import EXIT_NOTHING_SELECTED, InfrastructureError
from harness.evidence import evidence_of
from harness.measurements import read_shape
from harness.numerics.checks import FACETS
from harness.outcome import Evidence, M, Measured, Tier
from harness.rollout.generation import generation_judge
from harness.rollout.generation.generation_compare import compare_case
from harness.rollout.generation.generation_measurements import (
    GENERATION_FORMAT,
    PLUMBING_FORMAT,
    CaseResult,
    CaseRun,
    EngineFailure,
    EngineGroup,
    EngineSeconds,
    FaultResult,
    GenerationFile,
    GenerationMeasurements,
    PlumbingFile,
    PlumbingMeasurements,
    RaisedCase,
    ReferenceFile,
    SkippedCase,
    UnmeasuredFault,
)
from harness.rollout.operators.operator_result import OperatorMeasurement
from harness.serialisation import to_json

# The limits are for hung programs: with a load of 14 on two cores the longest took 211 s and 30 s.
GROUP_TIMEOUT_S = 1200.0
REFERENCE_TIMEOUT_S = 600.0
FIRST_WITH_GRAPHS = Version("0.13")
"""vLLM of vllm-ascend 0.11 takes other settings for graphs (`level` and not `mode`)."""
DEVICES = 2
"""Number of simulated devices: one case generates on two."""


def run_generation(context: TaskContext) -> Measured[GenerationMeasurements]:
    """Generate in the cell, evaluate the same tokens on the CPU in another process, and compare."""
    folder = context.workdir / "checkpoints"
    cases: list[CaseResult] = []
    faults: list[FaultResult | UnmeasuredFault] = []
    operators: list[OperatorMeasurement] = []
    groups: list[EngineGroup | EngineFailure] = []
    files: list[Path] = []
    for group in context.params["groups"]:
        out = context.workdir / f"{group}.json"
        failure = _in_engine(
            context,
            "harness.rollout.generation.generation_program",
            *("--group", group, "--folder", str(folder), "--out", str(out), "--faults"),
            out=out,
            group=group,
        )
        if failure is not None:
            groups.append(failure)
            continue
        results = read_shape(GenerationFile, out)
        reference_file = context.workdir / f"{group}-reference.json"
        reference = _reference(context, out, folder, reference_file)
        for case in results.cases:
            if case.state == "generated":
                compared, injected = compare_case(case, reference.cases[case.name])
                cases.append(compared)
                faults += injected
            else:
                cases.append(_not_generated(case))
        files += [out, reference_file]
        operators += [replace(result, group=group) for result in results.operators]
        seconds = EngineSeconds(engine=results.seconds, reference=reference.seconds)
        groups.append(
            EngineGroup(
                group=group,
                calls=results.calls,
                device=results.device,
                packages=results.packages,
                seconds=seconds,
            )
        )
    measurements = GenerationMeasurements(
        cases=tuple(cases), faults=tuple(faults), operators=tuple(operators), groups=tuple(groups)
    )
    return _measured(measurements, groups, files)


def _not_generated(case: CaseRun) -> SkippedCase | RaisedCase:
    if case.state == "skipped":
        return SkippedCase(name=case.name, dtype=case.dtype, why=case.why)
    return RaisedCase(
        name=case.name,
        dtype=case.dtype,
        error=case.error,
        trace=case.trace,
        not_simulated=case.not_simulated,
    )


def run_plumbing(context: TaskContext) -> Measured[PlumbingMeasurements]:
    """Let the engine sleep, wake up and load weights in the cell; compare its tokens with the reference."""
    folder = context.workdir / "checkpoints"
    out = context.workdir / "plumbing.json"
    failure = _in_engine(
        context,
        "harness.rollout.generation.plumbing_program",
        *("--folder", str(folder), "--out", str(out)),
        out=out,
        group="plumbing",
    )
    if failure is not None:
        return _measured(PlumbingMeasurements(steps=(), cases=(), groups=(failure,)), [failure], [])
    results = read_shape(PlumbingFile, out)
    reference_file = context.workdir / "plumbing-reference.json"
    reference = _reference(context, out, folder, reference_file)
    engine = EngineGroup(
        group="plumbing",
        device=results.device,
        packages=results.packages,
        seconds=EngineSeconds(engine=results.seconds, reference=reference.seconds),
    )
    measurements = PlumbingMeasurements(
        steps=results.steps,
        cases=tuple(compare_case(case, reference.cases[case.name])[0] for case in results.cases),
        groups=(engine,),
    )
    return _measured(measurements, [engine], [out, reference_file])


def _in_engine(context: TaskContext, module: str, *args: str, out: Path, group: str) -> EngineFailure | None:
    env = {
        # Caches go into the task's folder, which is removed with the task.
        "VLLM_CACHE_ROOT": str(context.workdir / "vllm"),
        "HF_HOME": str(context.workdir / "huggingface"),
        "NPU_SIM_COUNT": str(DEVICES),
    }
    ended = run_in_cell(context, module, *args, out=out, what="the engine", timeout=GROUP_TIMEOUT_S, env=env)
    if out.is_file():
        # The results are complete: vLLM may crash later, while it shuts down.
        return None
    if isinstance(ended, Unsupported):
        return EngineFailure(group=group, state="crashed", returncode=EXIT_NOTHING_SELECTED, tail=ended.why)
    return EngineFailure(group=group, **vars(ended)) if isinstance(ended, ProgramFailure) else None


def _reference(context: TaskContext, results: Path, folder: Path, out: Path) -> ReferenceFile:
    """Evaluate the generated tokens with the cell's transformers on the CPU."""
    ended = run_reference(
        context,
        "harness.rollout.generation.reference_log_probs",
        *("--results", str(results), "--folder", str(folder), "--out", str(out)),
        out=out,
        what="the reference",
        timeout=REFERENCE_TIMEOUT_S,
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(context.workdir / "huggingface")},
    )
    if not isinstance(ended, Completed):
        tail = ended.tail if isinstance(ended, ProgramFailure) else ended.why
        raise InfrastructureError(
            "the reference process failed",
            why=tail[-SHOWN_CHARACTERS:],
            fix="run the check again; the task's log shows its command line",
        )
    return read_shape(ReferenceFile, out)


def _measured(
    measurements: M, groups: Sequence[EngineGroup | EngineFailure], files: Sequence[Path]
) -> Measured[M]:
    known = next((group for group in groups if isinstance(group, EngineGroup)), None)
    return Measured(
        measurements=measurements,
        # If no engine reported its device, the evidence is the weakest.
        evidence=evidence_of(known.device) if known else Evidence.CPU,
        artifacts={file.name: file.name for file in files},
        environment={"packages": dict(known.packages), "device": to_json(known.device)} if known else {},
    )


def needs_engine(facets: Mapping[str, Any]) -> str:
    """Why the check does not apply (the cell has no vllm-ascend), or ""."""
    return "" if facets["versions"].get("vllm_ascend") else "this cell has no vllm-ascend"


def needs_engine_with_graphs(facets: Mapping[str, Any]) -> str:
    """Why the check of graphs does not apply, or ""."""
    # A commit is written after its release: 0.12.0rc1.dev0@941d54a2.
    release = facets["versions"].get("vllm_ascend", "").partition("@")[0]
    if release and Version(release) < FIRST_WITH_GRAPHS:
        return f"graphs are configured otherwise before vllm-ascend {FIRST_WITH_GRAPHS}"
    return needs_engine(facets)


GENERATION_CHECKS: tuple[Check, ...] = (
    Check(
        name="generation",
        tier=Tier.NUMERICS,
        question="Does vLLM on this device compute the log-probabilities of the model?",
        facets=FACETS,
        measurements=GENERATION_FORMAT,
        run=run_generation,
        judge=generation_judge.generation,
        needs=("environment",),
        params={"groups": ("dense", "experts")},
        device=True,
        timeout_s=2 * (GROUP_TIMEOUT_S + REFERENCE_TIMEOUT_S) + 60.0,
        expected_s=90.0,
        applies=needs_engine,
    ),
    Check(
        name="generation-experts",
        tier=Tier.NUMERICS,
        question="Does vLLM on this device compute MoE models correctly, in bf16 and for gpt-oss?",
        facets=FACETS,
        measurements=GENERATION_FORMAT,
        run=run_generation,
        judge=generation_judge.generation,
        needs=("environment",),
        params={"groups": ("experts-bf16", "gpt_oss")},
        # The trainers of more expensive tiers use dense models, so a failure does not skip them.
        stops=False,
        device=True,
        timeout_s=2 * (GROUP_TIMEOUT_S + REFERENCE_TIMEOUT_S) + 60.0,
        expected_s=90.0,
        applies=needs_engine,
    ),
    Check(
        name="generation-graphs",
        tier=Tier.NUMERICS,
        question="Does vLLM on this device compute the same in graphs, which it captures and replays?",
        facets=FACETS,
        measurements=GENERATION_FORMAT,
        run=run_generation,
        judge=generation_judge.generation,
        needs=("environment",),
        params={"groups": ("graphs", "graphs-bf16")},
        # The trainers of more expensive tiers run the engine without graphs.
        stops=False,
        device=True,
        timeout_s=2 * (GROUP_TIMEOUT_S + REFERENCE_TIMEOUT_S) + 60.0,
        expected_s=90.0,
        applies=needs_engine_with_graphs,
    ),
    Check(
        name="plumbing",
        tier=Tier.NUMERICS,
        question="Can a trainer put this engine to sleep, wake it up, and sync new weights to it?",
        facets=FACETS,
        measurements=PLUMBING_FORMAT,
        run=run_plumbing,
        judge=generation_judge.plumbing,
        needs=("environment",),
        device=True,
        timeout_s=GROUP_TIMEOUT_S + REFERENCE_TIMEOUT_S + 60.0,
        expected_s=45.0,
        applies=needs_engine,
    ),
)
