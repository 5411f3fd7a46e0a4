"""How large an error of a gradient has to be to show: what a green of the actor's update is worth.

Two limits follow from what an update is, and no share of gradients is chosen:

- An error smaller than the gradient leaves it a direction of descent: g.(g + e) >= |g|^2 - |g||e| > 0. Where
  the tolerances of all parameters together are as large as the whole gradient, a pass would not even
  exclude a step that undoes learning.
- The same operators make the gradient of one kind of parameter in every layer and step, so one of them that
  is observable shows a wrong operator. A kind of which none is observable was not judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.numerics.arithmetic.precision_contract import FORMATS, Contract
from harness.outcome import Judgement, Status

MOST_NAMED = 10
_LAYER = re.compile(r"\.\d+\.")


def resolution(reference: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of an update's gradients, by the reference's tolerances and norms:

    steps: the tolerances of all parameters together, relative to the whole gradient, by step.
    unobservable: gradients that could be anything of their size, even zero, within their tolerance. Not among
    them are those that are zero by nature, as that of a bias which softmax does not see: what float64 leaves
    of them is within float64's own share of the tolerance.
    unjudged: kinds of parameters (`model.layers.*.mlp.up_proj.weight`) of which no gradient is observable.
    """
    tolerances, norms = reference["tolerances"], reference["norms"]
    contract = Contract.from_json(reference["facts"]["contract"])
    exactness = FORMATS["fp64"].unit_roundoff / contract.unit
    labels = [event["label"] for event in events if event["kind"] == "gradient"]
    hidden = [label for label in labels if exactness * tolerances[label] < norms[label] <= tolerances[label]]
    seen = {_kind(label) for label in labels if norms[label] > tolerances[label]}
    return {
        "steps": {
            str(int(step) + 1): _together(
                [label for label in labels if _step(label) == step], tolerances, norms
            )
            for step in dict.fromkeys(map(_step, labels))
        },
        "unobservable": [label.split("/", 1)[1].rstrip("/") for label in hidden],
        "unjudged": sorted({_kind(label) for label in hidden} - seen),
    }


def _step(label: str) -> str:
    return label.split("/")[1]


def _kind(label: str) -> str:
    return _LAYER.sub(".*.", label.split("/")[2])


def _together(
    labels: Sequence[str], tolerances: Mapping[str, float], norms: Mapping[str, float]
) -> float | None:
    """None where the whole gradient is zero: there is nothing to see."""
    permitted = math.hypot(*(tolerances[label] for label in labels))
    whole = math.hypot(*(norms[label] for label in labels))
    return float(f"{permitted / whole:.4g}") if whole else None


def judge_resolution(measurements: Mapping[str, Any]) -> Judgement | None:
    """No green where a pass would say too little; see the module."""
    known, compute = measurements["resolution"], measurements["compute"]
    lost = [step for step, share in known["steps"].items() if share is None or share >= 1]
    if lost or not known["steps"]:
        reason = (
            f"What {compute} permits is as large as the whole gradient of step {', '.join(lost)}: even a "
            "step against it would pass."
            if lost
            else "The update made no gradient, so there is nothing to judge."
        )
    elif known["unjudged"]:
        reason = (
            f"Nothing judges the gradient of {', '.join(known['unjudged'][:MOST_NAMED])}: in every layer and "
            f"step what {compute} permits is as large as it."
        )
    else:
        return None
    return Judgement(status=Status.INCONCLUSIVE, reasons=(reason,), remedies=("Compute in fp32.",))


def detectable_error(measurements: Mapping[str, Any]) -> str:
    """From which error on the whole gradient, and each that is observable at all, would have shown it."""
    bounds = [entry["tolerance"] for entry in measurements["gradients"] if entry["tolerance"] < 1]
    whole = max(measurements["resolution"]["steps"].values())
    return (
        f"a gradient shows errors above {max(bounds, default=1.0):.1g} of its norm, all of them together "
        f"above {whole:.1g}"
    )


def unobservable_reason(measurements: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence on the gradients that are not observable, if any."""
    hidden = measurements["resolution"]["unobservable"]
    if not hidden:
        return ()
    names = ", ".join(name.split("/")[1] for name in hidden[:MOST_NAMED])
    sentence = (
        f"Not observable: {len(hidden)} of {len(measurements['gradients'])} gradients, for what "
        f"{measurements['compute']} permits is as large as they are ({names}); the same operators are judged "
        "in other layers or steps."
    )
    return (sentence,)
