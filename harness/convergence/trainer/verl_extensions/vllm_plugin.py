"""What verl's processes do sooner with vLLM on two cores: an external module for verl, beside `plugin`.

In-cell module.
"""

from __future__ import annotations

from typing import Any

from harness.convergence.trainer.verl_extensions.verl_plugin import Action, act


def inspect_here(module: Any) -> None:
    """In `vllm.model_executor.models.registry`: look at a model's class in the process that asks.

    vLLM starts another one for it, so that CUDA is not initialised; that one imports everything again.
    """
    if hasattr(module, "_run_in_subprocess"):
        module._run_in_subprocess = lambda function: function()  # noqa: SLF001 - vLLM offers no other way


ACTIONS: dict[str, Action] = {"vllm.model_executor.models.registry": inspect_here}

act(ACTIONS)
