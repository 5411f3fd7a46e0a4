"""Compares the times and memory of a check's run with its reference set, if both ran on the same machine.

Host side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.convergence.decision.performance import LEAST_SHARE, Comparison, compare
from harness.convergence.decision.reference_set import ReferenceSet
from harness.convergence.telemetry.series import decode_series
from harness.convergence.telemetry.training_records import MachineLoad, StoredSeries
from harness.evidence import DeviceFacts

# If other processes use at most this share of the processors, times grow by a factor of at most 1 / (1 -
# 0.1). That is within the bounds that ten undisturbed runs give.
HIDDEN_BY = 0.1
REMEDY = "Find what changed since the reference was recorded; if the change is intended, record it again."


@dataclass(frozen=True, kw_only=True)
class SpeedComparison:
    """The comparison of a run's times and memory with the reference set.

    regressions: metrics that are worse by more than chance explains. sentences: reasons for the judgement, or
    why nothing was compared.
    """

    regressions: tuple[Comparison, ...] = ()
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A run with its times and memory (`performance`) and the machine they were measured on."""

    stopped_early: bool
    performance: StoredSeries
    host: MachineLoad | None


def compare_speed(reference: ReferenceSet, runs: Sequence[TimedRun], device: DeviceFacts) -> SpeedComparison:
    """Compare the first run that was not stopped early with the reference runs, if the machine is the same.

    An improvement does not count as a regression.
    """
    whole = next((run for run in runs if not run.stopped_early and run.performance), None)
    if whole is None:
        return SpeedComparison(sentences=("Times are not judged: every run was stopped early.",))
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
    """The slow-down that cannot be detected, because other processes ran while the reference was recorded."""
    theirs = reference.provenance.host.others if reference.provenance.host else None
    if theirs is None:
        return ("The reference does not say how much processor time other processes used during its runs.",)
    if theirs <= HIDDEN_BY:
        return ()
    factor = 1 / max(LEAST_SHARE, 1 - theirs)
    found = f"Other processes used up to {theirs:.0%} of the processors while the reference was recorded"
    return (f"{found}: a slow-down by a factor of up to {factor:.2g} cannot be detected.",)


def _incomparable(reference: ReferenceSet, host: MachineLoad | None, device: DeviceFacts) -> str:
    theirs = reference.provenance.device
    if not reference.performance or host is None or reference.host != host.id:
        return "the reference was recorded on another machine (npu-matrix run --record-reference)"
    different = [key for key in ("kind", "simulated", "soc") if getattr(theirs, key) != getattr(device, key)]
    if different:
        return f"the reference was recorded on another device (different {', '.join(different)})"
    if host.others is None:
        return "it is not known how much processor time other processes used during the run"
    return ""
