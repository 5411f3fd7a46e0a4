"""The order of runs of several machines.

A ledger lists its own runs in the order in which they were made, whatever the clock said. The runs of a
merged ledger follow all runs that were there before, also those of later days. So runs of one machine keep
the order of the ledger, and those of different machines are ordered by time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.ledger.run_record import RunRecord

#: The facts of a run that identify its machine; older runs have only the last ones.
MACHINE_FACTS = ("host", "runner", "machine", "cpus", "npu")


def machine_of(run: RunRecord) -> tuple[str, ...]:
    """What identifies the machine of a run; equal for all runs that recorded nothing about theirs."""
    return tuple(str(run.host.get(name, "")) for name in MACHINE_FACTS)


def machine_name(run: RunRecord) -> str:
    """The machine of a run for readers: the name of its runner, else the beginning of its fingerprint."""
    return str(run.host.get("runner", "")) or str(run.host.get("host", ""))[:12]


def order_by_time(runs: Sequence[RunRecord], now: float) -> dict[str, float]:
    """Run -> its time in the common order, oldest first. runs: in the order of the ledger, oldest first.

    A time after `now` is that of a wrong clock: such a run counts as made right after the previous run of its
    machine. So does a run whose clock was set back.
    """
    latest: dict[tuple[str, ...], float] = {}
    times: dict[str, float] = {}
    for run in runs:
        machine = machine_of(run)
        before = latest.get(machine, 0.0)
        latest[machine] = times[run.run_id] = max(before, run.started if run.started <= now else before)
    return _sorted(times)


def _sorted(times: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda item: item[1]))
