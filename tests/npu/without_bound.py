"""Runs the reference role of a program without the error bound of one operation.

python without_bound.py silu harness.numerics.twin.twin_program --role reference --out twin.npz
"""

from __future__ import annotations

import sys
from importlib import import_module

from harness.numerics.arithmetic import stochastic_arithmetic


def main(operation: str, program: str, *options: str) -> int:
    bounds = {name: bound for name, bound in stochastic_arithmetic.FUNCTIONS.items() if name != operation}
    stochastic_arithmetic.FUNCTIONS = bounds
    return int(import_module(program).main(options))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
