"""Records what passes through a model, in the order it happens: inputs and outputs of modules, the loss,
and what flows back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORWARD, BACKWARD, OUTPUT, GRADIENT, PARAMETER = "forward", "backward", "output", "gradient", "parameter"
LOSS = "loss"

Sink = Callable[["Event", NDArray[np.float64]], None]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One tensor: its kind, the module or quantity it belongs to, which call of it, and a label of all that.

    part: "input" or "output" of a module, numbered from the second on: "output 2". operators: what ran on the
    device since the event before, where that was traced; of tensors recorded one after the other with nothing
    run in between, each has what ran before the first.
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
        part = f"the {self.part}" if self.part.isalpha() else self.part
        what = {
            FORWARD: f"{part} of {self.name}",
            LOSS: f"{self.name} as its backward starts",
            BACKWARD: f"the gradient arriving at {part} of {self.name}",
            OUTPUT: f"{self.name}",
            GRADIENT: f"the gradient of {self.name}",
            PARAMETER: f"{self.name} after the update",
        }[self.kind]
        return what if self.kind in {OUTPUT, PARAMETER} else f"{what} (pass {self.call + 1})"


@dataclass(kw_only=True)
class Recorder:
    """Hands every event with its values to `sink`; `operators` fills up between events while tracing."""

    sink: Sink
    operators: list[str] = field(default_factory=list)
    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    ran: tuple[str, ...] = ()

    def note(self, kind: str, name: str, tensor: Any, part: str = "") -> None:
        """Record one tensor now."""
        key = (kind, name, part)
        self.ran = tuple(dict.fromkeys(self.operators)) or self.ran
        event = Event(kind=kind, name=name, part=part, call=self.calls[key], operators=self.ran)
        self.calls[key] += 1
        values = np.array(tensor.detach().cpu().double().numpy())
        # What recording itself runs on the device is not the model's.
        self.operators.clear()
        self.sink(event, values)

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Record inputs of leaf modules, outputs of all modules, the gradients that arrive there, and every
        loss that is differentiated.

        A loss that is reported may not be the one that is differentiated, and is known only after all of its
        backward: what made it wrong could not be told from there.
        """
        handles = []
        for name, module in model.named_modules():
            if not name:
                continue
            handles.append(module.register_forward_hook(self._after(name)))
            if not list(module.children()):
                handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
        tensor_class = import_module("torch").Tensor
        backward = tensor_class.backward

        def noted(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.note(LOSS, "the loss", loss)
            return backward(loss, *args, **kwargs)

        tensor_class.backward = noted
        try:
            yield
        finally:
            tensor_class.backward = backward
            for handle in handles:
                handle.remove()

    def _before(self, name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            self._passing(name, "input", _floating([*args, *kwargs.values()]))

        return hook

    def _after(self, name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            outputs = output if isinstance(output, (tuple, list)) else [output]
            self._passing(name, "output", _floating(outputs))

        return hook

    def _passing(self, name: str, part: str, tensors: Iterator[Any]) -> None:
        for place, tensor in enumerate(tensors, start=1):
            which = part if place == 1 else f"{part} {place}"
            self.note(FORWARD, name, tensor, which)
            if tensor.requires_grad:
                tensor.register_hook(partial(self._arrived, name, which))

    def _arrived(self, name: str, part: str, gradient: Any) -> None:
        self.note(BACKWARD, name, gradient, part)


def _floating(values: Any) -> Iterator[Any]:
    return (value for value in values if hasattr(value, "is_floating_point") and value.is_floating_point())
