"""An external module that replaces vLLM in verl's one-step-off-policy recipe by `rollout_server`.

The recipe sends weights one by one to the model inside an engine called `vllm`, and supports no other name.
So this module registers our rollout under the name of vLLM; only runs of the recipe load it. In-cell module;
`VERL_USE_EXTERNAL_MODULES` names it after `verl_plugin`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from harness.convergence.trainer.verl_extensions.verl_plugin import Action, act

ENGINE = "vllm"
# verl's patch of the weight loaders of vLLM's MoE models. It cannot be imported without vLLM.
LOADER_PATCH = "verl.utils.vllm.patch"


def register_rollout(module: Any) -> None:
    """Add our rollout to the registry in `verl.workers.rollout.base`."""
    registry = module._ROLLOUT_REGISTRY  # noqa: SLF001 - verl has no function for it
    registry[(ENGINE, "async")] = "harness.convergence.trainer.verl_extensions.rollout_server.StreamedAdapter"


def register_replica(module: Any) -> None:
    """Add our replica to the registry in `verl.workers.rollout.replica`."""

    def load() -> Any:
        from harness.convergence.trainer.verl_extensions.rollout_server import Replica

        return Replica

    module.RolloutReplicaRegistry.register(ENGINE, load)


def empty_loader_patch() -> ModuleType:
    """A replacement for `LOADER_PATCH` that does nothing: our rollout loads weights with transformers."""
    module = ModuleType(LOADER_PATCH)
    module.patch_vllm_moe_model_weight_loader = lambda _model: None  # type: ignore[attr-defined]
    return module


ACTIONS: dict[str, Action] = {
    "verl.workers.rollout.base": register_rollout,
    "verl.workers.rollout.replica": register_replica,
}

act(ACTIONS)
sys.modules.setdefault(LOADER_PATCH, empty_loader_patch())
