"""Maps verl's metrics to the project's series, and finds problems in them. Standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from harness.convergence.telemetry.series import RecordedRun, encode

# Name of the series -> verl's names for it; the first one that a step contains is used. `probs_difference`
# and `probs_difference_max` are the mean and the largest |p_rollout - p_trainer| over the tokens of a step,
# `rollout_kl` is the mean of rollout - trainer log-probability.
METRICS: dict[str, tuple[str, ...]] = {
    "reward": ("critic/rewards/mean", "critic/score/mean"),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "grad_norm": ("actor/grad_norm",),
    "ppo_kl": ("actor/ppo_kl",),
    "kl": ("actor/kl_loss", "critic/kl"),
    "clip_fraction": ("actor/pg_clipfrac",),
    "pg_loss": ("actor/pg_loss",),
    "response_length": ("response_length/mean",),
    "probs_difference": ("training/rollout_probs_diff_mean",),
    "probs_difference_max": ("training/rollout_probs_diff_max",),
    "rollout_kl": ("rollout_corr/kl",),
    "seconds": ("timing_s/step", "perf/time_per_step"),
    "throughput": ("perf/throughput",),
    "memory_gb": ("perf/max_memory_allocated_gb",),
}
# Metrics that validation lines contain too.
_OF_ANY_LINE = frozenset({"seconds", "throughput", "memory_gb"})
# Metrics without which a run can hardly be judged.
REQUIRED_METRICS = ("reward", "entropy", "grad_norm")
FIRST_STEP = 1

_WRAPPED = re.compile(r"^(?:np\.\w+|numpy\.\w+|tensor)\((?P<value>[^,()]*).*\)$")


def values_of(logged: Mapping[str, Any]) -> dict[str, Any]:
    """The series values of a step's metrics; empty if the line is not of a training step."""
    values = {}
    for name, theirs in METRICS.items():
        key = next((key for key in theirs if key in logged), None)
        if key is not None:
            values[name] = number(logged[key])
    return values if values.keys() - _OF_ANY_LINE else {}


def number(logged: Any) -> Any:
    """Convert a logged value, which may be a number or numpy's text for one; other values are unchanged."""
    if isinstance(logged, (int, float)):
        return encode(float(logged))
    text = str(logged).strip()
    wrapped = _WRAPPED.match(text)
    try:
        return encode(float(wrapped["value"] if wrapped else text))
    except ValueError:
        return text


def metric_problems(run: RecordedRun, planned: int | None) -> list[str]:
    """Problems of a run: values that are not finite, missing metrics, too many steps."""
    found = []
    for name, values in run.series.items():
        numbered = enumerate(values, FIRST_STEP)
        bad = [f"{value} at step {step}" for step, value in numbered if not math.isfinite(value)]
        if bad:
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            found.append(f"{name} is not finite: {', '.join(bad[:3])}{more}")
    lacking = [name for name in REQUIRED_METRICS if name not in run.series]
    if lacking and run.steps:
        found.append(f"no step has {', '.join(lacking)}")
    if planned is not None and run.steps > planned:
        found.append(
            f"the log has {run.steps} steps, but {planned} were planned: it belongs to another recipe"
        )
    return found
