"""What one update recorded: quantities in the order of computation, and where verl computes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.loss.cases.loss_case import read_npz, write_npz

FORMAT = "npu-matrix-update-record/1"
BEFORE = -1
"""The number of the step or micro-batch of what is computed before the first one."""

HELPER = "helper"
"""The place of the first small function of verl that did not return what it is defined to return."""

RAISED = "raised"
"""The place at which an exception was raised."""

STEP = "step of the trainer"
"""The place of the trainer's method that ran last."""

BACKWARD = "backward"
"""The place at which the loss is differentiated."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One recorded array. step, micro: numbers from 0; `BEFORE` if it belongs to none."""

    name: str
    values: NDArray[Any]
    step: int = BEFORE
    micro: int = BEFORE


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """The quantities of one run of a case. places: quantity -> file, line and name of the function of verl
    that computes it. error: the exception that ended the run, or "".
    """

    case: str
    path: str
    fault: str = ""
    quantities: tuple[Quantity, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    def find(self, name: str, step: int = BEFORE, micro: int = BEFORE) -> NDArray[Any] | None:
        """The values of a quantity, None if it was not recorded; the first if it was recorded twice."""
        for quantity in self.quantities:
            if (quantity.name, quantity.step, quantity.micro) == (name, step, micro):
                return quantity.values
        return None

    def count(self, name: str) -> int:
        """How many times a quantity was recorded."""
        return sum(quantity.name == name for quantity in self.quantities)


def save_records(file: Path, records: Iterable[UpdateRecord]) -> None:
    """Write records to one npz file."""
    arrays: dict[str, NDArray[Any]] = {}
    entries = []
    for record in records:
        listed = []
        for quantity in record.quantities:
            key = str(len(arrays))
            arrays[key] = quantity.values
            listed.append([quantity.name, quantity.step, quantity.micro, key])
        entries.append(
            {
                "case": record.case,
                "path": record.path,
                "fault": record.fault,
                "places": dict(record.places),
                "error": record.error,
                "quantities": listed,
            }
        )
    write_npz(file, {"format": FORMAT, "records": entries}, arrays)


def load_records(file: Path) -> tuple[UpdateRecord, ...]:
    """Records in a file; InputError if it was not written by `save_records`."""
    index, arrays = read_npz(file, FORMAT)
    return tuple(_records(index["records"], arrays))


def _records(entries: Any, arrays: Mapping[str, NDArray[Any]]) -> Iterator[UpdateRecord]:
    for entry in entries:
        yield UpdateRecord(
            case=entry["case"],
            path=entry["path"],
            fault=entry["fault"],
            places=entry["places"],
            error=entry["error"],
            quantities=tuple(
                Quantity(name=name, step=step, micro=micro, values=np.asarray(arrays[key]))
                for name, step, micro, key in entry["quantities"]
            ),
        )
