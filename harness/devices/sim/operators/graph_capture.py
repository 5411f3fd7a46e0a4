"""Refuses to capture graphs: the simulated device computes at once and cannot record what a graph replays."""

from __future__ import annotations

from typing import Any, NoReturn

_MESSAGE = "not simulated: torch.npu.graph (capture and replay of graphs of NPU operators)"


def refuse_capture(npu: Any) -> None:
    """Make every way into a capture raise NotImplementedError, before streams or allocators are switched.

    npu: torch.npu. Without this, torch_npu says that it lacks the function aclmdlRICaptureBegin, which reads
    like an installation that is too old, and stays on the stream of the capture.
    """
    graphs = getattr(npu, "graphs", None)
    for owner, method in (("NPUGraph", "capture_begin"), ("graph", "__enter__")):
        kind = getattr(graphs, owner, None)
        if kind is not None:
            setattr(kind, method, _refused)


def _refused(*_args: object, **_options: object) -> NoReturn:
    raise NotImplementedError(_MESSAGE)
