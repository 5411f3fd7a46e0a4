"""The checks that run verl's trainer with vLLM as its rollout: do both compute the same probabilities?"""

from __future__ import annotations

import fcntl
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cell_program.program_run import STORED_CHARACTERS
from harness.check import Check, TaskContext
from harness.convergence.decision.decision_rule import FEATURES
from harness.convergence.telemetry.series import decode_series
from harness.convergence.telemetry.verl_metrics import FIRST_STEP
from harness.convergence.trainer import trainer_check, vllm_rollout
from harness.convergence.trainer.judging.failed_runs import TIMEOUT_S, failed, judge_failure, notes
from harness.convergence.trainer.trainer_measurements import (
    TRAINER_FORMAT,
    GapLimits,
    TrainerMeasurements,
    TrainerProgramFailure,
)
from harness.convergence.trainer.trainer_recipe import ALGORITHMS
from harness.devices.sim.start.sim_environment import INTERPRET, TRITON, triton_environment
from harness.errors import InfrastructureError
from harness.measurements import read_shape
from harness.outcome import Judgement, Measured, Status, Tier

LIMITS_PROGRAM = "harness.convergence.trainer.judging.probability_gap"
LIMITS_TIMEOUT_S = 300.0
CHECK_TIMEOUT_S = TIMEOUT_S + LIMITS_TIMEOUT_S + 60.0
STEPS = 2
"""The second step samples with the weights that the first one trained, so weight sync is tested twice."""
SIMULATED_DEVICES = 64
# Series -> its limit, and the words for it in a sentence.
GAPS: Mapping[str, tuple[Callable[[GapLimits], float], str]] = {
    "probs_difference": (lambda limits: limits.mean, "on average"),
    "probs_difference_max": (lambda limits: limits.largest, "at most"),
}
# The reward of a response is between 0 and 1.
LEAST_REWARD, MOST_REWARD = 0.0, 1.0


def run(context: TaskContext) -> Measured[trainer_check.Measurements]:
    """Train a few steps in the cell, then measure in the cell how large rounding errors can be."""
    with _device(context) as variables:
        return measure(context, variables)


def measure(
    context: TaskContext, variables: Mapping[str, str], *more: str
) -> Measured[trainer_check.Measurements]:
    """Run the trainer with these environment variables and further options of the program."""
    # Every plan imports this module, and `trainer_runs` imports the decision rule with numpy.
    from harness.convergence.trainer.trainer_runs import PROGRAM, measured_by, read_run

    out, folder = context.workdir / "run.json", context.workdir / "task"
    folder.mkdir()
    completed = context.in_cell(
        PROGRAM,
        *("--algorithm", str(context.params["algorithm"]), "--steps", str(context.params["steps"]), *more),
        *("--device", "npu", "--folder", str(folder), "--out", str(out), *vllm_rollout.arguments()),
        env={
            **vllm_rollout.ENVIRONMENT,
            **variables,
            "VLLM_CACHE_ROOT": str(context.workdir / "vllm"),
            "HF_HOME": str(context.workdir / "huggingface"),
        },
        timeout=TIMEOUT_S,
    )
    found = read_run(out, completed)
    if isinstance(found, TrainerMeasurements) and found.state == "measured":
        found = replace(found, limits=_limits(context, found.recipe.seed))
    return measured_by(context, found)


@contextmanager
def _device(context: TaskContext) -> Iterator[dict[str, str]]:
    """Reserve a number of a simulated device that no other run on this host uses; real devices are leased.

    verl syncs weights through a socket in /tmp whose name contains only the device number.
    """
    variables = simulation_variables(context)
    if not is_simulated(context):
        yield variables
        return
    for number in range(SIMULATED_DEVICES):
        with Path(f"/tmp/npu-matrix-simulated-device-{number}.lock").open("a") as lock:  # noqa: S108 - as verl's
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield {
                **variables,
                "NPU_SIM_COUNT": str(number + 1),
                "ASCEND_RT_VISIBLE_DEVICES": str(number),
            }
            return
    raise InfrastructureError(
        f"all {SIMULATED_DEVICES} simulated devices are in use by other runs", fix="wait for them to end"
    )


def is_simulated(context: TaskContext) -> bool:
    """Whether the cell's device is simulated."""
    return bool(context.facets["device"]["kind"] == "sim")


def simulation_variables(context: TaskContext) -> dict[str, str]:
    """The environment variables that this vllm-ascend needs in addition on a simulated device."""
    if not is_simulated(context):
        return {}
    version = str(context.facets["versions"]["vllm_ascend"])
    # verl imports MoE models to patch their weight loaders. Their kernels use Triton's `exp`, which vLLM's
    # placeholder for Triton lacks before 0.13.
    if tuple(int(part) for part in version.split(".")[:2]) < (0, 13):
        return {TRITON: INTERPRET}
    return triton_environment(version)


def _limits(context: TaskContext, seed: int) -> GapLimits:
    out = context.workdir / "limits.json"
    done = context.in_cell(
        LIMITS_PROGRAM,
        *("--folder", str(context.workdir / "task"), "--seed", str(seed), "--out", str(out)),
        timeout=LIMITS_TIMEOUT_S,
    )
    if done.returncode != 0 or not out.is_file():
        raise InfrastructureError(
            "the limits of rounding errors could not be measured",
            why=done.tail[-STORED_CHARACTERS:] or f"exit code {done.returncode}",
            fix="run the check again; report it if it fails again",
        )
    return read_shape(GapLimits, out)


