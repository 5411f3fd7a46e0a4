"""What a report draws of a decision: the reference's bands and the candidate's curves. Host side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.convergence.decision.bands import reference
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.telemetry.series import Run, Series, encode

REWARD = "reward"


def drawing(reference_runs: Sequence[Series], candidates: Sequence[tuple[int, Run]]) -> dict[str, Any]:
    """Mean and 99 % prediction band of each reference series, and the candidates' values, step by step.

    {"reference": {"mean": [...], "low": [...], "high": [...]}, "candidate": [{"seed": 1000, "reward":
    [...]}], "telemetry": {series: {"mean", "low", "high", "candidate": [[...]]}}, "looks": [steps of each
    look]}
    """
    rule = Rule()
    bands = reference(reference_runs, rule)
    shown: Mapping[str, Any] = {
        name: dict(zip(("mean", "low", "high"), ([encode(x) for x in line] for line in lines), strict=True))
        for name, lines in bands.drawn.items()
    }
    names = sorted({name for _, run in candidates for name in run.series} | set(shown))
    return {
        "reference": shown.get(REWARD, {"mean": [], "low": [], "high": []}),
        "candidate": [
            {"seed": seed, REWARD: [encode(x) for x in run.series.get(REWARD, ())]}
            for seed, run in candidates
        ],
        "telemetry": {
            name: {
                **shown.get(name, {"mean": [], "low": [], "high": []}),
                "candidate": [[encode(x) for x in run.series.get(name, ())] for _, run in candidates],
            }
            for name in names
            if name != REWARD
        },
        "looks": [rule.steps_at(look, bands.steps) for look in range(len(rule.looks))],
    }
