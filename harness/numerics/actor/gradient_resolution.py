"""Computes how large an error of a gradient must be to be detected, that is, what a pass of the update
proves.

Two limits follow from the purpose of an update, so no share of gradients has to be chosen:
- With an error smaller than the gradient, the result is still a direction of descent: g.(g + e) >= |g|^2 -
  |g||e| > 0. If the tolerances of all parameters together are as large as the whole gradient, a pass would
  not even exclude a step that undoes learning.
- The same operators compute the gradient of one kind of parameter in every layer and step, so one observable
  gradient of a kind is enough to show a wrong operator. A kind without an observable gradient was not
  verified.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from harness.numerics.actor.actor_measurements import ActorMeasured, ActorReference, GradientResolution
from harness.outcome import Judgement, Status

MAX_NAMED = 10
_LAYER = re.compile(r"\.\d+\.")


def resolution(reference: ActorReference, labels: Sequence[str]) -> GradientResolution:
    """The resolution of the update's gradients `labels`, from the tolerances and norms of the reference.

    Gradients that are zero in exact arithmetic, such as that of a bias that softmax cancels, do not count as
    unobservable: their rounding errors in float64 are below the share of float64 in the tolerance.
    """
    # Planning imports this module, but not numpy.
    from harness.numerics.arithmetic.precision_contract import CONTRACTS, FORMATS

    tolerances, norms = reference.tolerances, reference.norms
    exactness = FORMATS["fp64"].unit_roundoff / CONTRACTS[reference.facts.contract].unit
    hidden = [label for label in labels if exactness * tolerances[label] < norms[label] <= tolerances[label]]
    seen = {_kind(label) for label in labels if norms[label] > tolerances[label]}
    return GradientResolution(
        steps={
            str(int(step) + 1): _together(
                [label for label in labels if _step(label) == step], tolerances, norms
            )
            for step in dict.fromkeys(map(_step, labels))
        },
        unobservable=tuple(label.split("/", 1)[1].rstrip("/") for label in hidden),
        unjudged=tuple(sorted({_kind(label) for label in hidden} - seen)),
    )


def _step(label: str) -> str:
    return label.split("/")[1]


def _kind(label: str) -> str:
    """The parameter without the number of its layer: `model.layers.*.mlp.up_proj.weight`."""
    return _LAYER.sub(".*.", label.split("/")[2])


def _together(
    labels: Sequence[str], tolerances: Mapping[str, float], norms: Mapping[str, float]
) -> float | None:
    """None if the whole gradient is zero, because nothing can be detected then."""
    tolerance = math.hypot(*(tolerances[label] for label in labels))
    whole = math.hypot(*(norms[label] for label in labels))
    return float(f"{tolerance / whole:.4g}") if whole else None


def judge_resolution(measurements: ActorMeasured) -> Judgement | None:
    """Inconclusive if a pass would prove too little, otherwise None; see the module."""
    known, compute = measurements.resolution, measurements.compute
    lost = [step for step, share in known.steps.items() if share is None or share >= 1]
    if lost:
        reason = (
            f"The {compute} tolerance is as large as the whole gradient of step {', '.join(lost)}. Even a "
            "step in the opposite direction would pass."
        )
    elif not known.steps:
        reason = "The update computed no gradient, so nothing was verified."
    elif known.unjudged:
        reason = (
            f"The gradient of {', '.join(known.unjudged[:MAX_NAMED])} was not verified: in every layer and "
            f"step the {compute} tolerance is as large as the gradient itself."
        )
    else:
        return None
    return Judgement(status=Status.INCONCLUSIVE, reasons=(reason,), remedies=("Compute in fp32.",))


def detectable_error(measurements: ActorMeasured) -> str:
    """A sentence on the smallest errors of gradients that would have been detected."""
    bounds = [entry.tolerance for entry in measurements.gradients if entry.tolerance < 1]
    whole = max((share for share in measurements.resolution.steps.values() if share is not None), default=0.0)
    return (
        f"The check would have detected an error of {max(bounds, default=1.0):.1g} of the norm of one "
        f"gradient, and of {whole:.1g} of the norm of all gradients together."
    )


def unobservable_reason(measurements: ActorMeasured) -> tuple[str, ...]:
    """A sentence on gradients that are smaller than their tolerance, if there are any."""
    hidden = measurements.resolution.unobservable
    if not hidden:
        return ()
    names = ", ".join(name.split("/")[1] for name in hidden[:MAX_NAMED])
    sentence = (
        f"{len(hidden)} of {len(measurements.gradients)} gradients were not verified, because their "
        f"{measurements.compute} tolerance is as large as the gradient itself ({names}). The same operators "
        "were verified in other layers or steps."
    )
    return (sentence,)
