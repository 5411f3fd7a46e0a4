"""The reference of a check, made as if one operation had no error bound.

python without_bound.py silu harness.numerics.twin.twin_program --role reference --out twin.npz
"""

from __future__ import annotations

import sys
from importlib import import_module

from harness.numerics.arithmetic import stochastic_arithmetic


def main(operation: str, program: str, *options: str) -> int:
    known = {name: bound for name, bound in stochastic_arithmetic.FUNCTIONS.items() if name != operation}
    stochastic_arithmetic.FUNCTIONS = known
    return int(import_module(program).main(options))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
