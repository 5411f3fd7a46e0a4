"""Records the tensors of an update in the order of computation (inputs and outputs of modules, the loss,
gradients) and measures their distances from exact tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import InfrastructureError
from harness.numerics.arithmetic.precision_contract import Contract

FORWARD, BACKWARD, OUTPUT, GRADIENT, PARAMETER = "forward", "backward", "output", "gradient", "parameter"
LOSS = "loss"

TensorValues = dict[str, NDArray[np.float64]]
"""The values of recorded tensors by their labels."""

TensorSink = Callable[["TensorEvent", NDArray[np.float64]], None]


@dataclass(frozen=True, kw_only=True)
class TensorEvent:
    """One tensor: its kind, the module or quantity that it belongs to, the number of the call, and a label.

    part: "input" or "output" of a module, with a number from the second tensor on: "output 2".
    operators: what ran on the device since the previous event, if that was traced. Tensors that are recorded
        without an operator between them have the same operators.
    """

    kind: str
    name: str
    part: str = ""
    call: int = 0
    operators: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Unique within a run and the same on every device."""
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
class TensorRecorder:
    """Passes every event with its values to `sink`; `operators` collects what runs between events while
    tracing."""

    sink: TensorSink
    operators: list[str] = field(default_factory=list)
    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    ran: tuple[str, ...] = ()

    def note(self, kind: str, name: str, tensor: Any, part: str = "") -> None:
        """Record one tensor now."""
        key = (kind, name, part)
        self.ran = tuple(dict.fromkeys(self.operators)) or self.ran
        event = TensorEvent(kind=kind, name=name, part=part, call=self.calls[key], operators=self.ran)
        self.calls[key] += 1
        values = np.array(tensor.detach().cpu().double().numpy())
        # Operators that the recording itself ran are not part of the model.
        self.operators.clear()
        self.sink(event, values)

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Record inputs of leaf modules, outputs of all modules, the gradients of both, and every
        differentiated loss.

        The loss that verl reports may differ from the one that it differentiates. It is also known only after
        the whole backward pass, when the cause of an error can no longer be located.
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

        def recording_backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.note(LOSS, "the loss", loss)
            return backward(loss, *args, **kwargs)

        tensor_class.backward = recording_backward
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
        for number, tensor in enumerate(tensors, start=1):
            which = part if number == 1 else f"{part} {number}"
            self.note(FORWARD, name, tensor, which)
            if tensor.requires_grad:
                tensor.register_hook(partial(self._note_gradient, name, which))

    def _note_gradient(self, name: str, part: str, gradient: Any) -> None:
        self.note(BACKWARD, name, gradient, part)


def _floating(values: Any) -> Iterator[Any]:
    return (value for value in values if hasattr(value, "is_floating_point") and value.is_floating_point())


def distances(errors: dict[str, float], exact: Mapping[str, NDArray[np.float64]]) -> TensorSink:
    """A sink that stores only the distance from the exact values; infinite for tensors without an exact
    counterpart."""

    def measure(event: TensorEvent, values: NDArray[np.float64]) -> None:
        expected = exact.get(event.label)
        if expected is None or expected.shape != values.shape or not np.isfinite(values).all():
            errors[event.label] = np.inf
        else:
            errors[event.label] = float(np.linalg.norm(values - expected))

    return measure


def require_comparable(scatter: Mapping[str, float]) -> None:
    """InfrastructureError if a perturbed run lacks a tensor or has one of another shape.

    No tolerance can be derived then, and an infinite tolerance would accept everything.
    """
    incomparable = [label for label, distance in scatter.items() if not np.isfinite(distance)]
    if incomparable:
        raise InfrastructureError(
            "a perturbed run of the reference is not comparable with the exact one",
            why=f"{len(incomparable)} tensors are missing, have another shape or are not finite, for example "
            f"{incomparable[0]}",
            fix="use another seed; if that does not help, report the problem with the log of the reference",
        )


def tolerances(
    scatter: Mapping[str, float], exact: Mapping[str, NDArray[np.float64]], contract: Contract
) -> dict[str, float]:
    """Tolerance by label: the largest distance of the perturbed runs (`scatter`) times the safety factor of
    the contract, plus one rounding of the exact tensor."""
    return {
        label: contract.safety * scatter[label] + contract.unit * float(np.linalg.norm(values))
        for label, values in exact.items()
    }


def json_number(error: float) -> float | None:
    """An error for JSON, which has no infinity: None if a tensor is missing, has the wrong shape or is not
    finite."""
    return float(f"{error:.6g}") if np.isfinite(error) else None


def error_budget(error: float | None, tolerance: float) -> float | None:
    """Error divided by tolerance; None if the tensor is missing, has the wrong shape or is not finite."""
    return None if error is None else float(f"{error / max(tolerance, 1e-300):.4g}")
