"""The checks on vLLM's engine in the cell: is what it generates right, and can a trainer work with it?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.cell_program.built_environment import environment_location
from harness.cell_program.ending import LAST_WORDS, MEASURED, failure, require_setup
from harness.check import Check, Completed, TaskContext
from harness.evidence import evidence_of, read_device_facts
from harness.numerics.checks import FACETS
from harness.outcome import Evidence, Judgement, Measured, Tier
from harness.package import IMPORT_ROOT
from harness.rollout.generation import generation_judge

# Against programs that stand still: with a load of 14 on two cores the longest took 211 s and 30 s.
GROUP_TIMEOUT_S = 1200.0
REFERENCE_TIMEOUT_S = 600.0
DEVICES = 2
"""Simulated devices the engine may use: one case generates on two."""


def run_generation(context: TaskContext) -> Measured:
    """Generate in the cell, evaluate the same tokens on the CPU in another process, compare."""
    from harness.rollout.generation.generation_compare import compare_case

    folder = context.workdir / "checkpoints"
    cases: list[dict[str, Any]] = []
    groups: list[dict[str, Any]] = []
    operators: list[dict[str, Any]] = []
    files: list[Path] = []
    for group in context.params["groups"]:
        results_file = context.workdir / f"{group}.json"
        done = _in_engine(
            context,
            "harness.rollout.generation.generation_program",
            *("--group", group, "--folder", str(folder), "--out", str(results_file), "--faults"),
        )
        require_setup(done, "generation")
        if not results_file.is_file():
            groups.append({"group": group, **failure(done)})
            continue
        results = json.loads(results_file.read_text(encoding="utf-8"))
        reference_file = context.workdir / f"{group}-reference.json"
        reference = _reference(context, results_file, folder, reference_file)
        cases += [
            compare_case(case, reference["cases"][case["name"]]) if case["state"] == "generated" else case
            for case in results["cases"]
        ]
        files += [results_file, reference_file]
        groups.append(
            {
                "group": group,
                "state": MEASURED,
                **{name: results[name] for name in ("calls", "device", "packages")},
                "seconds": {"engine": results["seconds"], "reference": reference["seconds"]},
            }
        )
        operators += [{"group": group, **entry} for entry in results["operators"]]
    faults = [{"case": case["name"], **fault} for case in cases for fault in case.get("faults", ())]
    return _measured({"cases": cases, "faults": faults, "operators": operators}, groups, files)


def run_plumbing(context: TaskContext) -> Measured:
    """Sleep, wake up, reload and update in the cell; what is generated afterwards, against the CPU."""
    from harness.rollout.generation.generation_compare import compare_case

    folder = context.workdir / "checkpoints"
    results_file = context.workdir / "plumbing.json"
    done = _in_engine(
        context,
        "harness.rollout.generation.plumbing_program",
        "--folder",
        str(folder),
        "--out",
        str(results_file),
    )
    require_setup(done, "the engine")
    if not results_file.is_file():
        return _measured({"steps": [], "cases": []}, [{"group": "plumbing", **failure(done)}], [])
    results = json.loads(results_file.read_text(encoding="utf-8"))
    reference_file = context.workdir / "plumbing-reference.json"
    reference = _reference(context, results_file, folder, reference_file)
    cases = [
        compare_case(case, reference["cases"][case["name"]])
        for case in results["cases"]
        if case["state"] == "generated"
    ]
    described = {
        "group": "plumbing",
        "state": MEASURED,
        **{name: results[name] for name in ("device", "packages")},
        "seconds": {"engine": results["seconds"], "reference": reference["seconds"]},
    }
    measurements = {"steps": results["steps"], "cases": cases}
    return _measured(measurements, [described], [results_file, reference_file])


def _in_engine(context: TaskContext, module: str, *args: str) -> Completed:
    env = {
        # Every process of the engine is a program of the cell; what it caches goes with the task.
        "VLLM_CACHE_ROOT": str(context.workdir / "vllm"),
        "HF_HOME": str(context.workdir / "huggingface"),
        "NPU_SIM_COUNT": str(DEVICES),
    }
    return context.in_cell(module, *args, env=env, timeout=GROUP_TIMEOUT_S)


def _reference(context: TaskContext, results: Path, folder: Path, out: Path) -> Mapping[str, Any]:
    """The same transformers as in the cell, but no device: torch would load torch_npu by itself."""
    from harness.errors import InfrastructureError

    environment = environment_location(context.inputs["environment"])
    variables = {
        "PYTHONPATH": str(IMPORT_ROOT),
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(context.workdir / "huggingface"),
    }
    if environment.runtime:
        # A build of torch for CUDA without its libraries finds stand-ins there.
        variables["LD_LIBRARY_PATH"] = environment.runtime
    done = context.command(
        [
            *(environment.python, "-m", "harness.rollout.generation.reference_log_probs"),
            *("--results", str(results), "--folder", str(folder), "--out", str(out)),
        ],
        env=variables,
        timeout=REFERENCE_TIMEOUT_S,
    )
    if done.returncode != 0 or not out.is_file():
        raise InfrastructureError(
            "the reference process failed",
            why=done.tail[-LAST_WORDS:] or f"exit code {done.returncode}",
            fix=f"run it by hand: {json.dumps(list(done.argv))}",
        )
    reference: Mapping[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return reference


def _measured(
    measurements: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], files: Sequence[Path]
) -> Measured:
    known = next((group for group in groups if "device" in group), None)
    cases = measurements["cases"]
    return Measured(
        measurements={
            **measurements,
            # Seeded faults are a list of their own, so that they are a table for whoever reads them.
            "cases": [{name: value for name, value in case.items() if name != "faults"} for case in cases],
            "groups": list(groups),
        },
        # Where nothing reported the device, nothing stronger than "ran on a CPU" is known.
        evidence=evidence_of(read_device_facts(known["device"])) if known else Evidence.CPU,
        artifacts={file.name: file.name for file in files},
        environment={name: known[name] for name in ("packages", "device")} if known else {},
    )


def judge_generation(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    """Pure: see `verdicts.generation`."""
    return generation_judge.generation(measurements, params)


def judge_plumbing(measurements: Mapping[str, Any], params: Mapping[str, Any]) -> Judgement:
    """Pure: see `verdicts.plumbing`."""
    return generation_judge.plumbing(measurements, params)


def needs_engine(facets: Mapping[str, Any]) -> str:
    """Why there is nothing to ask: a cell without vllm-ascend."""
    return "" if facets["versions"].get("vllm_ascend") else "this cell has no vllm-ascend"


GENERATION_CHECKS: tuple[Check, ...] = (
    Check(
        name="generation",
        tier=Tier.NUMERICS,
        question="Does vLLM on this device generate with the log-probabilities the model has?",
        facets=FACETS,
        run=run_generation,
        judge=judge_generation,
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
        question="Does vLLM on this device generate right with experts in bf16 and those of gpt-oss?",
        facets=FACETS,
        run=run_generation,
        judge=judge_generation,
        needs=("environment",),
        params={"groups": ("experts-bf16", "gpt_oss")},
        # The trainers of dearer tiers use dense models.
        stops=False,
        device=True,
        timeout_s=2 * (GROUP_TIMEOUT_S + REFERENCE_TIMEOUT_S) + 60.0,
        expected_s=90.0,
        applies=needs_engine,
    ),
    Check(
        name="plumbing",
        tier=Tier.NUMERICS,
        question="Can a trainer put this engine to sleep, wake it, and give it new weights?",
        facets=FACETS,
        run=run_plumbing,
        judge=judge_plumbing,
        needs=("environment",),
        device=True,
        timeout_s=GROUP_TIMEOUT_S + REFERENCE_TIMEOUT_S + 60.0,
        expected_s=45.0,
        applies=needs_engine,
    ),
)
