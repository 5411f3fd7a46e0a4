"""Records which lines of verl's update path trainings execute, for `benchmarks.numerics.mutation`.

    python -m benchmarks.numerics.trainer_lines 0.9.1=/path/of/a/cell/bin/python [...]

Each argument is a verl release and the Python of an environment that has it. Both training tasks of
`harness.convergence.trainer` run there for two steps on the CPU, and the lines are stored in
`trainer_lines.json`. Lines of other releases are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import ROOT
from benchmarks.numerics.mutation import TRAINED
from benchmarks.numerics.update_path import PATH

ALGORITHMS = ("grpo", "gspo")
STEPS = 2


def record(python: str, algorithm: str, folder: Path) -> None:
    """Train with the interpreter of an environment; each process writes its lines to a file in the folder."""
    task, out = folder.with_name(f"{algorithm}-task"), folder.with_name(f"{algorithm}.json")
    task.mkdir()
    path = os.pathsep.join((str(Path(python).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "NPU_MATRIX_TRACE": str(folder), "PYTHONPATH": str(ROOT)}
    # verl runs on the CPU, so torch must not load the extension of a device.
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    command = [python, "-m", "harness.convergence.trainer.trainer_program", f"--algorithm={algorithm}"]
    command += ["--device=cpu", f"--folder={task}", f"--out={out}", f"--steps={STEPS}"]
    command += ["--plugin", "benchmarks.numerics.update_tracer"]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    run = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    if not run.get("complete"):
        raise SystemExit(f"the training {algorithm} did not end: {(ended.stdout + ended.stderr)[-2000:]}")


def lines_in(folders: Sequence[Path]) -> dict[str, list[int]]:
    """The recorded lines of the files on the path of an update, by file."""
    found: dict[str, set[int]] = {}
    for trace in (file for folder in folders for file in folder.glob("*.txt")):
        for line in trace.read_text("utf-8").splitlines():
            file, _, number = line.rpartition(" ")
            if file in PATH:
                found.setdefault(file, set()).add(int(number))
    return {file: sorted(lines) for file, lines in sorted(found.items())}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.numerics.trainer_lines", description=__doc__)
    parser.add_argument("environments", nargs="+", metavar="RELEASE=PYTHON")
    for environment in parser.parse_args(argv).environments:
        release, _, python = environment.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            traces = [Path(folder, algorithm) for algorithm in ALGORITHMS]
            for trace in traces:
                trace.mkdir()
                record(python, trace.name, trace)
            stored = {**json.loads(TRAINED.read_text("utf-8")), release: lines_in(traces)}
        text = ",\n ".join(
            f'"{one}": {{\n  '
            + ",\n  ".join(f'"{file}": {json.dumps(lines)}' for file, lines in stored[one].items())
            + "\n }"
            for one in sorted(stored)
        )
        TRAINED.write_text(f"{{\n {text}\n}}\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
