"""Makes the records in `updates/`, which are runs of the real verl on a CPU, smaller: only some cases, in fp32 and
compressed.

In a cell's environment:
    python -m harness.numerics.update.update_program --device cpu --records records.npz --out run.json
then here:
    python tests/unit/numerics/update_fixture.py records.npz tests/unit/numerics/updates/0.9.1.npz grpo dapo
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.numerics.update.update_record import Quantity, UpdateRecord, load_records, save_records


def narrowed(quantity: Quantity) -> Quantity:
    is_integer = quantity.values.dtype.kind == "i"
    return replace(quantity, values=quantity.values.astype(np.int16 if is_integer else np.float32))


UPDATES = Path(__file__).parent / "updates"


@functools.cache
def recorded(case: str) -> dict[str, UpdateRecord]:
    """Release -> its stored record of a case, of those that have it."""
    return {
        file.stem: one
        for file in sorted(UPDATES.glob("*.npz"))
        for one in load_records(file)
        if one.case == case
    }


def write(records: tuple[UpdateRecord, ...], target: Path) -> None:
    small = [replace(one, quantities=tuple(map(narrowed, one.quantities))) for one in records]
    save_records(target, small)
    with np.load(target) as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez_compressed(target, **arrays)


if __name__ == "__main__":
    source, target, *cases = sys.argv[1:]
    found = [one for one in load_records(Path(source)) if one.case in cases and not one.fault]
    write(tuple(found), Path(target))
