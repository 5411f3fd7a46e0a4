"""Operations without an error bound: their share of a tolerance is a guess, and no green may lean on it.

`stochastic` moves the result of an operation it does not know by as much as that of an elementary function.
That may be too little, and then what is right is flagged; or too much, and then it hides a fault. So wherever
such an operation ran, the reference is made a second time with those results left alone. What lies within
these strict tolerances owes nothing to a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.outcome import Judgement, Status

MOST_NAMED = 10


def explained_only_by_guess(reference: Mapping[str, Any], errors: Mapping[str, float | None]) -> list[str]:
    """Labels whose error is larger than what operations with a bound explain, in the order of `errors`.

    reference: with `strict`, tolerances without guesses by label, where there was anything to guess.
    """
    strict = reference.get("strict", {})
    return [
        label
        for label, error in errors.items()
        if label in strict and (error is None or error > strict[label])
    ]


def operators(measurements: Mapping[str, Any]) -> tuple[str, ...]:
    """The operations that ran without a bound."""
    return tuple(measurements.get("reference", {}).get("unmodelled", ()))


def caveat_reason(measurements: Mapping[str, Any]) -> tuple[str, ...]:
    """What a red says of them: there the tolerances may be too narrow."""
    if not operators(measurements):
        return ()
    said = (
        f"No error bound is known here for {_listed(operators(measurements))}: what comes out of it may be "
        "right and outside of its tolerance."
    )
    return (said,)


def judge_guessed(measurements: Mapping[str, Any]) -> Judgement | None:
    """No green where something lies within its tolerance by a guess alone."""
    leaning = measurements["guessed"]
    if not leaning:
        return None
    reason = (
        f"No error bound is known here for {_listed(operators(measurements))}, and {len(leaning)} tensors "
        f"lie within their tolerance only by a guess for it, first {leaning[0]}: a fault of that size would "
        "look the same."
    )
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=(reason,),
        remedies=("Add an error bound for the operator to numerics/arithmetic/stochastic_arithmetic.py.",),
    )


def agreement_reason(measurements: Mapping[str, Any]) -> tuple[str, ...]:
    """What a green says of them."""
    if not operators(measurements):
        return ()
    said = (
        f"No error bound is known here for {_listed(operators(measurements))}; everything agrees without one."
    )
    return (said,)


def _listed(names: Sequence[str]) -> str:
    """The latest ones: the tensor came out of them."""
    latest = names[-MOST_NAMED:]
    return ", ".join(latest) if len(latest) == len(names) else f"..., {', '.join(latest)}"
