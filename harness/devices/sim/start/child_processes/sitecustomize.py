"""Python processes load this module when they start, if its folder is on PYTHONPATH.

The launcher of the simulated device puts it there for the processes that its program starts: by spawn, by a
fork server, by `python -c` or by torchrun. They get the device when they import torch_npu.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def _load_next() -> None:
    """Load the sitecustomize that this one hides, if there is one."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _install() -> None:
    root = str(_FOLDER.parents[4])
    if importlib.util.find_spec("harness") is None:
        sys.path.append(root)
    # Imported here because harness is found only now.
    from harness.devices.sim.start import after_torch_npu

    after_torch_npu.install()


_install()
_load_next()
