"""A plan on a cluster of several kinds of hosts, in virtual time: no host waits behind tasks for others."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from run_fakes import outcome_of

from benchmarks.cluster_naps import FLEET, HostKind, lengths_by_kind, naps
from harness.ledger.store import Ledger
from harness.outcome import Outcome
from harness.plan.tasks.task import Task
from harness.run.jobs.job import Job
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome


class VirtualCluster:
    """Runs jobs in virtual time; each kind of host takes its waiting jobs in order. spare: how many wait.

    by_kind: whether `has_room` counts the hosts of the task's kind, or those of the whole cluster.
    """

    def __init__(self, spare: float, *, by_kind: bool) -> None:
        self.now = 0.0
        self._spare, self._by_kind = spare, by_kind
        self._waiting: dict[HostKind, list[Job]] = defaultdict(list)
        self._busy: dict[HostKind, int] = defaultdict(int)
        self._ends: list[tuple[float, str, HostKind, Job]] = []

    @property
    def slots(self) -> int:
        return sum(kind.hosts for kind in FLEET)

    def has_room(self, task: Task, /) -> bool:
        kinds = [_kind(task)] if self._by_kind else list(FLEET)
        hosts = sum(kind.hosts for kind in kinds)
        submitted = sum(self._busy[kind] + len(self._waiting[kind]) for kind in kinds)
        return submitted < hosts * (1 + self._spare)

    def submit(self, job: Job) -> None:
        self._waiting[_kind(job.task)].append(job)
        self._start(_kind(job.task))

    def collect(self, timeout: float) -> list[Outcome]:
        self.now, _key, kind, job = heapq.heappop(self._ends)
        self._busy[kind] -= 1
        self._start(kind)
        return [Outcome(**{**vars(outcome_of(job.task)), "run_id": job.run_id})]

    def last_lines(self) -> Mapping[str, str]:
        return {}

    def cancel(self) -> None:
        raise AssertionError

    def close(self) -> None: ...

    def _start(self, kind: HostKind) -> None:
        while self._waiting[kind] and self._busy[kind] < kind.hosts:
            job = self._waiting[kind].pop(0)
            self._busy[kind] += 1
            ends = self.now + float(job.task.facets["seconds"])
            heapq.heappush(self._ends, (ends, job.task.key, kind, job))


def _kind(task: Task) -> HostKind:
    return next(kind for kind in FLEET if kind.facets["device"] == task.facets["device"])


@pytest.mark.parametrize("seed", [1, 3])
def test_hosts_of_one_kind_do_not_wait_for_those_of_another(seed: int, tmp_path: Path) -> None:
    plan = naps(400, 20.0, seed)
    bound = max(max(*lengths, sum(lengths) / kind.hosts) for kind, lengths in lengths_by_kind(plan))
    ratios = {}
    for by_kind in (True, False):
        cluster = VirtualCluster(0.25 if by_kind else 0.0, by_kind=by_kind)
        with Ledger.open(tmp_path / str(by_kind)) as ledger:
            result = run_plan(plan, ledger, cluster, judge_outcome)
        assert result.executed == len(plan.tasks)
        ratios[by_kind] = cluster.now / bound
    assert ratios[True] <= 1.1
    # Seeded: room for as many tasks as there are hosts, of whatever kind.
    assert ratios[False] > ratios[True]
