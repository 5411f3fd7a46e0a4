"""The ranks of a sequence-parallel group (Ulysses), one after the other in one process.

Each rank gets a slice of the packed rows. What the ranks gather in a forward pass does not depend on an
earlier gathering of that pass, because the model of this check has no attention. So the other ranks run
first, to find out what they pass on, and then every rank runs with that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from harness.numerics.loss.candidate import StandInError
from harness.numerics.update.replaced import replaced


class SequenceRanks:
    """The group of `size` ranks. rank: the one that runs. previews: what runs is only to find out what a rank
    passes on, so its results are wrong."""

    def __init__(self, torch: Any, size: int) -> None:
        self.torch, self.size = torch, size
        self.rank, self.previews = 0, False
        self._passed: list[list[Any]] = [[] for _ in range(size)]
        self._parts: dict[str, dict[int, Any]] = {}

    @property
    def is_first(self) -> bool:
        """Whether what runs is the first rank, whose results verl gets."""
        return not self.previews and self.rank == 0

    @property
    def mesh(self) -> Any:
        """The device mesh, as verl's engine asks it for the rank in this group."""
        return {"sp": SimpleNamespace(get_local_rank=lambda: self.rank)}

    @property
    def gathering(self) -> Any:
        """verl's function that gathers the outputs of all ranks."""
        return import_module("verl.utils.ulysses").gather_outputs_and_unpad

    @contextmanager
    def active(self) -> Iterator[None]:
        """In the block, verl and torch know this group; nothing changes if it has one rank."""
        if self.size == 1:
            yield
            return
        ulysses = import_module("verl.utils.ulysses")
        distributed = self.torch.distributed
        with ExitStack() as stack:
            for name, own in (
                ("get_rank", lambda: self.rank),
                ("get_world_size", lambda: self.size),
                ("all_gather_into_tensor", self._gather_into),
                ("all_gather", self._gather),
            ):
                stack.enter_context(
                    replaced(distributed, name, asked_of_group(self, getattr(distributed, name), own))
                )
            stack.callback(ulysses.set_ulysses_sequence_parallel_group, None)
            ulysses.set_ulysses_sequence_parallel_group(self)
            yield

    def on_each(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A forward step that runs on each rank. It returns what the first rank returns; a backward pass goes
        through all ranks."""
        if self.size == 1:
            return step

        def on_ranks(*args: Any, **kwargs: Any) -> Any:
            self._passed = [[] for _ in range(self.size)]
            for rank in range(1, self.size):
                with self.torch.no_grad():
                    self._run(rank, True, step, *args, **kwargs)
            first, *others = [self._run(rank, False, step, *args, **kwargs) for rank in range(self.size)]
            numbers = [len(one) for one in self._passed]
            if len(set(numbers)) > 1:
                raise StandInError(f"the ranks take part in different numbers of collectives: {numbers}")
            return _joined(first, others)

        return on_ranks

    def average(self, _module: Any, _args: Any, output: Any) -> None:
        """A hook after the forward pass: FSDP takes the mean of the gradients of all ranks."""
        if self.size > 1 and output.logits.requires_grad:
            output.logits.register_hook(lambda gradient: gradient / self.size)

    def whole(self, name: str, part: Any, rank: int | None = None) -> Any:
        """The parts (1, tokens, ...) of all ranks as one tensor once the last was given, before that None.
        rank: whose part it is, by default of the one that runs."""
        parts = self._parts.setdefault(name, {})
        parts[self.rank if rank is None else rank] = part
        if len(parts) < self.size:
            return None
        del self._parts[name]
        return part if self.size == 1 else self.torch.cat([parts[one] for one in range(self.size)], dim=1)

    def _run(self, rank: int, previews: bool, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.rank, self.previews = rank, previews
        self._passed[rank] = []
        try:
            return step(*args, **kwargs)
        finally:
            self.rank, self.previews = 0, False

    def _gather_into(self, output: Any, local: Any) -> None:
        output.copy_(self.torch.cat(self._from_all(local)).reshape(output.shape))

    def _gather(self, outputs: list[Any], local: Any) -> None:
        for output, found in zip(outputs, self._from_all(local), strict=True):
            output.copy_(found)

    def _from_all(self, local: Any) -> list[Any]:
        """What each rank passes to the collective that this rank is at; zeros where that is not known yet."""
        mine = self._passed[self.rank]
        number = len(mine)
        mine.append(local.detach().clone())
        found = [
            passed[number] if number < len(passed) else self.torch.zeros_like(local)
            for passed in self._passed
        ]
        shapes = {tuple(one.shape) for one in found}
        if len(shapes) > 1:
            raise StandInError(
                f"the ranks pass tensors of different shapes to a collective: {sorted(shapes)}"
            )
        return found


def asked_of_group(
    group: object, original: Callable[..., Any], own: Callable[..., Any]
) -> Callable[..., Any]:
    """torch's function, which calls `own` instead where the group is this one."""

    def function(*args: Any, **kwargs: Any) -> Any:
        # Not `in`, which would compare tensors with the group.
        if any(one is group for one in (kwargs.get("group"), *args)):
            return own(*(one for one in args if one is not group))
        return original(*args, **kwargs)

    return function


def _joined(first: Any, others: list[Any]) -> Any:
    """The first value; its gradient goes to the others as well. Tensors may be in tuples or dictionaries."""
    if isinstance(first, dict):
        return {name: _joined(one, [other[name] for other in others]) for name, one in first.items()}
    if isinstance(first, tuple):
        return tuple(_joined(one, [other[place] for other in others]) for place, one in enumerate(first))
    if getattr(first, "requires_grad", False) and not first.is_nested:
        # Each difference is exactly zero.
        return first + sum(other - other.detach() for other in others)
    return first
