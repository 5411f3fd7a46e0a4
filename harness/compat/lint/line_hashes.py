"""The hash of each line by which GitHub code scanning recognises a finding after lines were added above it.

The algorithm is that of github/codeql-action (src/fingerprints.ts), so that a fingerprint given here is the
one that the action would compute.
"""

from __future__ import annotations

import re
from collections import Counter

BLOCK = 100
FACTOR = 37
END = 0xFFFF
_LINE_END = re.compile(r"\r\n|\r|\n")


def line_hashes(text: str) -> list[str]:
    """For each line: a hash of the next 100 characters without blanks, and how often it was there before."""
    codes: list[int] = []
    starts = []
    for line in _LINE_END.split(text):
        starts.append(len(codes))
        units = line.replace(" ", "").replace("\t", "").encode("utf-16-le", "surrogatepass")
        codes += [*memoryview(units).cast("H"), ord("\n")]
    codes[-1] = END
    seen: Counter[str] = Counter()
    hashes = []
    for start in starts:
        block = codes[start : start + BLOCK]
        value = 0
        for code in block + [0] * (BLOCK - len(block)):
            value = (value * FACTOR + code) & 0xFFFF_FFFF_FFFF_FFFF
        name = f"{value:x}"
        seen[name] += 1
        hashes.append(f"{name}:{seen[name]}")
    return hashes
