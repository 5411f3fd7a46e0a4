"""Faults that the check `update` injects into verl's path, and the quantity in which each must be found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

Replace = Callable[[Any, str, Any], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class UpdateFault:
    """A defect in the case `case`: `attribute` of the first module that has it is replaced.

    place: "worker" (the modules of the worker), "clip" (torch's gradient clipping) or the name of a module.
        found_in: the quantity in which it must be found first.
    """

    id: str
    what: str
    case: str
    place: str
    attribute: str
    found_in: str
    change: Callable[[Any, Callable[..., Any]], Callable[..., Any]]

    def injected(
        self, torch: Any, modules: Sequence[ModuleType], replace: Replace
    ) -> AbstractContextManager[None]:
        """A context with the fault; `replace` replaces an attribute."""
        owner: Any
        if self.place == "clip":
            owner = torch.nn.utils
        elif self.place == "worker":
            owner = next(module for module in modules if hasattr(module, self.attribute))
        else:
            owner = import_module(self.place)
        return replace(owner, self.attribute, self.change(torch, getattr(owner, self.attribute)))


def _negated(_torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: -function(*args, **kwargs)


def _both_negated(_torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: tuple(-part for part in function(*args, **kwargs))


def _half(_torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs) / 2


def _shifted_labels(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def shifted(logits: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        return function(logits, torch.roll(labels, 1, dims=-1), *args, **kwargs)

    return shifted


def _next_token(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def shifted(*args: Any, **kwargs: Any) -> Any:
        return torch.roll(function(*args, **kwargs), 1, dims=1)

    return shifted


def _other_rows(_torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def rolled(*args: Any, **kwargs: Any) -> Any:
        by_argument, named = function(*args, **kwargs)
        return tuple([*of_ranks[1:], *of_ranks[:1]] for of_ranks in by_argument), named

    return rolled


def _not_clipped(_torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda parameters, **kwargs: function(parameters, **{**kwargs, "max_norm": 1e30})


UPDATE_FAULTS = (
    UpdateFault(
        id="advantage-sign",
        what="advantages have the wrong sign",
        case="grpo",
        place="verl.trainer.ppo.core_algos",
        attribute="compute_grpo_outcome_advantage",
        found_in="advantages",
        change=_both_negated,
    ),
    UpdateFault(
        id="response-shift",
        what="log-probabilities belong to the previous token",
        case="gspo",
        place="worker",
        attribute="logprobs_from_logits",
        found_in="log_prob",
        change=_shifted_labels,
    ),
    UpdateFault(
        id="entropy-sign",
        what="the terms besides the policy loss have the wrong sign",
        case="grpo",
        place="worker",
        attribute="agg_loss",
        found_in="entropy_loss",
        change=_negated,
    ),
    UpdateFault(
        id="kl-halved",
        what="the KL term is halved",
        case="grpo",
        place="worker",
        attribute="kl_penalty",
        found_in="kl_loss",
        change=_half,
    ),
    UpdateFault(
        id="not-clipped",
        what="the gradient is not clipped",
        case="gspo",
        place="clip",
        attribute="clip_grad_norm_",
        found_in="gradient",
        change=_not_clipped,
    ),
    UpdateFault(
        id="exchange-shift",
        what="ranks that divide tokens exchange those of the next place",
        case="ulysses",
        place="verl.utils.ulysses",
        attribute="all_to_all_tensor",
        found_in="attention query",
        change=_next_token,
    ),
    UpdateFault(
        id="other-rows",
        what="each rank gets the rows of the next one",
        case="dapo",
        place="verl.single_controller.base.decorator",
        attribute="dispatch_nd_compute",
        found_in="rows for ranks",
        change=_other_rows,
    ),
)
