"""Captures graphs and replays them, as `torch.npu.graph` does with CANN's aclmdlRI functions.

A graph is the list of calls that were made while its streams were captured. On a device these calls do not
run before a replay. Here each runs once during the capture, because its results have shapes that the next
calls need. At the end of the capture, what they wrote is set back, and new results are filled with bytes 0xff
(NaN, -1): a program that reads a result before a replay gets no useful number, as on a device.

runtime_build/runtime/graph.c says which streams are captured. What nobody records here, for example functions
of the host, makes the end of the capture raise `not simulated`.
"""

from __future__ import annotations

import ctypes
import enum
import json
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.devices.sim.operators.host_memory_address import HOST_ADDRESS
from harness.devices.sim.operators.schema_plan import Args, Kwargs, OperatorPlan
from harness.devices.sim.operators.torch_internals import host_bytes

_NOT_SIMULATED = "not simulated: torch.npu.graph"
#: Codes of ACL, as in runtime/sim.h.
_OK, _GROUP_STATUS, _AICORE_EXCEPTION = 0, 107033, 507015
_SYNCHRONISES = "the stream waits for the host, which a captured stream cannot, error code is 107027"
_UNDEFINED = 0xFF
#: Operators that copy between host and device, with the position of their argument non_blocking.
_COPIES = {"aten::copy_": 2, "aten::_copy_from": 2, "aten::_copy_from_and_resize": 9, "aten::_to_copy": 9}

#: From torch_npu 2.12 on, a generator's state in a capture is relative to that before a replay. In earlier
#: releases it knows no captures, and replays draw as they come. Source: set_philox_offset_per_thread in
#: NPUGeneratorImpl.cpp of Ascend/pytorch.
_COUNTS_IN_CAPTURES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)

Kernel = Callable[..., Any]


class Told(enum.IntEnum):
    """What the runtime tells, in the order of runtime/sim.h."""

    GRAPH_BEGIN = 0
    GRAPH_END = enum.auto()
    GRAPH_REPLAY = enum.auto()
    GRAPH_DESTROY = enum.auto()
    GROUP_BEGIN = enum.auto()
    GROUP_END = enum.auto()
    UPDATE_BEGIN = enum.auto()
    UPDATE_END = enum.auto()
    EVENT_WAIT = enum.auto()
    EVENT_RESET = enum.auto()
    EVENT_RECORD = enum.auto()
    COLLECTIVE = enum.auto()
    HOST_FUNCTION = enum.auto()
    GRAPH_PRINT = enum.auto()
    UNRECORDED = enum.auto()


@dataclass(frozen=True)
class _Place:
    """Where a captured call draws random numbers: steps after the generator's offset before a replay."""

    generator: torch.Generator
    offset: int


@dataclass
class _Call:
    """A captured call of an operator. results: its new tensors, into which each replay copies.

    places: one for each time that the kernel draws random numbers.
    """

    plan: OperatorPlan
    kernel: Kernel
    args: Args
    kwargs: Kwargs
    results: Sequence[torch.Tensor]
    places: Sequence[_Place | None] = ()


@dataclass(frozen=True)
class _OfEvent:
    """Waiting for, resetting or recording an event that is also used outside of graphs."""

    what: Told
    event: int


_Node = _Call | _OfEvent | Callable[[], object]
#: Each call that draws random numbers advances the offset by one step of the Philox counter.
OFFSET_STEP = 4


@dataclass
class _Graph:
    """saved: (address, bytes) -> content before the first call that wrote there, with its owner."""

    nodes: list[_Node] = field(default_factory=list)
    saved: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    new: list[torch.Tensor] = field(default_factory=list)
    collectives: list[int] = field(default_factory=list)
    host_calls: list[int] = field(default_factory=list)
    unrecorded: str = ""
    group_from: int = 0


@dataclass
class _Replay:
    graph: _Graph
    stream: int
    position: int = 0


