"""What one-step-off-policy training asks of vLLM, answered by our rollout: an external module for verl.

The trainer hands weights over one by one, to the model inside a vLLM engine, and knows engines by their names
only. So our rollout is registered under vLLM's name, in these runs alone. In-cell module, loaded with
`VERL_USE_EXTERNAL_MODULES` beside `plugin`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from harness.convergence.trainer.verl_extensions.verl_plugin import Action, act

ENGINE = "vllm"
# Mends the weight loaders of vLLM's mixture-of-experts models, and cannot be imported without vLLM.
LOADER_PATCH = "verl.utils.vllm.patch"


def register_rollout(module: Any) -> None:
    """Into `verl.workers.rollout.base`."""
    registry = module._ROLLOUT_REGISTRY  # noqa: SLF001 - verl has no function for it
    registry[(ENGINE, "async")] = "harness.convergence.trainer.verl_extensions.rollout_server.StreamedAdapter"


def register_replica(module: Any) -> None:
    """Into `verl.workers.rollout.replica`."""

    def load() -> Any:
        from harness.convergence.trainer.verl_extensions.rollout_server import Replica

        return Replica

    module.RolloutReplicaRegistry.register(ENGINE, load)


def no_loader_to_mend() -> ModuleType:
    """In the place of `LOADER_PATCH`: our rollout loads weights as transformers does."""
    module = ModuleType(LOADER_PATCH)
    module.patch_vllm_moe_model_weight_loader = lambda _model: None  # type: ignore[attr-defined]
    return module


ACTIONS: dict[str, Action] = {
    "verl.workers.rollout.base": register_rollout,
    "verl.workers.rollout.replica": register_replica,
}

act(ACTIONS)
sys.modules.setdefault(LOADER_PATCH, no_loader_to_mend())
