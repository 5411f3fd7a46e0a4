"""The cards a task runs on: leased for its time among all that uses this host, and still there after."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence

from harness.devices.cards.card_leases import CardLeases
from harness.devices.host.inventory import HostView, lost_cards
from harness.errors import InfrastructureError, InterruptedRunError
from harness.plan.tasks.demand import resource_demand
from harness.run.jobs.job import JobSite
from harness.run.jobs.task_context import RunContext


@contextlib.contextmanager
def task_cards_leased(context: RunContext) -> Iterator[None]:
    """Hold what the task's cell asks for, for a task that runs on real cards; others hold nothing.

    The task's own time starts when it has them. InfrastructureError when a card is lost before or meanwhile,
    whatever came of the task; see `CardLeases.lease` for the other errors.
    """
    task, site, handle = context.job.task, context.site, context.handle
    wanted = int(resource_demand(task.check, task.facets).resources.get("NPU", 0))
    if not wanted or not site.cards:
        yield
        return
    handle.waits = True
    try:
        book = CardLeases.of_host(site.environ)
        what = f"{task.check.name} {task.key[:12]}"
        with book.lease(
            site.cards,
            wanted,
            what,
            stopped=handle.cancelled.is_set,
            waiting=lambda whom: context.log(f"waiting for {wanted} of {len(site.cards)} cards: {whom}"),
        ) as cards:
            handle.waits = False
            _require_cards(cards, site, "before the task began")
            context.begin_with_cards(cards)
            with _checked_for_loss(cards, site):
                yield
    finally:
        handle.waits = False


@contextlib.contextmanager
def _checked_for_loss(cards: Sequence[int], site: JobSite) -> Iterator[None]:
    """A task that fails or hangs on a card that went away says nothing of its cell."""
    try:
        yield
    except InterruptedRunError:
        raise
    except BaseException:
        _require_cards(cards, site, "while the task ran")
        raise
    _require_cards(cards, site, "while the task ran")


def _require_cards(cards: Sequence[int], site: JobSite, when: str) -> None:
    path = site.environ.get("PATH")
    view = HostView(
        dev=site.dev, environ=site.environ, which=lambda program: shutil.which(program, path=path)
    )
    lost = lost_cards(cards, view)
    if lost:
        numbers = ", ".join(map(str, lost))
        raise InfrastructureError(
            f"card {numbers} was lost {when}",
            why="; ".join(f"{card}: {why}" for card, why in lost.items()),
            fix="see `npu-smi info` and `dmesg`; reset the card or reboot, then run again",
        )
