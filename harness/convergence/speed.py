"""Was a check's run slower or larger than the reference set's? Only where that can be known. Host side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.convergence.performance import Comparison, compare
from harness.convergence.reference_set import ReferenceSet
from harness.convergence.telemetry import decode_series

# With more runnable processes than processors a step's time is a matter of who else is there.
MOST_LOAD = 1.0
REMEDY = "Look at what changed since the reference was recorded; record it again if the change is wanted."


@dataclass(frozen=True, kw_only=True)
class Speed:
    """regressions: metrics that are worse by more than chance. sentences: about them, or why nothing was
    compared."""

    regressions: tuple[Comparison, ...] = ()
    sentences: tuple[str, ...] = ()


def speed(reference: ReferenceSet, runs: Sequence[Mapping[str, Any]], device: Mapping[str, Any]) -> Speed:
    """The first run that was not stopped early, against the reference's runs on this very machine.

    runs: of a check's measurements, each with `performance` and `host`. An improvement is no regression.
    """
    whole = next((run for run in runs if not run.get("stopped") and run.get("performance")), None)
    if whole is None:
        return Speed(sentences=("Times are not judged: no run is whole.",))
    why = _incomparable(reference, whole.get("host", {}), device)
    if why:
        return Speed(sentences=(f"Times are not judged: {why}.",))
    found, notes = compare(reference.performance, decode_series(whole["performance"]))
    worse = tuple(one for one in found if one.worse)
    shown = worse or tuple(found[:1])
    return Speed(
        regressions=worse,
        sentences=(*(f"{one.sentence()}." for one in shown), *(f"{note}." for note in notes if not found)),
    )


def _incomparable(reference: ReferenceSet, host: Mapping[str, Any], device: Mapping[str, Any]) -> str:
    theirs = reference.provenance["device"]
    if not reference.performance or reference.host != host.get("id"):
        return "the reference was recorded on another machine (npu-matrix run --record-reference)"
    different = [key for key in ("kind", "simulated", "soc") if theirs.get(key) != device.get(key)]
    if different:
        return f"the reference is of another device ({', '.join(different)})"
    for whose, load in (("run", host["load"]), ("reference", reference.provenance["host"]["load"])):
        if load > MOST_LOAD:
            return f"the {whose}'s machine had {load:g} runnable processes per processor"
    return ""
