"""In-cell program: evaluates the battery with verl's losses on a device and writes the results.

    python -m harness.numerics.loss.loss_program --cases cases.npz --out results.npz --device npu:0

The results file contains a value and a gradient for each case and the facts: device, versions, the file of
verl's losses with its digest, seconds. With `--faults` the self-test cases are evaluated again with each
fault injected. While the program runs, a `.progress` file next to the results contains the name of the
current case, so that a hang or a crash can be attributed to it. The exit code is 0 if the battery was
evaluated, even if results are wrong.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.cell_program.torch_device import device_facts
from harness.errors import HarnessError
from harness.numerics.loss.candidate import evaluate, save_results
from harness.numerics.loss.cases.loss_case import LossCase, load_cases
from harness.numerics.loss.loss_faults import evaluate_faulty
from harness.numerics.loss.loss_measurements import LossProgramFacts
from harness.numerics.loss.trainer_functions import source_folder
from harness.numerics.loss.verl_adapters import VerlCandidate
from harness.numerics.loss.verl_losses_source import installed_losses

AUTO = "auto"


def progress_file(out: Path) -> Path:
    """The file that contains the name of the case that is being evaluated."""
    return out.with_name(out.name + ".progress")


def evaluate_battery(
    cases: Sequence[LossCase], out: Path, *, device: str, verl_version: str, faults: bool
) -> LossProgramFacts:
    """Evaluate `cases`, write `out`, and return the facts. faults: whether to run the self-test, too."""
    started = time.monotonic()
    candidate = VerlCandidate(device)
    loaded = time.monotonic()
    progress = progress_file(out)
    results = evaluate(candidate, cases, before=lambda case: _note(progress, case.name))
    evaluated = time.monotonic()
    if faults:
        _note(progress, "self-test")
        results.update(evaluate_faulty(candidate, cases))
    facts = LossProgramFacts(
        device=device_facts(device),
        python=platform.python_version(),
        numpy=np.__version__,
        verl=candidate.version if verl_version == AUTO else verl_version,
        core_algos=candidate.source,
        capabilities=tuple(sorted(candidate.capabilities)),
        source=installed_losses(source_folder()),
        seconds={
            "import": round(loaded - started, 3),
            "battery": round(evaluated - loaded, 3),
            "faults": round(time.monotonic() - evaluated, 3),
        },
    )
    save_results(out, results, facts)
    progress.unlink(missing_ok=True)
    return facts


def _note(progress: Path, name: str) -> None:
    progress.write_text(name, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.numerics.loss.loss_program", description="evaluate a loss battery"
    )
    parser.add_argument("--cases", type=Path, required=True, help="file with the test battery")
    parser.add_argument("--out", type=Path, required=True, help="where results are written")
    parser.add_argument("--device", default="npu:0", help="npu:0, cpu, cuda:0")
    parser.add_argument(
        "--verl-version", default=AUTO, help="version to record; auto is the installed version"
    )
    parser.add_argument(
        "--faults", action="store_true", help="also evaluate the self-test cases with each fault injected"
    )
    arguments = parser.parse_args(argv)
    try:
        cases = load_cases(arguments.cases)
        facts = evaluate_battery(
            cases,
            arguments.out,
            device=arguments.device,
            verl_version=arguments.verl_version,
            faults=arguments.faults,
        )
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{len(cases)} cases with verl {facts.verl} on {arguments.device}: {dict(facts.seconds)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
