"""Generated tokens and log-probabilities against their reference: how far off, and how far is permitted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Rounds = Sequence[Sequence[Mapping[str, Any]]]

LOGPROB_UNIT = 2.0**-24
"""vLLM hands log-probabilities over in fp32, whatever the model computes in."""

MOST = 1e9
"""Stands for infinity, which JSON has not."""


@dataclass(frozen=True, kw_only=True)
class Distance:
    """largest, rms: errors of `compared` log-probabilities.

    likeliest: how many of the tokens are the reference's own first choice; behind: how far the others lie
    behind it, at most. worst_rank: a token's worst place in the reference, from 0.
    """

    largest: float
    rms: float
    compared: int
    tokens: int
    likeliest: int
    behind: float
    worst_rank: int

    def budget(self, largest: float, rms: float) -> float:
        """Error in units of what is permitted: above 1 is wrong, infinite when something is not a number."""
        if not math.isfinite(self.largest):
            return math.inf
        return max(self.largest / largest, self.rms / rms)


def distance(found: Rounds, expected: Rounds) -> Distance:
    """Of all rounds together. ValueError when the two do not belong together."""
    largest, total, compared, tokens, likeliest, behind, rank = 0.0, 0.0, 0, 0, 0, 0.0, 0
    for asked, answered in zip(found, expected, strict=True):
        for request, truth in zip(asked, answered, strict=True):
            for place, (token, listed) in enumerate(zip(request["tokens"], request["logprobs"], strict=True)):
                errors = [abs(listed[name] - truth["logprobs"][place][name]) for name in listed]
                errors = [error if math.isfinite(error) else math.inf for error in errors]
                largest = max([largest, *errors])
                total += sum(error * error for error in errors)
                compared += len(errors)
                best, value = truth["best"][place]
                tokens += 1
                likeliest += best == token
                behind = max(behind, value - truth["logprobs"][place][str(token)])
                rank = max(rank, truth["ranks"][place])
    return Distance(
        largest=largest,
        rms=math.sqrt(total / compared) if compared else math.inf,
        compared=compared,
        tokens=tokens,
        likeliest=likeliest,
        behind=behind,
        worst_rank=rank,
    )


def permitted(reference: Mapping[str, Any]) -> tuple[float, float]:
    """Largest and root mean square error a faithful implementation may have."""
    safety, tolerance = reference["safety"], reference["tolerance"]
    # Rounding to fp32 of a log-probability, which is seldom beyond 32 in these checkpoints.
    rounding = 32 * LOGPROB_UNIT
    return safety * tolerance["largest"] + rounding, safety * tolerance["rms"] + rounding


def compare_case(case: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """One case's distance, whether its tokens were properly chosen, and what each seeded fault did."""
    largest, rms = permitted(reference)
    found = distance(case["rounds"], reference["rounds"])
    sampling = case["sampling"]
    entry: dict[str, Any] = {
        "name": case["name"],
        "dtype": case["dtype"],
        "state": case["state"],
        "permitted": {"largest": largest, "rms": rms},
        **_numbers(found, largest, rms),
        "choice": _choice(found, largest, sampling),
        "cached": sum(request["cached"] for requests in case["rounds"] for request in requests),
        "expects_cached": case["expects_cached"],
        "faults": [],
    }
    for fault, truth in zip(case.get("faults", ()), reference["faults"], strict=True):
        described = {name: fault[name] for name in ("family", "fault", "state")}
        if fault["state"] == "generated":
            struck = distance(fault["rounds"], truth["rounds"])
            described |= {
                **_numbers(struck, largest, rms),
                "choice": _choice(struck, largest, sampling),
                "hit": fault["hit"],
                "named": fault["named"],
            }
        entry["faults"].append(described)
    return entry


def _numbers(found: Distance, largest: float, rms: float) -> dict[str, Any]:
    return {
        "largest": min(found.largest, MOST),
        "rms": min(found.rms, MOST),
        "compared": found.compared,
        "tokens": found.tokens,
        "likeliest": found.likeliest,
        "budget": min(found.budget(largest, rms), MOST),
    }


def _choice(found: Distance, largest: float, sampling: Mapping[str, Any]) -> str:
    """Why a token cannot have been chosen, or "". Two log-probabilities may each be off by `largest`."""
    if sampling:
        if found.worst_rank >= sampling["top_k"]:
            return f"a token at place {found.worst_rank + 1} was drawn, {sampling['top_k']} were allowed"
        return ""
    if found.behind > 2 * largest:
        return f"a token {found.behind:.3g} behind the likeliest was chosen, {2 * largest:.3g} is permitted"
    return ""
