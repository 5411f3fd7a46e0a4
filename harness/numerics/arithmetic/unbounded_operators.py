"""Operators without a known error bound: their share of a tolerance is a guess, and no pass may depend on it.

`stochastic_arithmetic` perturbs the result of an unknown operator as much as that of an elementary function.
If that is too little, a correct result is reported as wrong; if it is too much, a fault is hidden. Therefore,
if such an operator ran, the reference is computed a second time without perturbing these results, which gives
strict tolerances. A tensor within its strict tolerance does not depend on the guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.outcome import Judgement, Status

MAX_NAMED = 10


def explained_only_by_guess(
    strict: Mapping[str, float], errors: Mapping[str, float | None]
) -> tuple[str, ...]:
    """Labels of tensors whose error is larger than their strict tolerance, in the order of `errors`.

    strict: tolerances without guesses by label, empty if nothing was guessed.
    """
    return tuple(
        label
        for label, error in errors.items()
        if label in strict and (error is None or error > strict[label])
    )


def caveat_reason(operators: Sequence[str]) -> tuple[str, ...]:
    """For a failure: the tolerances of tensors that these operators computed may be too narrow."""
    if not operators:
        return ()
    sentence = (
        f"No error bound is known for {list_operators(operators)}. Tensors that they compute may be correct "
        "although they are outside of their tolerance."
    )
    return (sentence,)


def judge_guessed(operators: Sequence[str], guessed: Sequence[str]) -> Judgement | None:
    """Inconclusive if tensors are within their tolerance only because of a guess, otherwise None."""
    if not guessed:
        return None
    reason = (
        f"No error bound is known for {list_operators(operators)}. {len(guessed)} tensors are within their "
        f"tolerance only because of a guess for this bound, the first is {guessed[0]}. A fault of that size "
        "would also pass."
    )
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=(reason,),
        remedies=("Add an error bound for the operator to numerics/arithmetic/stochastic_arithmetic.py.",),
    )


def agreement_reason(operators: Sequence[str]) -> tuple[str, ...]:
    """For a pass: no bound is known for these operators, and the pass does not depend on it."""
    if not operators:
        return ()
    return (f"No error bound is known for {list_operators(operators)}; all tensors agree without it.",)


def list_operators(names: Sequence[str]) -> str:
    """The last names of the list, because these operators computed the tensor."""
    last = names[-MAX_NAMED:]
    return ", ".join(last) if len(last) == len(names) else f"..., {', '.join(last)}"
