"""Mutants of verl in the checks of the profile `full` that train with verl's own trainer, on the CPU.

    python -m benchmarks.numerics.trained_mutants 0.9.1=/path/of/a/cell/bin/python verdicts.json --number 5

The file has the verdicts of `benchmarks.numerics.mutation --json`. verl is trained with GRPO without a
mutant, and then with each of the survivors, of which the profile `default` sees nothing. The other checks of
numbers in this profile compare verl with the same verl, so that a mutant changes both sides.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.figures import ROOT
from benchmarks.numerics.mutation import verl_folder
from benchmarks.numerics.mutation_sites import Mutant, mutated
from benchmarks.numerics.update_path import OTHER_FEATURES
from harness.check import Completed, TaskContext
from harness.convergence.trainer.trainer_check import judge, run
from harness.outcome import Judgement, Status

ALGORITHM = "grpo"
LONGEST_TAIL = 20_000


def overlay(original: Path, folder: Path, mutant: Mutant) -> None:
    """A copy of the package `verl` made of links, with one file that is mutated."""
    for file in original.rglob("*"):
        target = folder / "verl" / file.relative_to(original)
        if file.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif file.suffix != ".pyc":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file)
    changed = folder / "verl" / mutant.file
    source = changed.read_text("utf-8")
    changed.unlink()
    changed.write_text(ast.unparse(mutated(source, mutant, OTHER_FEATURES)), "utf-8")


@dataclass(frozen=True, kw_only=True)
class MutatedCell:
    """What the check reads of its task: an environment, the folder of the mutated package, the release."""

    python: str
    package: Path
    release: str
    workdir: Path

    @property
    def params(self) -> Mapping[str, object]:
        """The parameters of the check."""
        return {"algorithm": ALGORITHM}

    @property
    def facets(self) -> Mapping[str, Mapping[str, str]]:
        """The facets that the check reads."""
        return {"device": {"kind": "cpu"}, "versions": {"verl": self.release}}

    def in_cell(self, module: str, *args: str, timeout: float) -> Completed:
        """Run a module in the environment."""
        path = os.pathsep.join((str(Path(self.python).parent), os.environ["PATH"]))
        # verl runs on the CPU, so torch must not load the extension of a device.
        environment = {**os.environ, "PATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        environment["PYTHONPATH"] = os.pathsep.join((str(self.package), str(ROOT)))
        argv = (self.python, "-m", module, *args)
        started = time.monotonic()
        ended = subprocess.run(
            argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout
        )
        return Completed(
            argv=argv,
            returncode=ended.returncode,
            tail=(ended.stdout + ended.stderr)[-LONGEST_TAIL:],
            seconds=time.monotonic() - started,
        )


def trained(python: str, release: str, mutant: Mutant | None) -> Judgement:
    """What the check says of a training with the mutant."""
    with tempfile.TemporaryDirectory() as folder:
        package, workdir = Path(folder, "package"), Path(folder, "work")
        workdir.mkdir()
        if mutant:
            overlay(verl_folder(python), package, mutant)
        cell = MutatedCell(python=python, package=package, release=release, workdir=workdir)
        return judge(run(cast(TaskContext, cell)).measurements, cell.params)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.numerics.trained_mutants", description=__doc__
    )
    parser.add_argument("environment", metavar="RELEASE=PYTHON")
    parser.add_argument("verdicts", type=Path)
    parser.add_argument("--number", type=int, default=5, help="how many survivors are trained")
    parser.add_argument("--show", action="store_true", help="name the mutants, and give reasons")
    arguments = parser.parse_args(argv)
    release, _, python = arguments.environment.partition("=")
    stored: list[Mapping[str, Any]] = json.loads(arguments.verdicts.read_text("utf-8"))[release]
    survivors = [Mutant(**one["mutant"]) for one in stored if one["status"] == "survived"]
    chosen = survivors[: arguments.number]
    red = 0
    for mutant in (None, *chosen):
        found = trained(python, release, mutant)
        is_red = found.status is Status.FAIL
        red += is_red and mutant is not None
        name = (mutant.key if mutant else "without a mutant") if arguments.show or not mutant else ""
        why = found.reasons[:1] if arguments.show or not mutant else ()
        print(f"{found.status.value}: {name} {' '.join(why)}", flush=True)
        if mutant is None and is_red:
            return 1
    print(f"verl {release}: {red} of {len(chosen)} trained of {len(survivors)} survivors are red")
    return 0


if __name__ == "__main__":
    sys.exit(main())