class GraphRecorder:
    """The graphs of this process. It must be kept for as long as the runtime is used."""

    def __init__(self, runtime: Any, npu: Any, alias: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._runtime = runtime
        self._npu = npu
        self._alias = alias
        self._graphs: dict[int, _Graph] = {}
        # Handle -> the calls of a group, and those that the update has yet to replace.
        self._groups: dict[int, list[_Call]] = {}
        self._updates: dict[int, list[_Call]] = {}
        self._waiting: dict[int, _Replay] = {}
        self._failure: Exception | None = None
        # Generator -> its offset before the replay that runs.
        self._offsets: dict[torch.Generator, int] = {}
        self._thread = threading.local()
        #: Whether a fault makes the update of a call of this operator have no effect.
        self.ignores_update: Callable[[OperatorPlan], bool] = lambda _plan: False
        runtime.npu_sim_signal.restype = ctypes.c_uint64
        runtime.npu_sim_captured.restype = runtime.npu_sim_updated.restype = ctypes.c_void_p
        signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._listener = signature(self._listen)
        runtime.npu_sim_listen(self._listener)
        _report_failures(npu, self)

    def of_stream(self, stream: int) -> Callable[..., Any] | None:
        """What records a call in this stream, if it is captured or updates a group; None to run it."""
        if self.is_recording():
            return None
        if self._runtime.npu_sim_stalled(ctypes.c_void_p(stream)):
            raise NotImplementedError(
                f"{_NOT_SIMULATED} (work in a stream whose replay waits for an event that is not recorded)"
            )
        if handle := self._runtime.npu_sim_updated(ctypes.c_void_p(stream)):
            return lambda plan, _kernel, *given: self._update(self._updates[handle], plan, *given)
        if graph := self._runtime.npu_sim_captured(ctypes.c_void_p(stream)):
            return lambda *call: self._record(self._graphs[graph], *call)
        return None

    def is_recording(self) -> bool:
        """Whether this thread runs a call for a capture, whose numbers nobody gets."""
        return getattr(self._thread, "records", False)

    def runs_captured_call(self) -> bool:
        """Whether this thread runs a call of a graph, for its capture or a replay."""
        return getattr(self._thread, "places", None) is not None

    def place(self, generator: torch.Generator) -> tuple[int, int] | None:
        """Seed and offset for the random numbers of a captured call; None if this thread runs none.

        As in torch_npu's own kernels: a capture counts from 0, and a replay adds what it counted to the
        offset that the generator has then. Only the generator's state can be read during a capture.
        """
        places = getattr(self._thread, "places", None)
        if places is None:
            return None
        if self.is_recording():
            if not _COUNTS_IN_CAPTURES:
                places.append(None)
                return 0, 0
            state = generator.get_state()
            numbers = state.view(torch.int64)
            places.append(_Place(generator, int(numbers[1])))
            self._offsets.setdefault(generator, 0)
            numbers[1] += OFFSET_STEP
            generator.set_state(state)
            return 0, 0
        place = places.pop(0)
        if place is None:
            return None
        return int(generator.initial_seed()), self._offsets[place.generator] + place.offset

    def capture_end(self, end: Callable[[], None]) -> None:
        """End the capture of the current stream; NotImplementedError for what it has that nobody records."""
        graph = self._runtime.npu_sim_captured(ctypes.c_void_p(self._npu.current_stream().npu_stream))
        end()
        if graph in self._graphs and (what := self._graphs[graph].unrecorded):
            raise NotImplementedError(f"{_NOT_SIMULATED} with {what}")

    def replay(self, replay: Callable[[], None]) -> None:
        """Replay a graph. An error of a kernel is raised as it was, not only as a code of the runtime."""
        # torch_npu advances the generators at once.
        for generator in self._offsets:
            self._offsets[generator] = int(generator.get_offset())
        try:
            replay()
        except RuntimeError as error:
            failure, self._failure = self._failure, None
            if failure is None:
                raise
            raise failure from error

    def _record(self, graph: _Graph, plan: OperatorPlan, kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
        _refuse_blocking(plan, args, kwargs)
        copies = plan.name in _COPIES
        kept = tuple(_kept(value, copies) for value in args)
        named = {name: _kept(value, copies) for name, value in kwargs.items()}
        for position, name in plan.mutable:
            written = args[position] if position < len(args) else kwargs.get(name)
            for tensor in written if isinstance(written, (list, tuple)) else (written,):
                if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
                    _save(graph, tensor)
        places: list[_Place | None] = []
        self._thread.records, self._thread.places = True, places
        try:
            result = kernel(*args, **kwargs)
        finally:
            self._thread.records, self._thread.places = False, None
        new = [tensor.detach() for tensor in _new_tensors(plan, result)]
        graph.new.extend(new)
        graph.nodes.append(_Call(plan, kernel, kept, named, new, places))
        return result

    def _update(self, group: list[_Call], plan: OperatorPlan, args: Args, kwargs: Kwargs) -> Any:
        """Replace the arguments of the next call of a group. Its results stay where they are."""
        if not group or group[0].plan.qualified != plan.qualified:
            captured = group[0].plan.qualified if group else "no further operator"
            raise RuntimeError(
                f"the update of a task group calls {plan.qualified}, the captured group has {captured}, "
                f"error code is {_GROUP_STATUS}"
            )
        call = group.pop(0)
        if not self.ignores_update(plan):
            copies = plan.name in _COPIES
            call.args = tuple(_kept(value, copies) for value in args)
            call.kwargs = {name: _kept(value, copies) for name, value in kwargs.items()}
        new = iter(call.results)
        results = [
            next(new) if source is None else args[source[0]] if source[0] < len(args) else kwargs[source[1]]
            for source in plan.returns
        ]
        if len(plan.returns) > 1:
            return tuple(results)
        return results[0] if results else None

    def _listen(self, what: int, graph: int | None, thing: int | None) -> int:
        try:
            return self._told(Told(what), graph or 0, thing or 0)
        except Exception as error:  # noqa: BLE001 - no exception passes through C
            traceback.print_exc()
            self._failure = error
            return _AICORE_EXCEPTION

    def _told(self, what: Told, graph: int, thing: int) -> int:
        match what:
            case Told.GRAPH_BEGIN:
                self._graphs[graph] = _Graph()
            case Told.GRAPH_END:
                _set_back(self._graphs[graph])
            case Told.GRAPH_REPLAY:
                return self._advance(_Replay(self._graphs[graph], thing))
            case Told.GRAPH_DESTROY:
                ended = self._graphs.pop(graph, _Graph())
                for collective in ended.collectives:
                    self._runtime.npu_sim_forget_collective(ctypes.c_void_p(collective))
                for host_call in ended.host_calls:
                    self._runtime.npu_sim_forget_host_call(ctypes.c_void_p(host_call))
            case Told.GROUP_BEGIN:
                self._graphs[graph].group_from = len(self._graphs[graph].nodes)
            case Told.GROUP_END:
                nodes = self._graphs[graph].nodes[self._graphs[graph].group_from :]
                handle = len(self._groups) + 1
                self._groups[handle] = [node for node in nodes if isinstance(node, _Call)]
                ctypes.c_void_p.from_address(thing).value = handle
            case Told.UPDATE_BEGIN:
                if thing not in self._groups:
                    return _GROUP_STATUS
                self._updates[thing] = list(self._groups[thing])
            case Told.UPDATE_END:
                return _GROUP_STATUS if self._updates.pop(thing) else _OK
            case Told.COLLECTIVE:
                self._graphs[graph].collectives.append(thing)
                self._graphs[graph].nodes.append(lambda: self._collective(thing))
            case Told.HOST_FUNCTION:
                self._graphs[graph].host_calls.append(thing)
                self._graphs[graph].nodes.append(
                    lambda: self._runtime.npu_sim_call_host(ctypes.c_void_p(thing))
                )
            case Told.GRAPH_PRINT:
                _print_graph(self._graphs[graph], ctypes.string_at(thing).decode())
            case Told.UNRECORDED:
                self._graphs[graph].unrecorded = ctypes.string_at(thing).decode()
            case _:
                return self._event(what, graph, thing)
        return _OK

    def _event(self, what: Told, graph: int, event: int) -> int:
        if graph:
            self._graphs[graph].nodes.append(_OfEvent(what, event))
        elif what is not Told.EVENT_WAIT:
            is_recorded = what is Told.EVENT_RECORD
            self._runtime.npu_sim_set_signal(ctypes.c_void_p(event), ctypes.c_uint64(is_recorded))
            if is_recorded and (replay := self._waiting.pop(event, None)):
                self._runtime.npu_sim_stall(ctypes.c_void_p(replay.stream), 0)
                return self._advance(replay)
        return _OK

    def _advance(self, replay: _Replay) -> int:
        """Replay until the end of the graph or an event that nobody has recorded."""
        nodes = replay.graph.nodes
        while replay.position < len(nodes):
            node = nodes[replay.position]
            if isinstance(node, _OfEvent) and node.what is Told.EVENT_WAIT:
                if not self._runtime.npu_sim_signal(ctypes.c_void_p(node.event)):
                    self._waiting[node.event] = replay
                    self._runtime.npu_sim_stall(ctypes.c_void_p(replay.stream), 1)
                    return _OK
            elif isinstance(node, _OfEvent):
                self._event(node.what, 0, node.event)
            elif isinstance(node, _Call):
                self._run(node)
            else:
                node()
            replay.position += 1
        return _OK

    def _run(self, call: _Call) -> None:
        with torch.no_grad():
            self._thread.places = list(call.places)
            try:
                result = call.kernel(*call.args, **call.kwargs)
            finally:
                self._thread.places = None
            for kept, value in zip(call.results, _new_tensors(call.plan, result), strict=True):
                self._on_host(kept).copy_(self._on_host(value))

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_cpu else self._alias(tensor)

    def _collective(self, collective: int) -> None:
        stream = ctypes.c_void_p(self._npu.current_stream().npu_stream)
        if error := self._runtime.npu_sim_collective(ctypes.c_void_p(collective), stream):
            raise RuntimeError(f"a collective of a graph failed, error code is {error}")


def _new_tensors(plan: OperatorPlan, result: Any) -> list[torch.Tensor]:
    """The results that are no argument."""
    results = (result,) if len(plan.returns) == 1 else result or ()
    found = []
    for source, value in zip(plan.returns, results, strict=True):
        values = value if isinstance(value, (list, tuple)) else (value,)
        found += [one for one in values if source is None and isinstance(one, torch.Tensor)]
    return found


def _kept(value: Any, copies: bool) -> Any:
    """An argument as the graph keeps it: the memory of device tensors, and the numbers of host tensors.

    copies: whether the operator copies from the host, which reads the memory in each replay.
    """
    if isinstance(value, torch.Tensor):
        return value.detach() if copies or not value.is_cpu else value.detach().clone()
    if isinstance(value, (list, tuple)):
        kept = [_kept(one, copies) for one in value]
        return kept if isinstance(value, list) else tuple(kept)
    return value


def _save(graph: _Graph, tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    key = (storage.data_ptr() & HOST_ADDRESS, storage.nbytes())
    if key[1] and key not in graph.saved:
        graph.saved[key] = (tensor.detach(), host_bytes(*key, torch.uint8).clone())


def _set_back(graph: _Graph) -> None:
    """Make the memory as if no captured call had run."""
    for tensor in graph.new:
        storage = tensor.untyped_storage()
        if storage.nbytes() and tensor.dtype is not torch.bool:
            host_bytes(storage.data_ptr() & HOST_ADDRESS, storage.nbytes(), torch.uint8).fill_(_UNDEFINED)
    for key, (_owner, content) in graph.saved.items():
        host_bytes(*key, torch.uint8).copy_(content)
    graph.saved.clear()
    graph.new.clear()


def _refuse_blocking(plan: OperatorPlan, args: Args, kwargs: Kwargs) -> None:
    """Refuse what makes the host wait: numbers that decide a shape, and copies that are not non_blocking."""
    if plan.name in _COPIES:
        at = _COPIES[plan.name]
        target = kwargs.get("device")
        crosses = any(isinstance(one, torch.Tensor) and one.is_cpu for one in args)
        to_host = target is not None and torch.device(target).type == "cpu"
        waits = (crosses or to_host) and not (args[at] if at < len(args) else kwargs.get("non_blocking"))
    elif plan.base == "index":
        # An index of numbers decides no shape, a mask does.
        waits = any(one is not None and one.dtype in {torch.bool, torch.uint8} for one in args[1])
    else:
        waits = plan.waits
    if waits:
        raise RuntimeError(f"{plan.name}: {_SYNCHRONISES}")


def _print_graph(graph: _Graph, path: str) -> None:
    """What `debug_dump` writes: the captured calls in the form of a trace."""
    names = [node.plan.qualified if isinstance(node, _Call) else "other" for node in graph.nodes]
    events = [
        {"name": name, "ph": "X", "pid": 0, "tid": 0, "ts": number, "dur": 1}
        for number, name in enumerate(names)
    ]
    Path(path).write_text(json.dumps(events))


def _report_failures(npu: Any, recorder: GraphRecorder) -> None:
    """Let the end of a capture and replays raise what happened in Python, not only a code."""
    kind = getattr(getattr(npu, "graphs", None), "NPUGraph", None)
    if kind is None:
        return
    end, replay = kind.capture_end, kind.replay
    kind.capture_end = lambda graph: recorder.capture_end(lambda: end(graph))
    kind.replay = lambda graph: recorder.replay(lambda: replay(graph))
