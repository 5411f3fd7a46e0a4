from __future__ import annotations

import gc
import os
from concurrent.futures.process import BrokenProcessPool

import pytest

from harness.forked_pool import ForkedPool


class Shared:
    """What cannot be sent to another process."""

    def __init__(self) -> None:
        self.texts = (text for text in ("a", "b"))
        self.here = os.getpid()

    def told(self, number: int) -> tuple[int, bool]:
        return number, os.getpid() != self.here

    def collects(self) -> bool:
        return gc.isenabled()

    def killed(self) -> None:
        os._exit(9)


@pytest.mark.parametrize("collects", [True, False])
def test_functions_get_the_object_of_this_process(collects: bool) -> None:
    pool = ForkedPool(Shared(), 2, collects=collects)
    try:
        calls = [pool.submit(Shared.told, number) for number in range(6)]
        assert [call.result() for call in calls] == [(number, True) for number in range(6)]
        assert pool.submit(Shared.collects).result() == collects
    finally:
        pool.close()


def test_a_worker_that_was_killed_is_told() -> None:
    pool = ForkedPool(Shared(), 1, collects=True)
    try:
        with pytest.raises(BrokenProcessPool):
            pool.submit(Shared.killed).result()
    finally:
        pool.close()
