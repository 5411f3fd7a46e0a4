"""Processes that are forked from this one, and so share an object that is too large to be sent to them."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Generic, TypeVar

MAX_WORKERS = 8

Shared = TypeVar("Shared")
Result = TypeVar("Result")

#: In a worker: the object that it was forked with.
_shared: list[object] = []


def fork_workers() -> int:
    """How many workers are worth it here; 1 where processes cannot be forked."""
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    return min(os.cpu_count() or 1, MAX_WORKERS) if can_fork else 1


class ForkedPool(Generic[Shared]):
    """Calls functions with a shared object as first argument in forked processes.

    collects: whether the workers look for garbage among what they make themselves. What they inherit is never
    searched: that takes long, and copies the memory which the processes share.
    """

    def __init__(self, shared: Shared, workers: int, *, collects: bool) -> None:
        context = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(workers, context, _inherit, (shared, collects))

    def submit(self, function: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Start `function(shared, *arguments)`. It needs a name by which a module has it."""
        return self._pool.submit(_with_shared, function, *arguments)

    def close(self) -> None:
        """End the workers, without what they have not begun."""
        self._pool.shutdown(cancel_futures=True)


def _inherit(shared: object, collects: bool) -> None:
    gc.freeze()
    if not collects:
        gc.disable()
    _shared.append(shared)


def _with_shared(function: Callable[..., Result], *arguments: object) -> Result:
    return function(_shared[0], *arguments)