def judge(measured: trainer_check.Measurements, params: Mapping[str, Any]) -> Judgement:
    """Pass when every step was made with plausible values, and rollout and trainer differ by rounding only.

    params: `compared` is the number of first steps in which both have the same weights; default: all.
    """
    if isinstance(measured, TrainerProgramFailure) or measured.state != "measured":
        return judge_failure(measured)
    assert measured.limits is not None, "`measure` adds them to every run that was measured"
    series = decode_series(measured.series)
    steps = measured.recipe.steps
    made = max((len(values) for values in series.values()), default=0)
    if made < steps or not measured.complete:
        reason = f"The trainer ended without an error, but after {made} of {steps} steps."
        return failed(measured, reason, remedy="Read the end of the task's log.")
    compared = int(params.get("compared", steps))
    gaps = {name: tuple(series.get(name, ())[:compared]) for name in GAPS}
    wrong = [*_implausible(series), *_disagreements(gaps, measured.limits)]
    if wrong:
        return failed(measured, *wrong, *_caveats(measured), remedy=_REMEDY)
    missing = [name for name, values in gaps.items() if len(values) < compared]
    if missing:
        reason = f"verl did not log {', '.join(missing)} in each of the first {compared} steps."
        return Judgement(status=Status.INCONCLUSIVE, reasons=(reason, *notes(measured)))
    return Judgement(
        status=Status.PASS,
        reasons=(
            _agreement(gaps, measured.limits),
            ONLY_PLUMBING,
            *_caveats(measured),
            *notes(measured),
        ),
    )


_REMEDY = (
    "Run the checks generation and plumbing: they name the operator, or the step of the weight sync, that is "
    "wrong. If both pass, look at the sampling settings (temperature, vocabulary beyond the tokenizer)."
)
ONLY_PLUMBING = (
    "These few steps show that rollout, weight sync and trainer work together, not that the policy learns."
)
SHARED_KERNELS = (
    "Rollout and trainer both use the kernels of the simulated device: agreement shows that weights, caches "
    "and tokens are routed correctly, but says nothing about the rounding of Ascend hardware."
)
NOT_COVERED = "Not covered: graph mode, torchair, compiled Triton kernels, HCCL itself."


def _implausible(series: Mapping[str, Sequence[float]]) -> Iterator[str]:
    for name in ("reward", "entropy", "grad_norm"):
        if not series.get(name):
            yield f"verl logged no {name}."
    for name in ("reward", *(feature.name for feature in FEATURES if feature.name not in GAPS)):
        steps = enumerate(series.get(name, ()), FIRST_STEP)
        bad = [f"{value} at step {step}" for step, value in steps if not math.isfinite(value)]
        if bad:
            yield f"{name.capitalize()} is {', '.join(bad)}."
    if any(not LEAST_REWARD <= value <= MOST_REWARD for value in series.get("reward", ())):
        yield f"The reward is outside its range of {LEAST_REWARD:g} to {MOST_REWARD:g}."
    if any(value == 0 for value in series.get("grad_norm", ())):
        yield "The gradient is zero, so the weights were not trained."


def _disagreements(series: Mapping[str, Sequence[float]], limits: GapLimits) -> Iterator[str]:
    for name, (limit, how) in GAPS.items():
        for step, value in enumerate(series.get(name, ()), FIRST_STEP):
            # `not <=` is also true for NaN.
            if not value <= limit(limits):
                yield (
                    f"In step {step} the token probabilities of rollout and trainer differ by {value:.2g} "
                    f"{how}; rounding explains {limit(limits):.2g}."
                )


def _agreement(gaps: Mapping[str, Sequence[float]], limits: GapLimits) -> str:
    mean, largest = (max(gaps[name]) for name in GAPS)
    share = max(mean / limits.mean, largest / limits.largest)
    steps = {len(values) for values in gaps.values()}.pop()
    where = "the first step" if steps == 1 else f"{steps} steps"
    return (
        f"vLLM and the trainer agree on the policy in {where}: token probabilities differ by {mean:.1e} on "
        f"average and {largest:.1e} at most, which is {share:.1%} of what rounding explains."
    )


def _caveats(measured: TrainerMeasurements) -> list[str]:
    """Sentences about what the check does not cover."""
    return [SHARED_KERNELS, NOT_COVERED] if measured.device.simulated else []


def applies(facets: Mapping[str, Any]) -> str:
    """Why this check cannot run in this cell, or ""."""
    if not facets.get("versions", {}).get("vllm_ascend"):
        return "this cell has no vllm-ascend"
    if old := trainer_check.older_than(facets, vllm_rollout.OLDEST):
        return f"{old} has no vLLM server mode; this check needs verl 0.7 or later"
    return trainer_check.applies(facets)


CHECKS = tuple(
    Check(
        name=f"trainer-vllm-{algorithm}",
        tier=Tier.CONVERGENCE,
        question=(
            f"Does verl train with {algorithm.upper()} and a vLLM rollout, and do actor and rollout agree?"
        ),
        facets=trainer_check.FACETS,
        measurements=TRAINER_FORMAT,
        run=run,
        judge=judge,
        needs=("environment",),
        params={"algorithm": algorithm, "steps": STEPS},
        device=True,
        timeout_s=CHECK_TIMEOUT_S,
        expected_s=150.0,
        applies=applies,
    )
    for algorithm in ALGORITHMS
)
