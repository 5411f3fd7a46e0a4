"""What one update on the device says beside its reference: which tensors diverge, which of them first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.numerics.actor.actor_faults import ACTOR_FAULTS, GRADIENT_SIGN
from harness.numerics.actor.gradient_resolution import resolution
from harness.numerics.arithmetic.unbounded_operators import explained_only_by_guess

MOST_NAMED = 12


def compare(reference: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Which tensors are farther from the reference than they may be, and which of them was the first."""
    tolerances, norms = reference["tolerances"], reference["norms"]
    events = [
        {**event, "budget": _budget(event["error"], tolerances.get(event["label"]))}
        for event in facts["events"]
        # A module that only one side calls (a fused kernel replaces it on the other) has no counterpart.
        if event["label"] in tolerances
    ]
    diverged = [event for event in events if event["budget"] is None or event["budget"] > 1]
    return {
        "tensors": len(events),
        "diverged": len(diverged),
        "first": _named(diverged[0]) if diverged else None,
        "named": [_named(event) for event in diverged[:MOST_NAMED]],
        "kinds": _kinds(events),
        "gradients": [
            {
                "name": event["label"].split("/")[2],
                "step": int(event["label"].split("/")[1]) + 1,
                "relative_error": _relative(event["error"], norms[event["label"]]),
                "tolerance": _relative(tolerances[event["label"]], norms[event["label"]]),
                "budget": event["budget"],
            }
            for event in events
            if event["kind"] == "gradient"
        ],
        "missing": [label for label in facts["missing"] if not _is_module(label)],
        "bypassed": sum(_is_module(label) for label in facts["missing"]),
        "differing": facts["differing"][:MOST_NAMED],
        "resolution": resolution(reference, events),
        "guessed": _guessed(reference, facts),
        "products": {**facts["products"], "wrong": facts["products"]["wrong"][:MOST_NAMED]},
        "packed": packed_path(tolerances, reference["labels"], facts["packed"]),
        "self_test": self_test(tolerances, facts),
    }


def _guessed(reference: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """What only a guessed bound explains, with padded rows and with packed ones."""
    sentences = {event["label"]: event["sentence"] for event in facts["events"]}
    errors = {event["label"]: event["error"] for event in facts["events"]}
    padded = [sentences[label] for label in explained_only_by_guess(reference, errors)]
    packed = explained_only_by_guess(reference, facts["packed"].get("errors", {}))
    return [*padded, *(f"{sentences.get(label, label)} with packed rows" for label in packed)]


def packed_path(
    tolerances: Mapping[str, float], labels: Sequence[str], packed: Mapping[str, Any]
) -> dict[str, Any]:
    """What packing and fused attention change of an update: `why` or `error` when it did not come to that.

    labels: everything the reference recorded, in the order of its making.
    """
    if "errors" not in packed:
        return dict(packed)
    lost = [label for label in tolerances if label not in packed["errors"] and not _is_module(label)]
    budgets = {**_budgets(tolerances, packed["errors"]), **dict.fromkeys(lost)}
    wrong = [label for label, budget in budgets.items() if not _within(budget)]
    faulty = [
        label for label, budget in _budgets(tolerances, packed["faulty"]).items() if not _within(budget)
    ]
    first = _nearest_to_the_loss(wrong, labels)
    return {
        "tensors": len(budgets),
        "diverged": len(wrong),
        "first": first.split("/", 2)[2].rstrip("/") if wrong else "",
        "kind": first.split("/")[0],
        "worst_budget": max((budget for budget in budgets.values() if budget is not None), default=0.0),
        "fault_caught": bool(faulty) and faulty[0].split("/")[2] == GRADIENT_SIGN.place,
    }


def _nearest_to_the_loss(wrong: list[str], labels: Sequence[str]) -> str:
    """Of the first pass's gradients that of the module called last: they flow from there to the first."""
    gradients = [label for label in wrong if label.startswith("gradient/0/")]
    if gradients and wrong[0].startswith("gradient/"):
        modules = dict.fromkeys(label.split("/")[2] for label in labels if label.startswith("forward/0/"))
        called = {module: place for place, module in enumerate(modules)}
        return max(gradients, key=lambda label: called.get(label.split("/")[2].rpartition(".")[0], -1))
    return wrong[0] if wrong else ""


def _budgets(tolerances: Mapping[str, float], errors: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        label: _budget(error, tolerances[label]) for label, error in errors.items() if label in tolerances
    }


def _is_module(label: str) -> bool:
    return label.startswith(("forward/", "backward/"))


def _within(budget: float | None) -> bool:
    return budget is not None and budget <= 1


def self_test(tolerances: Mapping[str, float], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each seeded fault: whether it was caught, and whether what diverges first is where it sits."""
    report = []
    for fault in ACTOR_FAULTS[facts["compute"]]:
        if fault.product:
            first = next((entry["name"] for entry in facts["products"]["faults"].get(fault.id, [])), "")
            caught = first == fault.place
        else:
            errors = facts["faults"].get(fault.id, {})
            wrong = [label for label, budget in _budgets(tolerances, errors).items() if not _within(budget)]
            first = wrong[0] if wrong else ""
            caught = bool(wrong) and first.split("/")[2] == fault.place
        report.append(
            {"fault": fault.id, "what": fault.what, "place": fault.place, "caught": caught, "first": first}
        )
    return report


def _budget(error: float | None, tolerance: float | None) -> float | None:
    """Error over tolerance; None where the tensor is missing, misshapen or not finite."""
    if error is None or tolerance is None:
        return None
    return float(f"{error / max(tolerance, 1e-300):.4g}")


def _relative(size: float | None, norm: float) -> float | None:
    return None if size is None else float(f"{size / max(norm, 1e-300):.4g}")


def _named(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("label", "kind", "sentence", "operators", "budget")}


def _kinds(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for event in events:
        entry = kinds.setdefault(event["kind"], {"tensors": 0, "diverged": 0, "worst_budget": 0.0})
        entry["tensors"] += 1
        entry["diverged"] += event["budget"] is None or event["budget"] > 1
        if event["budget"] is not None:
            entry["worst_budget"] = max(entry["worst_budget"], event["budget"])
    return kinds
