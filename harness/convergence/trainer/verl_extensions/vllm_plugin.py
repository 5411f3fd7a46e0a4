"""An external module for verl that shortens the start of vLLM on machines with few cores. In-cell module."""

from __future__ import annotations

from typing import Any

from harness.convergence.trainer.verl_extensions.verl_plugin import Action, act


def inspect_here(module: Any) -> None:
    """Let vLLM inspect a model's class in this process (`vllm.model_executor.models.registry`).

    vLLM would start a subprocess, so that CUDA is not initialised, and the subprocess imports everything
    again.
    """
    if hasattr(module, "_run_in_subprocess"):
        module._run_in_subprocess = lambda function: function()  # noqa: SLF001 - vLLM offers no other way


ACTIONS: dict[str, Action] = {"vllm.model_executor.models.registry": inspect_here}

act(ACTIONS)
