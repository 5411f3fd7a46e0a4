"""A case: one self-contained evaluation of one loss, and its file format (npz with a JSON index)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import InputError, Location
from harness.numerics.arithmetic.precision_contract import Contract
from harness.numerics.loss.loss_measurements import REQUIRED

FORMAT = "npu-matrix-loss-cases/1"
INDEX = "index.json"


#: Names of verl's configuration -> values, as JSON.
LossSettings = Mapping[str, str | float | bool]


@dataclass(frozen=True, kw_only=True)
class LossCase:
    """One evaluation: the computation (`operation`, `settings`), its `inputs`, and the contract.

    name: the same for all seeds and releases; other places refer to it (`loss:advantage/equal-rewards`).
    inputs: float32 arrays whose values are exact in the io format of the contract, so that the reference and
        the device read the same bits, and int64 arrays (labels, group index); the response mask is 0/1.
        Shapes (batch, tokens[, vocabulary]).
    gradient_of: name of the input by which the value is differentiated, "" for none.
    settings: JSON; the names are those of verl's configuration (clip_ratio_low, loss_agg_mode, ...).
    requires: capabilities that an implementation must have for the case (`VerlCandidate.capabilities`).
    severity: `robustness` cases test more than an implementation has to guarantee; a failure is a finding.
    """

    name: str
    operation: str
    contract: Contract
    inputs: Mapping[str, NDArray[Any]]
    gradient_of: str = ""
    settings: LossSettings = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    severity: str = REQUIRED

    def with_settings(self, **changes: Any) -> LossCase:
        """The same case with some settings changed."""
        return replace(self, settings={**self.settings, **changes})

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting, or `default` if the case does not have it."""
        value = self.settings.get(name)
        return default if value is None else value


def save_cases(file: Path, cases: Iterable[LossCase]) -> None:
    """Write cases to one npz file; arrays that several cases share are stored once."""
    arrays: dict[str, NDArray[Any]] = {}
    entries = []
    for case in cases:
        keys = {}
        for name, array in case.inputs.items():
            key = _array_key(array)
            arrays[key] = array
            keys[name] = key
        entries.append(
            {
                "name": case.name,
                "operation": case.operation,
                "contract": case.contract.to_json(),
                "inputs": keys,
                "gradient_of": case.gradient_of,
                "settings": dict(case.settings),
                "requires": list(case.requires),
                "severity": case.severity,
            }
        )
    write_npz(file, {"format": FORMAT, "cases": entries}, arrays)


def load_cases(file: Path) -> tuple[LossCase, ...]:
    """Read a file of cases; InputError if it is missing, damaged or has another format."""
    index, arrays = read_npz(file, FORMAT)
    try:
        return tuple(
            LossCase(
                name=entry["name"],
                operation=entry["operation"],
                contract=Contract.from_json(entry["contract"]),
                inputs={name: arrays[key] for name, key in entry["inputs"].items()},
                gradient_of=entry["gradient_of"],
                settings=entry["settings"],
                requires=tuple(entry["requires"]),
                severity=entry["severity"],
            )
            for entry in index["cases"]
        )
    except (KeyError, TypeError) as error:
        raise _damaged(file, f"its index has no {error}") from error


def write_npz(file: Path, index: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays and a JSON index to one npz file, which appears only when it is complete."""
    text = json.dumps(index, sort_keys=True)
    partial = file.with_name(file.name + ".part")
    with partial.open("wb") as stream:
        np.savez(stream, **{INDEX: np.frombuffer(text.encode(), dtype=np.uint8), **arrays})  # type: ignore[arg-type]
    partial.replace(file)


def read_npz(file: Path, expected_format: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """JSON index and arrays of a file that `write_npz` wrote; InputError if it does not have
    `expected_format`."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        index = json.loads(arrays.pop(INDEX).tobytes())
    except FileNotFoundError as error:
        raise InputError(
            "no such file", where=Location(file), fix="run the program that writes it first"
        ) from error
    except Exception as error:  # numpy passes on exceptions of zipfile, zlib, struct
        raise _damaged(file, f"{type(error).__name__}: {error}") from error
    if not isinstance(index, dict) or index.get("format") != expected_format:
        raise _damaged(file, f"its format is not {expected_format}")
    return index, arrays


def _array_key(array: NDArray[Any]) -> str:
    sha = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:24]


def _damaged(file: Path, why: str) -> InputError:
    return InputError("this npz file cannot be read", where=Location(file), why=why, fix="write it again")
