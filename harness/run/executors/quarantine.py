"""Pauses hosts with repeated infrastructure errors until a canary task succeeds there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

#: Consecutive infrastructure errors before a host is paused. If 5 % of tasks failed by chance, three failures
#: in a row would occur once in 8,000 tasks.
ERRORS_IN_A_ROW = 3
#: The first pause. It is doubled each time the canary task fails.
FIRST_PAUSE_SECONDS = 120.0
LONGEST_PAUSE_SECONDS = 3600.0


@dataclass(kw_only=True)
class _Record:
    errors: int = 0
    pause: float = 0.0
    until: float = 0.0
    canary: bool = False


@dataclass(kw_only=True)
class Quarantine:
    """The health of each host. All times are seconds of the same clock."""

    records: dict[str, _Record] = field(default_factory=dict)

    def paused_hosts(self, hosts: Iterable[str], now: float) -> frozenset[str]:
        """The hosts that get no tasks now, because they are paused or a canary task is running there."""
        return frozenset(host for host in hosts if self._is_paused(host, now))

    def awaiting_canary(self, hosts: Iterable[str], now: float) -> list[str]:
        """The hosts whose pause is over and that have no canary task yet."""
        return [
            host
            for host in hosts
            if (record := self.records.get(host)) is not None
            and record.pause
            and now >= record.until
            and not record.canary
        ]

    def task_sent(self, host: str, now: float) -> None:
        """Note that a task was sent to the host. The first task after a pause is the canary."""
        record = self.records.get(host)
        if record is not None and record.pause and now >= record.until:
            record.canary = True

    def task_ended(self, host: str, *, healthy: bool, now: float) -> None:
        """Note the end of a task on the host. `healthy` is False after an infrastructure error."""
        record = self.records.setdefault(host, _Record())
        if healthy:
            self.records[host] = _Record()
            return
        record.errors += 1
        if record.errors < ERRORS_IN_A_ROW and not record.canary:
            return
        record.pause = min(2 * record.pause or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        record.until, record.canary, record.errors = now + record.pause, False, 0

    def _is_paused(self, host: str, now: float) -> bool:
        record = self.records.get(host)
        return record is not None and bool(record.pause) and (now < record.until or record.canary)
