"""The cards a task runs on: leased for its time among everything that uses this host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.devices.leases import LeaseBook
from harness.plan.demand import demand_of
from harness.run.context import RunContext


@contextlib.contextmanager
def leased(context: RunContext) -> Iterator[None]:
    """Hold what the task's cell asks for, for a task that runs on real cards; others hold nothing.

    The task's own time starts when it has them. See `LeaseBook.lease` for the errors.
    """
    task, site, handle = context.job.task, context.site, context.handle
    wanted = int(demand_of(task.check, task.facets).resources.get("NPU", 0))
    if not wanted or not site.cards:
        yield
        return
    handle.waits = True
    try:
        book = LeaseBook.of_host(site.environ)
        what = f"{task.check.name} {task.key[:12]}"
        with book.lease(
            site.cards,
            wanted,
            what,
            stopped=handle.cancelled.is_set,
            waiting=lambda whom: context.log(f"waiting for {wanted} of {len(site.cards)} cards: {whom}"),
        ) as cards:
            handle.waits = False
            context.begin(cards)
            yield
    finally:
        handle.waits = False
