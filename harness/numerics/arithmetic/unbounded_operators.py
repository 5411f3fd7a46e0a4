"""Operators without an error bound: their share of a tolerance is a guess, and no pass may depend on it.

`stochastic_arithmetic` perturbs the result of an operator that it does not know as much as that of an
elementary function. That may be too little, and then a right result is reported; or too much, and then a
fault is hidden. So wherever such an operator ran, the reference is computed a second time without perturbing
these results. A tensor within these strict tolerances does not depend on the guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.outcome import Judgement, Status

MAX_NAMED = 10


def explained_only_by_guess(
    strict: Mapping[str, float], errors: Mapping[str, float | None]
) -> tuple[str, ...]:
    """Labels whose error is larger than what operators with a bound explain, in the order of `errors`.

    strict: tolerances without guesses by label, empty when nothing was guessed.
    """
    return tuple(
        label
        for label, error in errors.items()
        if label in strict and (error is None or error > strict[label])
    )


def caveat_reason(operators: Sequence[str]) -> tuple[str, ...]:
    """For a fail: the tolerances of what these operators compute may be too narrow."""
    if not operators:
        return ()
    sentence = (
        f"No error bound is known for {_listed(operators)}: what they compute may be correct although it is "
        "outside of its tolerance."
    )
    return (sentence,)


def judge_guessed(operators: Sequence[str], guessed: Sequence[str]) -> Judgement | None:
    """Inconclusive when tensors are within their tolerance only by a guess, else None."""
    if not guessed:
        return None
    reason = (
        f"No error bound is known for {_listed(operators)}. {len(guessed)} tensors are within their "
        f"tolerance only by a guess for it, the first is {guessed[0]}: a fault of that size would pass too."
    )
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=(reason,),
        remedies=("Add an error bound for the operator to numerics/arithmetic/stochastic_arithmetic.py.",),
    )


def agreement_reason(operators: Sequence[str]) -> tuple[str, ...]:
    """For a pass: these operators have no bound, and the pass does not depend on it."""
    if not operators:
        return ()
    return (f"No error bound is known for {_listed(operators)}; everything agrees without one.",)


def _listed(names: Sequence[str]) -> str:
    """The last ones: the tensor was computed by them."""
    last = names[-MAX_NAMED:]
    return ", ".join(last) if len(last) == len(names) else f"..., {', '.join(last)}"
