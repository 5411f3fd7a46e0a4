"""In-cell program: one actor update through verl's classes, recorded tensor by tensor.

    python -m harness.numerics.actor.actor_program --role reference --out reference.npz
    python -m harness.numerics.actor.actor_program --role device --reference reference.npz --out device.json

The reference runs on the CPU in float64 and cannot import torch_npu. It runs once exactly and several times
with every operator perturbed by up to the error that the contract allows; the distances from the exact run
give the tolerance of each tensor. The device runs the update twice, once more with operators traced, once
with each fault injected, and with packed rows and fused attention. In bf16 (autocast by verl) every matmul of
a linear layer is recomputed, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.numerics.actor import actor_device, actor_reference
from harness.numerics.actor.actor_case import DEFAULT_SEED
from harness.numerics.actor.actor_update import CONTRACTS, ProgramFacts, run_role


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.numerics.actor.actor_program", description="one actor update"
    )
    parser.add_argument("--role", choices=("reference", "device"), required=True)
    parser.add_argument("--device", default="npu:0", help="npu:0, cpu, cuda:0")
    parser.add_argument("--reference", type=Path, help="what the reference wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--compute", choices=tuple(CONTRACTS), default="float32", help="by verl's autocast")
    parser.add_argument("--path", default="", help="verl's class that trains; its default one without")
    arguments = parser.parse_args(argv)
    given = {"compute": arguments.compute, "path": arguments.path}

    def work() -> ProgramFacts:
        if arguments.role == "reference":
            return actor_reference.compute_reference(arguments.out, arguments.seed, **given)
        return actor_device.measure_on_device(
            arguments.device, arguments.reference, arguments.out, arguments.seed, **given
        )

    return run_role(f"{arguments.role} of an actor update", work)


if __name__ == "__main__":
    sys.exit(main())
