"""Records what passes through a model, in the order it happens: inputs and outputs of modules, forward and
backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORWARD, BACKWARD, OUTPUT, GRADIENT, PARAMETER = "forward", "backward", "output", "gradient", "parameter"

Sink = Callable[["Event", NDArray[np.float64]], None]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One tensor: its kind, the module or quantity it belongs to, which call of it, and a label of all that.

    operators: what ran on the device since the event before, where that was traced.
    """

    kind: str
    name: str
    part: str = ""
    call: int = 0
    operators: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Unique within a run, the same on every device."""
        return "/".join([self.kind, str(self.call), self.name, self.part])

    @property
    def sentence(self) -> str:
        """The event in words."""
        what = {
            FORWARD: f"the {self.part} of {self.name}",
            BACKWARD: f"the gradient arriving at the {self.part} of {self.name}",
            OUTPUT: f"{self.name}",
            GRADIENT: f"the gradient of {self.name}",
            PARAMETER: f"{self.name} after the update",
        }[self.kind]
        return f"{what} (pass {self.call + 1})" if self.kind in {FORWARD, BACKWARD, GRADIENT} else what


@dataclass(kw_only=True)
class Recorder:
    """Hands every event with its values to `sink`; `operators` fills up between events while tracing."""

    sink: Sink
    operators: list[str] = field(default_factory=list)
    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def note(self, kind: str, name: str, tensor: Any, part: str = "") -> None:
        """Record one tensor now."""
        key = (kind, name, part)
        event = Event(
            kind=kind,
            name=name,
            part=part,
            call=self.calls[key],
            operators=tuple(dict.fromkeys(self.operators)),
        )
        self.calls[key] += 1
        values = np.array(tensor.detach().cpu().double().numpy())
        # What recording itself runs on the device is not the model's.
        self.operators.clear()
        self.sink(event, values)

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Record inputs of leaf modules and outputs of all modules, and the gradients that arrive there."""
        handles = []
        for name, module in model.named_modules():
            if not name:
                continue
            handles.append(module.register_forward_hook(self._after(name)))
            if not list(module.children()):
                handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            self._passing(name, "input", next(_floating([*args, *kwargs.values()]), None))

        return hook

    def _after(self, name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            outputs = output if isinstance(output, (tuple, list)) else [output]
            self._passing(name, "output", next(_floating(outputs), None))

        return hook

    def _passing(self, name: str, part: str, tensor: Any) -> None:
        if tensor is None:
            return
        self.note(FORWARD, name, tensor, part)
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: self.note(BACKWARD, name, gradient, part))


def _floating(values: Any) -> Iterator[Any]:
    return (value for value in values if hasattr(value, "is_floating_point") and value.is_floating_point())
