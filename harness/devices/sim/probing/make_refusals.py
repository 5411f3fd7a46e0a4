"""Writes the table of refusals of the torch_npu in an environment.

    python -m harness.devices.sim.probing.make_refusals PYTHON [OUT.json]

PYTHON: the interpreter of an environment with torch and torch_npu. OUT: default is the file of this torch_npu
among the tables of `harness.devices.sim.refusals`. It takes about a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.devices.sim.runtime_build.runtime_library import build_dry_runtime
from harness.package import IMPORT_ROOT, data_folder

_PLACES = (
    "import importlib.metadata as m, sysconfig; print(sysconfig.get_path('purelib'), m.version('torch-npu'))"
)
_PROBE = ("-m", "harness.devices.sim.probing.refusal_probe")


def main(arguments: Sequence[str]) -> int:
    """Build the runtime whose operators do nothing, and run the probe on it."""
    python = arguments[0]
    answer = subprocess.run([python, "-c", _PLACES], capture_output=True, text=True, check=True)
    site_packages, version = answer.stdout.split()
    tables = data_folder("devices/sim/refusals/tables")
    out = Path(arguments[1]) if len(arguments) > 1 else tables / f"{version}.json"
    with tempfile.TemporaryDirectory() as folder:
        runtime = Path(folder) / "runtime"
        runtime.mkdir()
        build_dry_runtime(Path(site_packages), runtime)
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(runtime),
            "PYTHONPATH": str(IMPORT_ROOT),
            "OMP_NUM_THREADS": "1",
            "TASK_QUEUE_ENABLE": "0",
        }
        # Some operators of torch_npu write files into the working directory.
        command = [python, *_PROBE, str(out.resolve())]
        return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
