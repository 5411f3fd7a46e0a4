"""Processes that a program on the simulated device starts get the device when they import torch_npu."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.package import data_folder

FOLDER = data_folder("devices/sim/start/child_processes")


def child(code: str, *path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(map(str, (FOLDER, *path)))},
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_import_of_torch_npu_is_hooked_in_a_child(tmp_path: Path) -> None:
    code = "import sys; print([type(finder).__name__ for finder in sys.meta_path].count('_AfterTorchNpu'))"
    assert child(code) == "1"


def test_the_device_is_installed_after_torch_npu_was_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text("loaded = True\n", "utf-8")
    code = """
import sys, types
plugin = types.ModuleType("harness.devices.sim.start.sim_plugin")
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != plugin.__name__: return None
        import importlib.util
        return importlib.util.spec_from_loader(name, self)
    def create_module(self, spec): return None
    def exec_module(self, module): print("installed", sys.modules["torch_npu"].loaded)
sys.meta_path.insert(0, Finder())
import torch_npu, torch_npu
"""
    assert child(code, tmp_path) == "installed True"


def test_the_sitecustomize_of_the_user_is_loaded_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')\n", "utf-8")
    assert child("import sitecustomize; print(sitecustomize.__file__)", tmp_path).split() == [
        "own",
        str(tmp_path / "sitecustomize.py"),
    ]
