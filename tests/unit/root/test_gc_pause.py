"""What is made while the garbage collector is off is freed, and nothing older is searched for that."""

from __future__ import annotations

import gc
import weakref

from harness.gc_pause import gc_paused


class Node:
    """An object that can refer to itself."""

    def __init__(self) -> None:
        self.itself: Node | None = self


def test_garbage_that_was_made_inside_is_freed_at_the_end() -> None:
    with gc_paused(collects=True):
        inside = weakref.ref(Node())
        assert inside() is not None
    assert inside() is None
    assert gc.isenabled()


def test_older_garbage_is_not_searched() -> None:
    older = Node()
    gc.collect()
    found = weakref.ref(older)
    del older
    with gc_paused(collects=True):
        pass
    assert found() is not None
    gc.collect()
    assert found() is None
