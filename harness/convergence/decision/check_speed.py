"""Was a check's run slower or larger than the reference set's? Only where that can be known. Host side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.convergence.decision.performance import LEAST_SHARE, Comparison, compare
from harness.convergence.decision.reference_set import ReferenceSet
from harness.convergence.telemetry.series import decode_series
from harness.convergence.telemetry.training_records import MachineLoad, StoredSeries
from harness.evidence import DeviceFacts

# A share of the machine that changes times by no more than bounds from ten quiet runs do: 1 / (1 - 0.1).
HIDDEN_BY = 0.1
REMEDY = "Look at what changed since the reference was recorded; record it again if the change is wanted."


@dataclass(frozen=True, kw_only=True)
class SpeedComparison:
    """regressions: metrics that are worse by more than chance. sentences: about them, or why nothing was
    compared."""

    regressions: tuple[Comparison, ...] = ()
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A run with its times and memory (`performance`) and the machine they are of."""

    stopped_early: bool
    performance: StoredSeries
    host: MachineLoad | None


def compare_speed(reference: ReferenceSet, runs: Sequence[TimedRun], device: DeviceFacts) -> SpeedComparison:
    """Compare the first run that was not stopped early with the reference's runs on this very machine.

    An improvement is no regression.
    """
    whole = next((run for run in runs if not run.stopped_early and run.performance), None)
    if whole is None:
        return SpeedComparison(sentences=("Times are not judged: no run is whole.",))
    why = _incomparable(reference, whole.host, device)
    if why:
        return SpeedComparison(sentences=(f"Times are not judged: {why}.",))
    others = whole.host.others if whole.host and whole.host.others is not None else 0.0
    found, notes = compare(reference.performance, decode_series(whole.performance), others=others)
    worse = tuple(one for one in found if one.worse)
    shown = worse or tuple(found[:1])
    sentences = [f"{one.sentence()}." for one in shown] + [f"{note}." for note in notes if not found]
    return SpeedComparison(regressions=worse, sentences=(*sentences, *_hidden(reference)))


def _hidden(reference: ReferenceSet) -> tuple[str, ...]:
    """What a reference that was not recorded on a quiet machine cannot show."""
    theirs = reference.provenance.host.others if reference.provenance.host else None
    if theirs is None:
        return ("It is not known how busy the machine was with others when the reference was recorded.",)
    if theirs <= HIDDEN_BY:
        return ()
    factor = 1 / max(LEAST_SHARE, 1 - theirs)
    found = f"Others used up to {theirs:.0%} of the machine when the reference was recorded"
    return (f"{found}: a slow-down by up to a factor of {factor:.2g} may be hidden.",)


def _incomparable(reference: ReferenceSet, host: MachineLoad | None, device: DeviceFacts) -> str:
    theirs = reference.provenance.device
    if not reference.performance or host is None or reference.host != host.id:
        return "the reference was recorded on another machine (npu-matrix run --record-reference)"
    different = [key for key in ("kind", "simulated", "soc") if getattr(theirs, key) != getattr(device, key)]
    if different:
        return f"the reference is of another device ({', '.join(different)})"
    if host.others is None:
        return "nothing says how much of the machine others used"
    return ""
