"""Compares one update on the device with its reference: which tensors diverge, and which of them is the
first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.numerics.actor.actor_faults import ACTOR_FAULTS, GRADIENT_SIGN
from harness.numerics.actor.actor_measurements import (
    ActorDeviceRun,
    ActorMeasured,
    ActorReference,
    DivergedTensor,
    Errors,
    GradientError,
    LocatedFault,
    PackedErrors,
    PackedRows,
    RecordedTensor,
    TensorKindSummary,
)
from harness.numerics.actor.gradient_resolution import resolution
from harness.numerics.actor.tensor_recorder import GRADIENT, error_budget
from harness.numerics.arithmetic.unbounded_operators import explained_only_by_guess

MAX_NAMED = 12


def compare(reference: ActorReference, run: ActorDeviceRun, seconds: float) -> ActorMeasured:
    """Find the tensors that are outside of their tolerance. `seconds`: run time of both programs together."""
    tolerances, norms = reference.tolerances, reference.norms
    # A module that only one side calls (a fused kernel replaces it on the other side) has no counterpart.
    events = [event for event in run.events if event.label in tolerances]
    budgets = {event.label: error_budget(event.error, tolerances[event.label]) for event in events}
    diverged = [
        DivergedTensor(
            label=event.label,
            kind=event.kind,
            sentence=event.sentence,
            operators=event.operators,
            budget=budgets[event.label],
        )
        for event in events
        if not _is_within(budgets[event.label])
    ]
    return ActorMeasured(
        verl=run.verl,
        path=run.path,
        compute=run.compute,
        finding=run.finding,
        device=run.device,
        tensors=len(events),
        diverged=len(diverged),
        first=diverged[0] if diverged else None,
        named=tuple(diverged[:MAX_NAMED]),
        kinds=_kinds(events, budgets),
        gradients=tuple(
            GradientError(
                name=event.label.split("/")[2],
                step=int(event.label.split("/")[1]) + 1,
                relative_error=None if event.error is None else _relative(event.error, norms[event.label]),
                tolerance=_relative(tolerances[event.label], norms[event.label]),
                budget=budgets[event.label],
            )
            for event in events
            if event.kind == GRADIENT
        ),
        missing=tuple(label for label in run.missing if not _is_module(label)),
        bypassed=sum(_is_module(label) for label in run.missing),
        differing=run.differing[:MAX_NAMED],
        resolution=resolution(reference, [event.label for event in events if event.kind == GRADIENT]),
        guessed=tuple(_guessed(reference, run)),
        matmuls=replace(run.matmuls, wrong=run.matmuls.wrong[:MAX_NAMED], faults={}),
        packed=packed_rows(tolerances, reference.labels, run.packed),
        self_test=self_test(tolerances, run),
        reference=reference.facts,
        seconds={
            "reference": reference.facts.seconds,
            "device": run.seconds,
            "all": round(seconds, 3),
        },
    )


def _guessed(reference: ActorReference, run: ActorDeviceRun) -> list[str]:
    """Tensors that are within their tolerance only because of a guess, with padded rows and with packed
    rows."""
    sentences = {event.label: event.sentence for event in run.events}
    errors = {event.label: event.error for event in run.events}
    padded = [sentences[label] for label in explained_only_by_guess(reference.strict, errors)]
    packed = explained_only_by_guess(reference.strict, run.packed.errors)
    return [*padded, *(f"{sentences.get(label, label)} with packed rows" for label in packed)]


def packed_rows(tolerances: Mapping[str, float], labels: Sequence[str], packed: PackedErrors) -> PackedRows:
    """The comparison of the update with packed rows and fused attention.

    labels: everything that the reference recorded, in the order of computation.
    """
    if packed.skipped or packed.error:
        return PackedRows(skipped=packed.skipped, error=packed.error)
    lost = [label for label in tolerances if label not in packed.errors and not _is_module(label)]
    budgets = {**_budgets(tolerances, packed.errors), **dict.fromkeys(lost)}
    wrong = [label for label, budget in budgets.items() if not _is_within(budget)]
    faulty = [
        label for label, budget in _budgets(tolerances, packed.faulty).items() if not _is_within(budget)
    ]
    first = _last_called_gradient(wrong, labels)
    return PackedRows(
        tensors=len(budgets),
        diverged=len(wrong),
        first=first.split("/", 2)[2].rstrip("/") if wrong else "",
        kind=first.split("/")[0],
        worst_budget=max((budget for budget in budgets.values() if budget is not None), default=0.0),
        fault_caught=bool(faulty) and faulty[0].split("/")[2] == GRADIENT_SIGN.target,
    )


def _last_called_gradient(wrong: list[str], labels: Sequence[str]) -> str:
    """Among the wrong gradients of the first pass, that of the module called last, because the backward pass
    starts there."""
    gradients = [label for label in wrong if label.startswith("gradient/0/")]
    if gradients and wrong[0].startswith("gradient/"):
        modules = dict.fromkeys(label.split("/")[2] for label in labels if label.startswith("forward/0/"))
        called = {module: index for index, module in enumerate(modules)}
        return max(gradients, key=lambda label: called.get(label.split("/")[2].rpartition(".")[0], -1))
    return wrong[0] if wrong else ""


def _budgets(tolerances: Mapping[str, float], errors: Errors) -> dict[str, float | None]:
    return {
        label: error_budget(error, tolerances[label])
        for label, error in errors.items()
        if label in tolerances
    }


def _is_module(label: str) -> bool:
    return label.startswith(("forward/", "backward/"))


def _is_within(budget: float | None) -> bool:
    return budget is not None and budget <= 1


def self_test(tolerances: Mapping[str, float], run: ActorDeviceRun) -> tuple[LocatedFault, ...]:
    """For each injected fault, whether the first tensor that diverges belongs to the module with the
    fault."""
    report = []
    for fault in ACTOR_FAULTS[run.compute]:
        if fault.matmul:
            first = next((matmul.name for matmul in run.matmuls.faults.get(fault.id, ())), "")
            caught = first == fault.target
        else:
            budgets = _budgets(tolerances, run.faults.get(fault.id, {}))
            first = next((label for label, budget in budgets.items() if not _is_within(budget)), "")
            caught = bool(first) and first.split("/")[2] == fault.target
        report.append(
            LocatedFault(fault=fault.id, what=fault.what, place=fault.target, caught=caught, first=first)
        )
    return tuple(report)


def _relative(size: float, norm: float) -> float:
    return float(f"{size / max(norm, 1e-300):.4g}")


def _kinds(
    events: Sequence[RecordedTensor], budgets: Mapping[str, float | None]
) -> dict[str, TensorKindSummary]:
    kinds: dict[str, list[float | None]] = {}
    for event in events:
        kinds.setdefault(event.kind, []).append(budgets[event.label])
    return {
        kind: TensorKindSummary(
            tensors=len(found),
            diverged=sum(not _is_within(budget) for budget in found),
            worst_budget=max((budget for budget in found if budget is not None), default=0.0),
        )
        for kind, found in kinds.items()
    }
