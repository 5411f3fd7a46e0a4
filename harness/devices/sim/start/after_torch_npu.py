"""Installs the simulated device in a Python process when torch_npu has been imported.

For processes that have no launcher: those that a program on the device starts (`child_processes`), and all
processes on a stand-in host (`runtime_build/stand_in_cann.py`).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterTorchNpu:
    """An import hook for torch_npu, which removes itself when it is used."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch_npu, whose loader also sets up the device; None for other modules."""
        if name != "torch_npu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_set_up(module: ModuleType) -> None:
                execute(module)
                # Imported here because it needs torch_npu.
                from harness.devices.sim.start import sim_plugin  # noqa: F401

            spec.loader.exec_module = execute_and_set_up  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Set up the simulated device as soon as this process has imported torch_npu."""
    if not any(isinstance(finder, _AfterTorchNpu) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorchNpu())
