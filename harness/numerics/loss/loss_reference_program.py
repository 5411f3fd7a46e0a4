r"""The reference, computed in a process that cannot import torch, torch_npu or verl.

    python -m harness.numerics.loss.loss_reference_program \
        --cases cases.npz --out reference.npz --differences gspo-ignores-loss-agg-mode

It computes the standard objective of every case. If the release computes another objective, that is computed,
too, and named `case::actual`.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from harness.errors import HarnessError, InfrastructureError
from harness.numerics.loss.cases.loss_case import LossCase, load_cases
from harness.numerics.loss.expected_result import ExpectedResult, save_expected
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.loss_measurements import LossReferenceFacts
from harness.numerics.loss.release_objectives import (
    ObjectiveDifference,
    named_differences,
    released_case,
)

BLOCKED = ("torch", "torch_npu", "verl", "tensordict", "transformers")
ACTUAL = "::actual"
"""Appended to the name of a case for the objective that a release really computes."""


def block_frameworks() -> None:
    """Make the blocked packages impossible to import; InfrastructureError if one is already loaded."""
    loaded = [name for name in BLOCKED if sys.modules.get(name) is not None]
    if loaded:
        raise InfrastructureError(
            f"{', '.join(loaded)} is loaded in the reference process",
            why="the reference must share no code with what it judges",
            fix=f"start the reference as its own program: python -m {__spec__.name}",
        )
    for name in BLOCKED:
        sys.modules[name] = None  # type: ignore[assignment]


def references(
    cases: Iterable[LossCase], differences: Sequence[ObjectiveDifference]
) -> dict[str, ExpectedResult]:
    """Intervals of every case by name, and those of the objective that the release computes if it differs."""
    intervals = {}
    for case in cases:
        intervals[case.name] = reference(case)
        released, concerned = released_case(case, differences)
        if concerned:
            intervals[case.name + ACTUAL] = reference(released)
    return intervals


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.numerics.loss.loss_reference_program", description="float64 reference"
    )
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--differences", default="", help="those of the objective that is computed as well")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    try:
        block_frameworks()
        cases = load_cases(arguments.cases)
        intervals = references(cases, named_differences(arguments.differences.split(",")))
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    facts = LossReferenceFacts(
        python=platform.python_version(),
        numpy=np.__version__,
        frameworks_loaded=tuple(name for name in BLOCKED if sys.modules.get(name) is not None),
        seconds=round(time.monotonic() - started, 3),
    )
    save_expected(arguments.out, intervals, facts)
    print(f"{len(intervals)} references for {len(cases)} cases in {facts.seconds} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
