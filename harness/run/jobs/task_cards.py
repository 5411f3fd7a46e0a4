"""Leases the cards that a task runs on, and checks that they were not lost while it ran."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence

from harness.devices.cards.card_leases import CardLeases
from harness.devices.host.host_inspection import HostView, lost_cards
from harness.errors import InfrastructureError, InterruptedRunError
from harness.plan.tasks.demand import card_count
from harness.plan.tasks.task import Task
from harness.run.jobs.job import JobHandle, JobSite


@contextlib.contextmanager
def leased_cards(
    task: Task, site: JobSite, handle: JobHandle, log: Callable[[str], None]
) -> Iterator[tuple[int, ...]]:
    """Lease as many cards as the task needs: none if it does not run on real cards.

    InfrastructureError if a card is lost before or during the `with` block, whatever the result of the block;
    see `CardLeases.lease` for other errors.
    """
    count = card_count(task.check, task.facets)
    if not count or not site.cards:
        yield ()
        return
    handle.waits = True
    try:
        with CardLeases.of_host(site.environ).lease(
            site.cards,
            count,
            f"{task.check.name} {task.key[:12]}",
            stopped=handle.cancelled.is_set,
            waiting=lambda holders: log(f"waiting for {count} of {len(site.cards)} cards: {holders}"),
        ) as cards:
            handle.waits = False
            _require_cards(cards, site, "before the task used it")
            log(f"on card {', '.join(map(str, cards))}")
            with _checked_for_loss(cards, site):
                yield cards
    finally:
        handle.waits = False


@contextlib.contextmanager
def _checked_for_loss(cards: Sequence[int], site: JobSite) -> Iterator[None]:
    """Replace the result or error of the task by an InfrastructureError if one of its cards was lost."""
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
