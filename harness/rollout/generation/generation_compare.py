"""Compares generated tokens and log-probabilities with their reference: errors and tolerances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.rollout.generation.generation_measurements import (
    CaseRun,
    FaultResult,
    FaultRun,
    GeneratedCase,
    LogProbErrors,
    LogProbTolerance,
    ReferenceCase,
    ReferenceRounds,
    Rounds,
    UnmeasuredFault,
)
from harness.rollout.operators.operator_result import LARGEST_STORED

LOGPROB_UNIT = 2.0**-24
"""vLLM returns log-probabilities in fp32, whatever the model's dtype is."""


@dataclass(frozen=True, kw_only=True)
class Distance:
    """The difference between generated log-probabilities and their reference.

    largest, rms: errors of `compared` log-probabilities. likeliest: the number of tokens that are the
    reference's most likely token. behind: the largest log-probability difference between that token and a
    generated one.
    worst_rank: the worst rank of a generated token in the reference, from 0.
    """

    largest: float
    rms: float
    compared: int
    tokens: int
    likeliest: int
    behind: float
    worst_rank: int

    def budget(self, largest: float, rms: float) -> float:
        """The error in units of the tolerance: above 1 is wrong, infinite if a value is not finite."""
        if not math.isfinite(self.largest):
            return math.inf
        return max(self.largest / largest, self.rms / rms)


def distance(found: Rounds, expected: ReferenceRounds) -> Distance:
    """The difference over all rounds. Raises ValueError when the two have different lengths."""
    largest, total, compared, tokens, likeliest, behind, rank = 0.0, 0.0, 0, 0, 0, 0.0, 0
    for requests, references in zip(found, expected, strict=True):
        for request, truth in zip(requests, references, strict=True):
            for place, (token, listed) in enumerate(zip(request.tokens, request.logprobs, strict=True)):
                errors = [abs(listed[name] - truth.logprobs[place][name]) for name in listed]
                errors = [error if math.isfinite(error) else math.inf for error in errors]
                largest = max([largest, *errors])
                total += sum(error * error for error in errors)
                compared += len(errors)
                best, value = truth.best[place]
                tokens += 1
                likeliest += best == token
                behind = max(behind, value - truth.logprobs[place][str(token)])
                rank = max(rank, truth.ranks[place])
    return Distance(
        largest=largest,
        rms=math.sqrt(total / compared) if compared else math.inf,
        compared=compared,
        tokens=tokens,
        likeliest=likeliest,
        behind=behind,
        worst_rank=rank,
    )


def permitted(reference: ReferenceCase) -> LogProbTolerance:
    """The tolerance: the largest and the root mean square error that a correct implementation may have."""
    # Rounding of a log-probability to fp32; in these checkpoints its size is rarely above 32.
    rounding = 32 * LOGPROB_UNIT
    return LogProbTolerance(
        largest=reference.safety * reference.tolerance.largest + rounding,
        rms=reference.safety * reference.tolerance.rms + rounding,
    )


def compare_case(
    case: CaseRun, reference: ReferenceCase
) -> tuple[GeneratedCase, tuple[FaultResult | UnmeasuredFault, ...]]:
    """The errors of one case and its choice of tokens, and the effect of each injected fault."""
    tolerance = permitted(reference)
    errors = _errors(distance(case.rounds, reference.rounds), tolerance, case.sampling)
    generated = GeneratedCase(
        **vars(errors),
        name=case.name,
        dtype=case.dtype,
        permitted=tolerance,
        cached=sum(request.cached for requests in case.rounds for request in requests),
        expects_cached=case.expects_cached,
        replays=case.replays,
        expects_replays=case.expects_replays,
    )
    faults = tuple(
        _fault(case, fault, truth.rounds, tolerance)
        for fault, truth in zip(case.faults, reference.faults, strict=True)
    )
    return generated, faults


def _fault(
    case: CaseRun, fault: FaultRun, truth: ReferenceRounds, tolerance: LogProbTolerance
) -> FaultResult | UnmeasuredFault:
    if fault.state != "generated":
        return UnmeasuredFault(case=case.name, family=fault.family, fault=fault.fault, state=fault.state)
    errors = _errors(distance(fault.rounds, truth), tolerance, case.sampling)
    return FaultResult(
        **vars(errors),
        case=case.name,
        family=fault.family,
        fault=fault.fault,
        hit=fault.hit,
        named=fault.named,
        only_in_graphs=fault.only_in_graphs,
    )


def _errors(found: Distance, tolerance: LogProbTolerance, sampling: Mapping[str, float]) -> LogProbErrors:
    return LogProbErrors(
        largest=min(found.largest, LARGEST_STORED),
        rms=min(found.rms, LARGEST_STORED),
        compared=found.compared,
        tokens=found.tokens,
        likeliest=found.likeliest,
        budget=min(found.budget(tolerance.largest, tolerance.rms), LARGEST_STORED),
        choice=_choice(found, tolerance.largest, sampling),
    )


def _choice(found: Distance, largest: float, sampling: Mapping[str, float]) -> str:
    """Why a token was chosen wrongly, or "". Two log-probabilities may each be off by `largest`."""
    if sampling:
        if found.worst_rank >= sampling["top_k"]:
            return f"a token of rank {found.worst_rank + 1} was sampled with top_k = {sampling['top_k']:g}"
        return ""
    if found.behind > 2 * largest:
        return (
            f"a token was chosen whose log-probability is {found.behind:.3g} below the most likely one "
            f"(tolerance {2 * largest:.3g})"
        )
    return ""
