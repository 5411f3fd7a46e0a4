"""The update on a device: distances of every tensor, repeatability, seeded faults, packed rows, products."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.cell_program.torch_device import device_facts
from harness.measurements import json_object
from harness.numerics.actor.actor_case import ActorCase, Arrays
from harness.numerics.actor.actor_faults import ACTOR_FAULTS, GRADIENT_SIGN, ActorFault
from harness.numerics.actor.actor_reference import ACTOR_REFERENCE_FORMAT
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
from harness.numerics.arithmetic.precision_contract import BF16_IO
from harness.numerics.loss.cases.loss_case import read_npz

PACKED_FAULT = GRADIENT_SIGN
NO_FUSED_ATTENTION = "there is no fused attention on a CPU"
LONGEST_ERROR = 300


@dataclass(frozen=True, kw_only=True)
class UpdateRunner:
    """Updates of one case on one device. exact: the reference's values by label; targets: those it made."""

    case: ActorCase
    setting: TensorPlacement
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
        products: MatmulRecorder | None = None,
    ) -> None:
        """One update, recorded into the sink; with packed rows if so told."""
        run_update(
            replace(self.case, packed=packed),
            self.setting,
            self.targets,
            TensorRecorder(sink=sink, operators=[] if operators is None else operators),
            mode=mode or nullcontext(),
            fault=fault,
            path=self.path,
            products=products,
        )

    def values(self, products: MatmulRecorder | None = None) -> TensorValues:
        """Every tensor of one update, by label."""
        found: TensorValues = {}
        self.run(lambda event, values: found.update({event.label: values}), products=products)
        return found

    def events(self) -> list[TensorEvent]:
        """Every tensor of one update in the order of its making, with the operators before it."""
        found: list[TensorEvent] = []
        names: list[str] = []
        mode = tracing(self.setting.torch, names)
        self.run(lambda event, _values: found.append(event), mode=mode, operators=names)
        return found

    def errors(self, **given: Any) -> dict[str, float | None]:
        """Distance of every tensor from the exact one, of an update as `run` is told to make it."""
        found: dict[str, float] = {}
        self.run(distances(found, self.exact), **given)
        return {label: json_number(error) for label, error in found.items()}


def measure_on_device(
    name: str, reference_file: Path, out: Path, seed: int, *, compute: str = "float32", path: str = ""
) -> dict[str, Any]:
    """Errors of every tensor on the device, repeatability, seeded faults; written to `out`."""
    from harness.numerics.actor.verl_workers import actor_class, finding

    kind = name.split(":", maxsplit=1)[0]
    if kind != "npu":
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
    torch = start_torch(kind)
    index, arrays = read_npz(reference_file, ACTOR_REFERENCE_FORMAT)
    runner = UpdateRunner(
        case=ActorCase(seed=seed, compute=compute),
        setting=TensorPlacement(torch=torch, device=name, dtype=torch.float32),
        path=path,
        targets={target: arrays[f"target.{target}"] for target in index["targets"]},
        exact={label: arrays[f"exact.{place}"] for place, label in enumerate(index["labels"])},
    )
    started = time.monotonic()
    products = _products(compute)
    first = runner.values(products)
    second = runner.values()
    told = {
        "events": _told(runner.events(), first, runner.exact),
        "missing": [label for label in index["labels"] if label not in first],
        "differing": [label for label, values in first.items() if not _same(values, second.get(label))],
        **_seeded(runner, products),
        "packed": _packed(runner) if kind == "npu" else {"why": NO_FUSED_ATTENTION},
    }
    facts = {
        "device": json_object(device_facts(name)),
        "verl": version("verl"),
        "path": actor_class(path).name,
        "compute": compute,
        "finding": finding(path),
        **told,
        "seconds": round(time.monotonic() - started, 3),
    }
    out.write_text(json.dumps(facts), encoding="utf-8")
    return facts


def _told(
    events: Sequence[TensorEvent], found: TensorValues, exact: Mapping[str, NDArray[np.float64]]
) -> list[dict[str, Any]]:
    """The events with their errors, of the tensors found in an update that was not traced."""
    errors: dict[str, float] = {}
    measure = distances(errors, exact)
    for event in events:
        if event.label in found:
            measure(event, found[event.label])
    return [
        {
            "label": event.label,
            "kind": event.kind,
            "sentence": event.sentence,
            "operators": list(event.operators),
            "error": json_number(errors.get(event.label, np.inf)),
        }
        for event in events
    ]


def _seeded(runner: UpdateRunner, products: MatmulRecorder | None) -> dict[str, Any]:
    """What every tensor and every product becomes under each seeded fault; products: those of a clean run."""
    faulty: dict[str, dict[str, float | None]] = {}
    wrong: dict[str, list[dict[str, Any]]] = {}
    for fault in ACTOR_FAULTS[runner.case.compute]:
        multiplied = _products(runner.case.compute)
        faulty[fault.id] = runner.errors(fault=fault, products=multiplied)
        wrong[fault.id] = _wrong(multiplied)
    told = {
        "count": len(products.found) if products else 0,
        "elements": sum(product.elements for product in products.found) if products else 0,
        "wrong": _wrong(products),
        "faults": wrong,
    }
    return {"faults": faulty, "products": told}


def _products(compute: str) -> MatmulRecorder | None:
    """Who judges matrix products: nobody in fp32, where what an update leaves behind shows as much."""
    return None if compute == "float32" else MatmulRecorder(contract=BF16_IO)


def _wrong(products: MatmulRecorder | None) -> list[dict[str, Any]]:
    return [] if products is None else [asdict(product) for product in products.found if product.wrong]


def _packed(runner: UpdateRunner) -> dict[str, Any]:
    """Errors of what an update returns and leaves when its rows are packed, clean and under a seeded fault.

    Modules are left out: what passes through them has another shape. why: what the path cannot be run for,
    error: what it raised.
    """

    def errors(fault: ActorFault | None) -> dict[str, float | None]:
        found = runner.errors(packed=True, fault=fault)
        modules = (f"{FORWARD}/", f"{BACKWARD}/")
        return {label: error for label, error in found.items() if not label.startswith(modules)}

    try:
        return {"errors": errors(None), "faulty": errors(PACKED_FAULT)}
    except ImportError as error:
        return {"why": f"{type(error).__name__}: {error}"}
    except Exception as error:  # noqa: BLE001 - whatever the device raises is a measurement of it
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:LONGEST_ERROR]}


def _same(one: NDArray[np.float64], other: NDArray[np.float64] | None) -> bool:
    return other is not None and np.array_equal(one, other, equal_nan=True)
