"""verl's functions as its trainer calls them: from the module that calls them, or from verl's registry.

A module of verl imports most functions by name. If a patch replaces `core_algos.agg_loss` when verl starts,
the trainer still calls the original one, and a battery that reads `core_algos` would test a function that
does not train.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LEGACY_WORKER = ("verl.workers.actor.dp_actor",)
ENGINE_WORKER = ("verl.workers.utils.losses", "verl.workers.engine.fsdp.transformer_impl")
CORE_ALGOS = "verl.trainer.ppo.core_algos"
FUNCTIONAL = "verl.utils.torch_functional"
STEP_ADVANTAGES = (
    ("verl.trainer.ppo.v1.utils", "compute_advantage_for_multi_trajectories"),
    ("verl.trainer.ppo.ray_trainer", "compute_advantage"),
)
"""Functions that compute the advantages of a training step. A release uses the first of them that it has."""


def source_folder() -> Path:
    """The folder that contains the installed package `verl`."""
    return Path(str(import_module("verl").__file__)).parent.parent


class TrainerFunctions:
    """The functions that the default worker and trainer of the installed verl call.

    `modules` are those of the worker. An ImportError of an existing module is not caught: then verl cannot
    train.
    """

    def __init__(self) -> None:
        names = LEGACY_WORKER if has_module(LEGACY_WORKER[0]) else ENGINE_WORKER
        self.modules = tuple(import_module(name) for name in names if has_module(name))
        self._defaults = (import_module(CORE_ALGOS), import_module(FUNCTIONAL))

    def taken(self, name: str) -> Any:
        """The function that the worker calls by this name. AttributeError if verl does not have it."""
        for module in (*self.modules, *self._defaults):
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"verl has no function {name}")

    def policy_loss(self, mode: str) -> Any:
        """The policy loss of `loss_mode`. ValueError of verl's registry if it does not have the mode.

        Releases up to 0.5 call `compute_policy_loss` for "vanilla"; their worker imports it.
        """
        if mode == "vanilla" and any(hasattr(module, "compute_policy_loss") for module in self.modules):
            return self.taken("compute_policy_loss")
        return self.taken("get_policy_loss_fn")(mode)

    def offers_policy_loss(self, mode: str) -> bool:
        """Whether `policy_loss` finds the mode."""
        try:
            self.policy_loss(mode)
        except (AttributeError, ValueError):
            return False
        return True

    @property
    def passes_rollout_weights(self) -> bool:
        """Whether the worker passes `rollout_is_weights` to every policy loss."""
        return self._mentions("rollout_is_weights=")

    @property
    def converts_mask_to_bool(self) -> bool:
        """Whether the worker converts the response mask to bool before it calls a loss."""
        return self._mentions('["response_mask"].to(bool)')

    def _mentions(self, text: str) -> bool:
        return any(text in inspect.getsource(module) for module in self.modules)


def advantage_step() -> Any:
    """The function that computes the advantages of a training step, or None if verl has none of the known
    ones."""
    for module, name in STEP_ADVANTAGES:
        if has_module(module):
            return getattr(import_module(module), name)
    return None


def has_module(name: str) -> bool:
    """Whether a module is installed; it is not imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
