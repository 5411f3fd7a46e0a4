"""A candidate: any callable that computes a value and its gradient for a case. Exceptions become results."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import NothingSelectedError
from harness.measurements import read_shape
from harness.numerics.loss import verl_helpers
from harness.numerics.loss.cases.loss_case import LossCase, read_npz, write_npz
from harness.numerics.loss.loss_measurements import UNCALLABLE, LossProgramFacts
from harness.numerics.loss.verl_helpers import raised_in
from harness.serialisation import to_json

FORMAT = "npu-matrix-loss-results/1"
LONGEST_MESSAGE = 400
ADAPTERS = "harness.numerics"
"""The package of the code that calls verl. An exception raised there is about the call, not about verl."""


class UnsupportedCaseError(Exception):
    """A candidate raises it if it does not offer what a case requires; the message says what."""


@dataclass(frozen=True, kw_only=True)
class CandidateResult:
    """What a candidate returned: value (shape () or (batch, tokens)) and gradient, or why there is none.
    place: file, line and name of the function of verl that computes it, or raised an exception."""

    value: NDArray[Any] | float | None = None
    gradient: NDArray[Any] | None = None
    error: str = ""
    unsupported: str = ""
    seconds: float = 0.0
    place: str = ""


Candidate = Callable[[LossCase], CandidateResult]


def evaluate(
    candidate: Candidate, cases: Iterable[LossCase], *, before: Callable[[LossCase], None] | None = None
) -> dict[str, CandidateResult]:
    """Results by case name. Exceptions and values that are not real arrays become errors of their case.

    `before` is called before each case, so that it is known in which case a killed process was.
    """
    results = {}
    for case in cases:
        if before is not None:
            before(case)
        results[case.name] = evaluate_one(candidate, case)
    return results


def evaluate_one(candidate: Candidate, case: LossCase) -> CandidateResult:
    """Evaluate one case. NothingSelectedError is not caught: it concerns all cases."""
    started = time.monotonic()
    try:
        checked = _checked(candidate(case))
    except UnsupportedCaseError as error:
        checked = CandidateResult(unsupported=_shortened(str(error)) or "the candidate does not offer this")
    except NothingSelectedError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is a verdict on it
        checked = failed(error, raised_in(error))
    return replace(checked, seconds=time.monotonic() - started)


def failed(error: Exception, place: str) -> CandidateResult:
    """The result of a candidate that raised an exception."""
    beginning = UNCALLABLE if is_own_call(error) else "raised "
    return CandidateResult(error=f"{beginning}{type(error).__name__}: {_shortened(str(error))}", place=place)


class StandInError(RuntimeError):
    """What stands in for torch or other processes refuses a call of verl, as the real one would."""


def is_own_call(error: Exception) -> bool:
    """Whether the code that calls verl raised an exception: the call is wrong, or verl lacks a name."""
    if isinstance(error, StandInError):
        return False
    frames = [frame for frame, _line in traceback.walk_tb(error.__traceback__)]
    # Calls of verl's functions pass through the module that watches them.
    innermost = [one for one in frames if one.f_globals.get("__name__") != verl_helpers.__name__][-1]
    # A module that is run as a program has the name __main__, but keeps its package.
    package = innermost.f_globals.get("__package__") or ""
    return f"{package}.".startswith(f"{ADAPTERS}.")


def _checked(result: object) -> CandidateResult:
    if not isinstance(result, CandidateResult):
        return CandidateResult(error=f"returned {type(result).__name__}, not a CandidateResult")
    value, gradient = _real("value", result.value), _real("gradient", result.gradient)
    for part in (value, gradient):
        if isinstance(part, str):
            return CandidateResult(error=part)
    if value is None and not result.error and not result.unsupported:
        return CandidateResult(error="returned no value")
    return replace(result, value=value, gradient=gradient)  # type: ignore[arg-type]


def _real(name: str, part: object) -> NDArray[Any] | str | None:
    if part is None:
        return None
    array = np.asarray(part)
    if array.dtype.kind != "f":
        return f"{name} has dtype {array.dtype}, not a floating-point one"
    return array.astype(np.float64)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."


def save_results(
    file: Path, results: Mapping[str, CandidateResult], facts: LossProgramFacts | None = None
) -> None:
    """Write results by case name, with facts about the program that computed them."""
    arrays: dict[str, NDArray[Any]] = {}
    entries = {}
    for number, (name, result) in enumerate(results.items()):
        parts = [part for part in ("value", "gradient") if getattr(result, part) is not None]
        arrays.update({f"{number}.{part}": np.asarray(getattr(result, part)) for part in parts})
        entries[name] = {
            "number": number,
            "arrays": parts,
            "error": result.error,
            "unsupported": result.unsupported,
            "seconds": result.seconds,
            "place": result.place,
        }
    write_npz(file, {"format": FORMAT, "facts": to_json(facts), "results": entries}, arrays)


def load_results(file: Path) -> dict[str, CandidateResult]:
    """Results by case name; InputError if the file was not written by `save_results`."""
    index, arrays = read_npz(file, FORMAT)
    return {
        name: CandidateResult(
            error=entry["error"],
            unsupported=entry["unsupported"],
            seconds=entry["seconds"],
            place=entry.get("place", ""),
            **{part: arrays[f"{entry['number']}.{part}"] for part in entry["arrays"]},
        )
        for name, entry in index["results"].items()
    }


def load_facts(file: Path) -> LossProgramFacts:
    """The facts in a file of results. For the host only, because it imports pydantic."""
    index, _ = read_npz(file, FORMAT)
    return read_shape(LossProgramFacts, index["facts"])
