"""Hosts with repeated infrastructure errors get no work until a canary task succeeds there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

#: Infrastructure errors in a row before a host is paused. If 1 in 20 tasks failed by chance, three in a row
#: would happen once in 8,000 tasks.
ERRORS_IN_A_ROW = 3
#: The first pause, doubled each time the host fails its canary again.
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
    """What is known of each host's health; times are seconds of any one clock."""

    records: dict[str, _Record] = field(default_factory=dict)

    def paused_hosts(self, hosts: Iterable[str], now: float) -> frozenset[str]:
        """The hosts that get no work now: paused, or with a canary task running."""
        return frozenset(host for host in hosts if self._is_paused(host, now))

    def awaiting_canary(self, hosts: Iterable[str], now: float) -> list[str]:
        """The hosts whose pause is over and that have no canary yet."""
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

    def task_ended(self, host: str, *, healthy: bool, now: float) -> str:
        """A task came back from the host, `well` unless this machine failed; returns what to tell, or ""."""
        record = self.records.setdefault(host, _Record())
        if healthy:
            was_away = bool(record.pause)
            self.records[host] = _Record()
            return f"{host} is back: its canary came through" if was_away else ""
        record.errors += 1
        if record.errors < ERRORS_IN_A_ROW and not record.canary:
            return ""
        record.pause = min(2 * record.pause or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        record.until, record.canary, record.errors = now + record.pause, False, 0
        return f"{host} gets no work for {record.pause:g} s: it keeps failing for reasons of its own"

    def _is_paused(self, host: str, now: float) -> bool:
        record = self.records.get(host)
        return record is not None and bool(record.pause) and (now < record.until or record.canary)
