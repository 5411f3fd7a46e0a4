"""Faults of the self-test. Each breaks verl's loss in this process, on any device, and must be detected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.numerics.loss.candidate import CandidateResult, evaluate_one
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.verl_adapters import VerlCandidate

SELF_TEST_CASES = (
    "policy/grpo-near/token-mean",
    "policy/gspo-near/seq-mean-token-mean",
    "policy/grpo-accumulated/token-mean",
    "policy/gspo-accumulated/seq-mean-token-mean",
)
"""Both losses, on an ordinary batch and at production scale, where fixed tolerances would detect nothing."""

SEPARATOR = "!"


@dataclass(frozen=True, kw_only=True)
class LossFault:
    """A defect: an attribute of torch or of verl's loss module, and its replacement."""

    id: str
    what: str
    attribute: str
    of_torch: bool
    replace: Callable[[Any, Any], Callable[..., Any]]


def _scaled_gradient(torch: Any, factor: float) -> Callable[[Any], Any]:
    class Scaled(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_context: Any, tensor: Any) -> Any:
            return tensor.clone()

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            return gradient * factor

    return Scaled.apply  # type: ignore[no-any-return]


def _exp_with_gradient(factor: float) -> Callable[[Any, Any], Callable[..., Any]]:
    def replace(torch: Any, exp: Any) -> Callable[..., Any]:
        wrong = _scaled_gradient(torch, factor)
        return lambda tensor: wrong(exp(tensor))

    return replace


def _exp_in_bfloat16(torch: Any, exp: Any) -> Callable[..., Any]:
    return lambda tensor: exp(tensor).to(torch.bfloat16).to(tensor.dtype)


def _shifted_mask(torch: Any, aggregate: Any) -> Callable[..., Any]:
    def shifted(loss_mat: Any, loss_mask: Any, *args: Any, **kwargs: Any) -> Any:
        return aggregate(loss_mat, torch.roll(loss_mask, 1, dims=-1), *args, **kwargs)

    return shifted


LOSS_FAULTS = (
    LossFault(
        id="gradient-sign",
        what="the gradient of exp has the wrong sign",
        attribute="exp",
        of_torch=True,
        replace=_exp_with_gradient(-1.0),
    ),
    LossFault(
        id="gradient-doubled",
        what="the gradient of exp is doubled",
        attribute="exp",
        of_torch=True,
        replace=_exp_with_gradient(2.0),
    ),
    LossFault(
        id="low-precision",
        what="exp is computed in bf16",
        attribute="exp",
        of_torch=True,
        replace=_exp_in_bfloat16,
    ),
    LossFault(
        id="mask-shifted",
        what="the response mask is off by one token",
        attribute="agg_loss",
        of_torch=False,
        replace=_shifted_mask,
    ),
)


@contextmanager
def inject_fault(fault: LossFault, candidate: VerlCandidate) -> Iterator[None]:
    """Inject the fault into `candidate` for the duration of the block."""
    owner = candidate.torch if fault.of_torch else candidate.core_algos
    original = getattr(owner, fault.attribute)
    setattr(owner, fault.attribute, fault.replace(candidate.torch, original))
    try:
        yield
    finally:
        setattr(owner, fault.attribute, original)


def evaluate_faulty(candidate: VerlCandidate, cases: Sequence[LossCase]) -> dict[str, CandidateResult]:
    """Results of the self-test cases with each fault, named `fault!case`."""
    self_test_cases = [case for case in cases if case.name in SELF_TEST_CASES]
    results = {}
    for fault in LOSS_FAULTS:
        with inject_fault(fault, candidate):
            for case in self_test_cases:
                results[f"{fault.id}{SEPARATOR}{case.name}"] = evaluate_one(candidate, case)
    return results
