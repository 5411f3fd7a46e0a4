"""Compares a run of the check `twin` with its reference: the numbers outside of their tolerance, by step."""

from __future__ import annotations

from collections.abc import Mapping

from harness.numerics.actor.tensor_recorder import FORWARD, error_budget
from harness.numerics.arithmetic.unbounded_operators import explained_only_by_guess
from harness.numerics.twin.twin_faults import TWIN_FAULTS
from harness.numerics.twin.twin_measurements import (
    TwinDeviceRun,
    TwinDivergence,
    TwinErrors,
    TwinInjectedFault,
    TwinMeasured,
    TwinReference,
)

MAX_NAMED = 8


def compare(reference: TwinReference, run: TwinDeviceRun, seconds: float) -> TwinMeasured:
    """Find the numbers outside of their tolerance, the first of them, and the worst number of each step.

    seconds: run time of both programs together.
    """
    found = _outside(reference, run.twin)
    worst = _worst_by_step(reference, run.twin)
    guessed = explained_only_by_guess(reference.strict, run.twin.errors)
    return TwinMeasured(
        verl=run.verl,
        path=run.path,
        device=run.device,
        steps=run.steps,
        planned_steps=len(reference.facts.horizon.slack),
        worst_by_step=worst,
        worst_budget=None if None in worst else max((step for step in worst if step), default=0.0),
        tensors=len(run.twin.errors),
        bypassed=sum(_is_bypassed(label) for label in run.twin.missing),
        diverged=len(found),
        first=found[0] if found else None,
        named=found[:MAX_NAMED],
        guessed=tuple(_divergence(label, None).title for label in guessed),
        self_test=self_test(reference, run.faults),
        reference=reference.facts,
        seconds={"reference": reference.facts.seconds, "device": run.seconds, "all": round(seconds, 3)},
    )


def _outside(reference: TwinReference, twin: TwinErrors) -> tuple[TwinDivergence, ...]:
    """The numbers outside of their tolerance in the order of computation. In each step, differing tokens come
    first."""
    found = [
        TwinDivergence(step=step, kind="tokens", name="the sampled tokens", part="", budget=None)
        for step, rows in enumerate(twin.tokens, start=1)
        if rows
    ]
    missing = {label for label in twin.missing if not _is_bypassed(label)}
    for label in reference.labels:
        if label in missing:
            found.append(_divergence(label, None))
        elif label in twin.errors:
            budget = error_budget(twin.errors[label], reference.tolerances[label])
            if budget is None or budget > 1:
                found.append(_divergence(label, budget))
    return tuple(sorted(found, key=lambda entry: (entry.step, entry.kind != "tokens")))


def _divergence(label: str, budget: float | None) -> TwinDivergence:
    # The name of a metric may contain slashes.
    step, kind, _, named = label.split("/", 3)
    name, _, part = named.rpartition("/")
    return TwinDivergence(step=int(step) + 1, kind=kind, name=name, part=part, budget=budget)


def _is_bypassed(label: str) -> bool:
    """Whether a module is called only on the CPU, because a fused kernel replaces it on the device."""
    return label.split("/")[1] == FORWARD


def _worst_by_step(reference: TwinReference, twin: TwinErrors) -> tuple[float | None, ...]:
    """Largest error divided by tolerance in each step; None if a number is not finite or missing."""
    worst: list[float | None] = [0.0] * len(twin.tokens)
    for label, error in twin.errors.items():
        step = int(label.split("/")[0])
        budget, so_far = error_budget(error, reference.tolerances[label]), worst[step]
        worst[step] = None if budget is None or so_far is None else max(so_far, budget)
    return tuple(worst)


def self_test(reference: TwinReference, faults: Mapping[str, TwinErrors]) -> tuple[TwinInjectedFault, ...]:
    """For each injected fault within the horizon, whether it was detected in its step and module. A deviation
    within the contract must not be detected."""
    report = []
    for fault in TWIN_FAULTS:
        if fault.id not in faults:
            continue
        found = _outside(reference, faults[fault.id])
        located = bool(found) and found[0].step == fault.first + 1 and found[0].name == fault.target
        report.append(
            TwinInjectedFault(
                fault=fault.id,
                what=fault.what,
                caught=not found if fault.legal else located,
                legal=fault.legal,
                place=fault.target,
                step=fault.first + 1,
                first=found[0] if found else None,
            )
        )
    return tuple(report)
