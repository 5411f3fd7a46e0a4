"""What the ranks of a sequence-parallel group (Ulysses) exchange around attention.

Each rank has a part of the tokens and all heads. The function that verl installs in transformers exchanges
that for all tokens and a part of the heads, calls attention, and exchanges the result back. Here each rank is
a thread on the CPU: it needs what the others computed, in the backward pass, too. In the place of attention
is a function of whole numbers, whose results and gradients are exact. What verl does around it only moves
numbers and repeats heads, so every comparison is exact, and the device has no part in it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.loss.candidate import StandInError
from harness.numerics.update.replaced import replaced
from harness.numerics.update.sequence_ranks import asked_of_group
from harness.numerics.update.update_record import STEP

ULYSSES, MONKEY_PATCH = "verl.utils.ulysses", "verl.models.transformers.monkey_patch"
TOKENS, DIMENSION = 16, 2
POSITIONS = (*range(5), 0, *range(7), *range(3))
"""Of packed rows with 5, 1, 7 and 3 tokens, which are on several ranks."""

SCALE = 0.25
PATIENCE_S = 60.0
"""How long a rank waits for the others. What they do takes milliseconds."""

Arrays = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class AttentionHeads:
    """Attention of so many ranks, with heads of queries, and heads of keys and values."""

    ranks: int
    queries: int
    keys: int

    def named(self, quantity: str) -> str:
        """The name of a quantity in the record."""
        return f"attention {quantity}, {self.queries} and {self.keys} heads on {self.ranks} ranks"

    @property
    def repeats(self) -> int:
        """How often each head of keys is there, so that each rank gets one."""
        return max(self.ranks // self.keys, 1)

    def drawn(self) -> Arrays:
        """Query, key, value and the gradient of the output, (1, tokens, heads, dimension); whole numbers."""
        rng = np.random.default_rng([self.ranks, self.queries, self.keys])
        heads = {"query": self.queries, "key": self.keys, "value": self.keys, "output gradient": self.queries}
        return {
            name: rng.integers(-50, 50, (1, TOKENS, number, DIMENSION)).astype(np.float64)
            for name, number in heads.items()
        }

    def expected(self) -> Arrays:
        """The quantities of all ranks, by definition, in the order of computation: what attention gets, its
        result, and the gradients."""
        drawn = self.drawn()
        group = self.queries // self.keys
        query, gradient = drawn["query"], drawn["output gradient"]
        key, value = (np.repeat(drawn[name], group, axis=2) for name in ("key", "value"))
        of_key, of_value = (
            (gradient * other).reshape(1, TOKENS, self.keys, group, DIMENSION).sum(axis=3)
            for other in (value, key)
        )
        return {
            "query": query,
            "key": np.repeat(drawn["key"], self.repeats, axis=2),
            "value": np.repeat(drawn["value"], self.repeats, axis=2),
            "positions": np.tile(np.array(POSITIONS, dtype=np.float64), (self.ranks, 1)),
            "settings": np.tile([SCALE, 1.0], (self.ranks, 1)),
            "output": query + key * value,
            "output gradient": gradient,
            "query gradient": gradient,
            "key gradient": of_key,
            "value gradient": of_value,
        }


ATTENTIONS = (
    AttentionHeads(ranks=1, queries=4, keys=2),
    AttentionHeads(ranks=4, queries=8, keys=2),
    AttentionHeads(ranks=4, queries=8, keys=8),
    AttentionHeads(ranks=2, queries=8, keys=4),
)
"""One rank, fewer heads of keys than ranks, as many heads of keys as of queries, and groups on each rank."""


@dataclass
class _RankThreads:
    """A group of ranks that are threads: its collectives, which wait for all of them."""

    torch: Any
    size: int
    given: list[Any] = field(init=False)
    own: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        self.given = [None] * self.size
        self.barrier = threading.Barrier(self.size, timeout=PATIENCE_S)

    @contextmanager
    def active(self) -> Iterator[None]:
        """In the block, verl and torch know this group, if it has several ranks; no other exchanges."""
        ulysses, distributed = import_module(ULYSSES), self.torch.distributed
        asked: dict[str, Callable[..., Any]] = {
            "get_rank": lambda: self.own.rank,
            "get_world_size": lambda: self.size,
        }
        with ExitStack() as stack:
            for name, own in asked.items() if self.size > 1 else ():
                function = asked_of_group(self, getattr(distributed, name), own)
                stack.enter_context(replaced(distributed, name, function))
            for name, own in (("all_gather", self._gather), ("all_to_all", self._exchange)):
                function = asked_of_group(self, partial(_refused, name), own)
                stack.enter_context(replaced(distributed, name, function))
            stack.callback(ulysses.set_ulysses_sequence_parallel_group, None)
            ulysses.set_ulysses_sequence_parallel_group(self if self.size > 1 else None)
            yield

    def run(self, step: Callable[[int], Any]) -> list[Any]:
        """What the step returns on each rank; the first exception, if there was one."""
        found: list[Any] = [None] * self.size
        raised: list[Exception] = []

        def on_rank(rank: int) -> None:
            self.own.rank = rank
            try:
                found[rank] = step(rank)
            except Exception as error:  # noqa: BLE001 - whatever verl raises is a verdict on it
                raised.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=on_rank, args=(rank,)) for rank in range(self.size)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        # The other ranks only notice that one is missing.
        for error in raised:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        if raised:
            raise StandInError("the ranks take part in different numbers of collectives")
        return found

    def _from_all(self, given: Any) -> list[Any]:
        self.given[self.own.rank] = given
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found

    def _gather(self, outputs: list[Any], local: Any) -> Any:
        return _filled(outputs, self._from_all(local.detach().clone()))

    def _exchange(self, outputs: list[Any], inputs: list[Any]) -> Any:
        given = self._from_all([one.detach().clone() for one in inputs])
        return _filled(outputs, [one[self.own.rank] for one in given])


def _refused(name: str, *_: Any, **_named: Any) -> None:
    raise StandInError(f"{name} is called without the group of ranks that divide tokens")


def _filled(outputs: list[Any], found: list[Any]) -> Any:
    """The handle of a collective that has put what it found into the outputs."""
    given, wanted = ([tuple(one.shape) for one in tensors] for tensors in (found, outputs))
    if given != wanted:
        raise StandInError(f"a collective gets tensors of shapes {given} where {wanted} are expected")
    for output, one in zip(outputs, found, strict=True):
        output.copy_(one)
    return SimpleNamespace(wait=lambda: None)


@dataclass
class SequenceAttention:
    """Runs one attention of `heads` with verl's functions on all ranks. at: tells which function of verl
    computes quantities."""

    torch: Any
    heads: AttentionHeads
    at: Callable[..., None]
    noted: threading.local = field(default_factory=threading.local, init=False)

    def run(self) -> dict[str, Any]:
        """The quantities of all ranks as tensors or arrays, as `AttentionHeads.expected` has them."""
        ranks = _RankThreads(self.torch, self.heads.ranks)
        with ExitStack() as stack:
            function = stack.enter_context(self._installed())
            stack.enter_context(ranks.active())
            found = ranks.run(lambda rank: self._on_rank(rank, function))
        cat, by_heads = self.torch.cat, ("query", "key", "value", "output gradient")
        return {
            name: self.torch.stack(parts)
            if name in ("positions", "settings")
            else cat(parts, dim=2 if name in by_heads else 1)
            for name in self.heads.expected()
            if all(name in one for one in found)
            for parts in [[one[name] for one in found]]
        }

    @contextmanager
    def _installed(self) -> Iterator[Callable[..., Any]]:
        """transformers' attention function, in which verl has installed its own. It calls the stand-in."""
        integration: Any = import_module("transformers.integrations.flash_attention")
        patching: Any = import_module(MONKEY_PATCH)
        self.at(patching.apply_monkey_patch, STEP)
        with ExitStack() as stack:
            for module in (integration, patching):
                stack.enter_context(replaced(module, "_flash_attention_forward", self._attention))
            patching.apply_monkey_patch(
                model=self._model(), ulysses_sp_size=self.heads.ranks, use_remove_padding=True
            )
            self._locate(integration._flash_attention_forward, patching)  # noqa: SLF001 - transformers' name
            yield integration.flash_attention_forward

    def _locate(self, installed: Any, patching: Any) -> None:
        """Name the functions that compute the quantities."""
        names = self.heads.expected().keys()
        if inspect.ismethod(installed):
            # verl has left the stand-in where it was.
            self.at(patching.apply_monkey_patch, *map(self.heads.named, names))
            return
        self.at(installed, *map(self.heads.named, names))
        backward = import_module(ULYSSES).SeqAllToAll.backward
        self.at(backward, *map(self.heads.named, ("output gradient", "query gradient")))

    def _model(self) -> Any:
        """A model with these heads."""
        transformers: Any = import_module("transformers")
        config = transformers.Qwen2Config(
            vocab_size=8,
            hidden_size=self.heads.queries * DIMENSION,
            intermediate_size=4,
            num_hidden_layers=1,
            num_attention_heads=self.heads.queries,
            num_key_value_heads=self.heads.keys,
        )
        return transformers.Qwen2ForCausalLM(config)

    def _on_rank(self, rank: int, function: Callable[..., Any]) -> dict[str, Any]:
        """Attention and its gradients for the tokens of one rank."""
        torch, size = self.torch, self.heads.ranks
        drawn = {
            name: torch.tensor(values).chunk(size, dim=1)[rank] for name, values in self.heads.drawn().items()
        }
        inputs = [drawn[name].clone().requires_grad_() for name in ("query", "key", "value")]
        positions = torch.tensor([POSITIONS]).chunk(size, dim=1)[rank].contiguous()
        noted: dict[str, Any] = {}
        self.noted.of_rank = noted
        layer = SimpleNamespace(
            is_causal=True, config=SimpleNamespace(_attn_implementation="flash_attention_2")
        )
        output, _ = function(
            layer, *(one.transpose(1, 2) for one in inputs), None, scaling=SCALE, position_ids=positions
        )
        if output.shape != inputs[0].shape:
            return {**noted, "output": output}
        self.at(import_module(ULYSSES).SeqAllToAll.backward, STEP)
        gradients = torch.autograd.grad(output, inputs, drawn["output gradient"])
        names = ("query gradient", "key gradient", "value gradient")
        return {**noted, "output": output, **dict(zip(names, gradients, strict=True))}

    def _attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        *_: Any,
        position_ids: Any = None,
        softmax_scale: float = 0.0,
        is_causal: bool = False,
        **_named: Any,
    ) -> Any:
        """Stands in for attention: queries plus keys times values, of each token alone. Of packed rows, the
        mask and the length of the query have no effect in transformers."""
        goes_together = query.shape[:2] == key.shape[:2] and key.shape == value.shape
        if not (goes_together and key.shape[2] and query.shape[2] % key.shape[2] == 0):
            shapes = ", ".join(str(tuple(one.shape)) for one in (query, key, value))
            raise StandInError(f"attention gets a query, key and value that do not go together: {shapes}")
        noted, group = self.noted.of_rank, query.shape[2] // key.shape[2]
        settings = [softmax_scale or 0.0, float(is_causal)]
        noted |= {"query": query, "key": key, "value": value, "settings": self.torch.tensor(settings)}
        if position_ids is not None:
            noted["positions"] = position_ids[0]
        key, value = (one.repeat_interleave(group, dim=2) for one in (key, value))
        output = query + key * value
        output.register_hook(lambda gradient: noted.update({"output gradient": gradient}))
        return output
