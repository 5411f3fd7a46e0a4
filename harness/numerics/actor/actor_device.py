"""The update on a device: errors of every tensor, repeatability, injected faults, packed rows, matmuls."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.cell_program.torch_device import device_facts
from harness.numerics.actor.actor_case import ActorCase, Arrays
from harness.numerics.actor.actor_faults import ACTOR_FAULTS, GRADIENT_SIGN, ActorFault
from harness.numerics.actor.actor_measurements import (
    ActorDeviceRun,
    Errors,
    Matmul,
    PackedErrors,
    RecomputedMatmuls,
    RecordedTensor,
)
from harness.numerics.actor.actor_reference import load_tensors
from harness.numerics.actor.actor_update import TensorPlacement, run_update, start_torch, tracing
from harness.numerics.actor.matmul_recorder import MatmulRecorder
from harness.numerics.actor.tensor_recorder import (
    BACKWARD,
    FORWARD,
    TensorEvent,
    TensorRecorder,
    TensorSink,
    TensorValues,
    distances,
    json_number,
)
from harness.numerics.actor.verl_workers import actor_class, finding
from harness.numerics.arithmetic.precision_contract import BF16_IO
from harness.serialisation import json_object

PACKED_FAULT = GRADIENT_SIGN
NO_FUSED_ATTENTION = "there is no fused attention on a CPU"
LONGEST_ERROR = 300


@dataclass(frozen=True, kw_only=True)
class UpdateRunner:
    """Runs updates of one case on one device. exact, targets: those of the reference."""

    case: ActorCase
    placement: TensorPlacement
    path: str
    targets: Arrays
    exact: Mapping[str, NDArray[np.float64]]

    def run(
        self,
        sink: TensorSink,
        *,
        packed: bool = False,
        mode: Any = None,
        operators: list[str] | None = None,
        fault: ActorFault | None = None,
        matmuls: MatmulRecorder | None = None,
    ) -> None:
        """Run one update and pass its tensors to the sink; optionally with packed rows."""
        run_update(
            replace(self.case, packed=packed),
            self.placement,
            self.targets,
            TensorRecorder(sink=sink, operators=[] if operators is None else operators),
            mode=mode or nullcontext(),
            fault=fault,
            path=self.path,
            matmuls=matmuls,
        )

    def values(self, matmuls: MatmulRecorder | None = None) -> TensorValues:
        """Every tensor of one update, by label."""
        found: TensorValues = {}
        self.run(lambda event, values: found.update({event.label: values}), matmuls=matmuls)
        return found

    def events(self) -> list[TensorEvent]:
        """Every tensor of one update in the order of computation, with the operators before it."""
        found: list[TensorEvent] = []
        names: list[str] = []
        mode = tracing(self.placement.torch, names)
        self.run(lambda event, _values: found.append(event), mode=mode, operators=names)
        return found

    def errors(self, **given: Any) -> Errors:
        """Distance of every tensor from the exact one, in an update run with these arguments of `run`."""
        found: dict[str, float] = {}
        self.run(distances(found, self.exact), **given)
        return {label: json_number(error) for label, error in found.items()}


def measure_on_device(
    name: str, reference_file: Path, out: Path, seed: int, *, compute: str = "float32", path: str = ""
) -> ActorDeviceRun:
    """Measure errors of every tensor on the device, repeatability and injected faults; write them to
    `out`."""
    kind = name.split(":", maxsplit=1)[0]
    if kind != "npu":
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
    torch = start_torch(kind)
    tensors = load_tensors(reference_file)
    runner = UpdateRunner(
        case=ActorCase(seed=seed, compute=compute),
        placement=TensorPlacement(torch=torch, device=name, dtype=torch.float32),
        path=path,
        targets=tensors.targets,
        exact=tensors.exact,
    )
    started = time.monotonic()
    matmuls = _matmul_recorder(compute)
    first = runner.values(matmuls)
    second = runner.values()
    faults, recomputed = _inject_faults(runner, matmuls)
    run = ActorDeviceRun(
        device=device_facts(name),
        verl=version("verl"),
        path=actor_class(path).name,
        compute=compute,
        finding=finding(path),
        events=_recorded(runner.events(), first, runner.exact),
        missing=tuple(label for label in runner.exact if label not in first),
        differing=tuple(label for label, values in first.items() if not _same(values, second.get(label))),
        faults=faults,
        matmuls=recomputed,
        packed=_packed(runner) if kind == "npu" else PackedErrors(skipped=NO_FUSED_ATTENTION),
        seconds=round(time.monotonic() - started, 3),
    )
    out.write_text(json.dumps(json_object(run)), encoding="utf-8")
    return run


def _recorded(
    events: Sequence[TensorEvent], found: TensorValues, exact: Mapping[str, NDArray[np.float64]]
) -> tuple[RecordedTensor, ...]:
    """The traced events with the errors of the same tensors in an update that was not traced."""
    errors: dict[str, float] = {}
    measure = distances(errors, exact)
    for event in events:
        if event.label in found:
            measure(event, found[event.label])
    return tuple(
        RecordedTensor(
            label=event.label,
            kind=event.kind,
            sentence=event.sentence,
            operators=event.operators,
            error=json_number(errors.get(event.label, np.inf)),
        )
        for event in events
    )


def _inject_faults(
    runner: UpdateRunner, clean: MatmulRecorder | None
) -> tuple[dict[str, Errors], RecomputedMatmuls]:
    """Errors of every tensor with each fault injected, and the matmuls without faults and with each fault."""
    errors: dict[str, Errors] = {}
    wrong: dict[str, tuple[Matmul, ...]] = {}
    for fault in ACTOR_FAULTS[runner.case.compute]:
        recorder = _matmul_recorder(runner.case.compute)
        errors[fault.id] = runner.errors(fault=fault, matmuls=recorder)
        wrong[fault.id] = _wrong(recorder)
    return errors, RecomputedMatmuls(
        count=len(clean.found) if clean else 0,
        elements=sum(matmul.elements for matmul in clean.found) if clean else 0,
        wrong=_wrong(clean),
        faults=wrong,
    )


def _matmul_recorder(compute: str) -> MatmulRecorder | None:
    """In fp32, matmuls are not recomputed, because the tensors of an update have the same information."""
    return None if compute == "float32" else MatmulRecorder(contract=BF16_IO)


def _wrong(matmuls: MatmulRecorder | None) -> tuple[Matmul, ...]:
    return () if matmuls is None else tuple(matmul for matmul in matmuls.found if matmul.wrong)


def _packed(runner: UpdateRunner) -> PackedErrors:
    """Errors of the results of an update with packed rows, without faults and with one fault. Tensors inside
    modules are omitted, because they have another shape with packed rows."""

    def errors(fault: ActorFault | None) -> Errors:
        found = runner.errors(packed=True, fault=fault)
        modules = (f"{FORWARD}/", f"{BACKWARD}/")
        return {label: error for label, error in found.items() if not label.startswith(modules)}

    try:
        return PackedErrors(errors=errors(None), faulty=errors(PACKED_FAULT))
    except ImportError as error:
        return PackedErrors(skipped=f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - whatever the device raises is measured
        return PackedErrors(error=f"{type(error).__name__}: {error}".splitlines()[0][:LONGEST_ERROR])


def _same(one: NDArray[np.float64], other: NDArray[np.float64] | None) -> bool:
    return other is not None and np.array_equal(one, other, equal_nan=True)
