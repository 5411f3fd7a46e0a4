"""Program in the cell: one actor update through verl's own classes, recorded tensor by tensor.

    python -m harness.numerics.actor_run --role reference --out reference.npz
    python -m harness.numerics.actor_run --role device --reference reference.npz --out device.json

The reference runs on the CPU in float64, with torch_npu unimportable, once exactly and several times with
every operation off by what the contract permits; how far those scatter is each tensor's tolerance. The
device runs twice, once more while operators are traced, once under each seeded fault, and with packed rows
and fused attention. In bf16 (autocast by verl) every product of a linear layer is recomputed besides.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import HarnessError, InfrastructureError
from harness.numerics.actor_case import DEFAULT_SEED, ActorCase, Arrays
from harness.numerics.actor_faults import FAULTS, GRADIENT_SIGN, ActorFault
from harness.numerics.actor_products import Products
from harness.numerics.case import read_npz, write_npz
from harness.numerics.contract import BF16_AUTOCAST, BF16_IO, FP32, Contract
from harness.numerics.decisions import Clips
from harness.numerics.device import device_facts
from harness.numerics.recorder import BACKWARD, FORWARD, GRADIENT, OUTPUT, PARAMETER, Event, Recorder

FORMAT = "npu-matrix-actor-reference/1"
SAMPLES = 8
"""Perturbed runs. The largest of eight and the contract's safety of two leave a legal device far below: its
errors are not all at their limits at once."""

CONTRACTS: Mapping[str, Contract] = {"float32": FP32, "bfloat16": BF16_AUTOCAST}
PACKED_FAULT = GRADIENT_SIGN
NO_FUSED_ATTENTION = "there is no fused attention on a CPU"
LONGEST_ERROR = 300

Values = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where an update runs: device, dtype, and the mode (a context) every operation runs under."""

    torch: Any
    device: str
    dtype: Any

    def tensor(self, array: NDArray[Any]) -> Any:
        """On the device; floating-point arrays in the dtype."""
        tensor = self.torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self.dtype) if tensor.dtype.is_floating_point else tensor


def run_update(
    case: ActorCase,
    setting: Setting,
    targets: Arrays | None,
    recorder: Recorder,
    *,
    mode: Any,
    fault: ActorFault | None = None,
    path: str = "",
    products: Products | None = None,
) -> Arrays:
    """Log-probabilities, then the update by the path of that name; everything goes to the recorder, matrix
    products to `products`. Returns the targets used."""
    from harness.numerics.actor_paths import actor_class

    torch = setting.torch
    model = build_model(case, setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.update["lr"])
    actor = actor_class(path)(model, optimizer, case, setting.device.split(":", maxsplit=1)[0])
    parameters = list(model.named_parameters())

    def before_step(*_: Any) -> None:
        for name, parameter in parameters:
            recorder.note(GRADIENT, name, parameter.grad)

    optimizer.register_step_pre_hook(before_step)
    _keep_optimizer_in_fp32(optimizer, mode)
    broken = fault.broken(model) if fault else nullcontext()
    watched = products.watching(model) if products else nullcontext()
    tokens = {name: setting.tensor(array) for name, array in case.tokens().items()}
    # The recorder looks first: to watch products each layer gets an input of its own.
    with broken, recorder.watching(model), watched, mode:
        log_probs, entropy = actor.log_probs(tokens)
        valid = tokens["attention_mask"][:, -log_probs.shape[1] :].to(log_probs.device)
        # Masked before either is recorded: both are what the model's operators made.
        scores = {"log_prob": log_probs * valid, "entropy": entropy * valid}
        for name, tensor in scores.items():
            recorder.note(OUTPUT, name, tensor)
        if targets is None:
            targets = case.targets(log_probs.detach().cpu().double().numpy())
        metrics = actor.update(tokens, {name: setting.tensor(array) for name, array in targets.items()})
    for name in sorted(metrics):
        recorder.note(OUTPUT, name, torch.tensor(metrics[name], dtype=torch.float64))
    for name, parameter in parameters:
        recorder.note(PARAMETER, name, parameter)
    return targets


def _keep_optimizer_in_fp32(optimizer: Any, mode: Any) -> None:
    """Whatever the model computes in, verl's optimizer steps in fp32, and so do perturbed runs."""
    contract = getattr(mode, "contract", None)
    if contract is None:
        return
    optimizer.register_step_pre_hook(lambda *_: setattr(mode, "contract", FP32))
    optimizer.register_step_post_hook(lambda *_: setattr(mode, "contract", contract))


def build_model(case: ActorCase, setting: Setting) -> Any:
    """A Qwen2 of the case's shape with the case's weights, on the setting's device."""
    transformers = import_module("transformers")
    config = transformers.Qwen2Config(**case.model)
    config._attn_implementation = case.attention  # noqa: SLF001 - transformers has no other way before construction
    model = transformers.Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        parameter.data = setting.torch.from_numpy(case.draw(name, tuple(parameter.shape)))
    return model.to(device=setting.device, dtype=setting.dtype)


def reference(out: Path, seed: int, *, compute: str = "float32", path: str = "") -> dict[str, Any]:
    """Exact values and tolerances of every tensor; written to `out`."""
    sys.modules["torch_npu"] = None  # type: ignore[assignment]
    torch = start()
    from harness.numerics import stochastic
    from harness.numerics.actor_paths import actor_classes

    started = time.monotonic()
    contract = CONTRACTS[compute]
    case = ActorCase(seed=seed, compute=compute)
    setting = Setting(torch=torch, device="cpu", dtype=torch.float64)
    paths = [known.name for known in actor_classes()]
    exact: Values = {}
    events: list[Event] = []

    def keep(event: Event, values: NDArray[np.float64]) -> None:
        exact[event.label] = values
        events.append(event)

    clips = Clips(case=case)
    with clips.watched():
        mode = stochastic.exact(contract)
        targets = run_update(case, setting, None, Recorder(sink=keep), mode=mode, path=path)
    scatter = dict.fromkeys(exact, 0.0)
    unmodelled: set[str] = set()
    for sample in range(SAMPLES):
        errors: dict[str, float] = {}
        mode = stochastic.perturbed(contract, seed=sample, casts=compute != "float32")
        recorder = Recorder(sink=_into(errors, exact))
        with clips.watched():
            run_update(case, setting, targets, recorder, mode=mode, path=path)
        scatter = {label: max(scatter[label], errors.get(label, np.inf)) for label in scatter}
        unmodelled.update(mode.unmodelled)
    require_comparable(scatter)
    facts = {
        "verl": version("verl"),
        "torch": torch.__version__,
        "samples": SAMPLES,
        "contract": contract.to_json(),
        "paths": paths,
        "slack": clips.slack(contract.safety),
        "unmodelled": sorted(unmodelled),
        "frameworks_loaded": [name for name in ("torch_npu",) if sys.modules.get(name) is not None],
        "seconds": round(time.monotonic() - started, 3),
    }
    tolerances = {
        event.label: contract.safety * scatter[event.label]
        + contract.unit * float(np.linalg.norm(exact[event.label]))
        for event in events
    }
    index = {
        "format": FORMAT,
        "facts": facts,
        "tolerances": tolerances,
        "norms": {label: float(np.linalg.norm(values)) for label, values in exact.items()},
        "labels": list(exact),
        "targets": list(targets),
    }
    arrays: dict[str, NDArray[Any]] = {
        f"exact.{place}": values for place, values in enumerate(exact.values())
    }
    write_npz(out, index, {**arrays, **{f"target.{name}": array for name, array in targets.items()}})
    return facts


def require_comparable(scatter: Mapping[str, float]) -> None:
    """InfrastructureError when a perturbed run lacks a tensor or has another shape: no tolerance follows from
    that, and an infinite one would let everything pass."""
    strange = [label for label, distance in scatter.items() if not np.isfinite(distance)]
    if strange:
        raise InfrastructureError(
            "a perturbed run of the reference is not comparable with the exact one",
            why=f"{len(strange)} tensors are missing, misshapen or not finite, such as {strange[0]}",
            fix="use another seed; if that does not help, report it with the reference's log",
        )


def _into(errors: dict[str, float], exact: Mapping[str, NDArray[np.float64]]) -> Any:
    """A sink that keeps only the distance from the exact values; infinite without a counterpart."""

    def measure(event: Event, values: NDArray[np.float64]) -> None:
        wanted = exact.get(event.label)
        if wanted is None or wanted.shape != values.shape or not np.isfinite(values).all():
            errors[event.label] = np.inf
        else:
            errors[event.label] = float(np.linalg.norm(values - wanted))

    return measure


def device(
    name: str, reference_file: Path, out: Path, seed: int, *, compute: str = "float32", path: str = ""
) -> dict[str, Any]:
    """Errors of every tensor on the device, repeatability, seeded faults; written to `out`."""
    kind = name.split(":", maxsplit=1)[0]
    if kind != "npu":
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
    torch = start(kind)
    index, arrays = read_npz(reference_file, FORMAT)
    exact = {label: arrays[f"exact.{place}"] for place, label in enumerate(index["labels"])}
    targets = {target: arrays[f"target.{target}"] for target in index["targets"]}
    case = ActorCase(seed=seed, compute=compute)
    setting = Setting(torch=torch, device=name, dtype=torch.float32)
    started = time.monotonic()

    def run(sink: Any, *, mode: Any = None, operators: list[str] | None = None, **given: Any) -> None:
        recorder = Recorder(sink=sink, operators=[] if operators is None else operators)
        run_update(case, setting, targets, recorder, mode=mode or nullcontext(), path=path, **given)

    first: Values = {}
    second: Values = {}
    events: list[Event] = []
    errors: dict[str, float] = {}
    products = _products(compute)
    run(lambda event, values: first.update({event.label: values}), products=products)
    run(lambda event, values: second.update({event.label: values}))
    names: list[str] = []
    run(lambda event, _values: events.append(event), mode=tracing(torch, names), operators=names)
    measure = _into(errors, exact)
    for event in events:
        if event.label in first:
            measure(event, first[event.label])
    faulty: dict[str, dict[str, float]] = {}
    faulty_products: dict[str, list[dict[str, Any]]] = {}
    for fault in FAULTS[compute]:
        found, multiplied = faulty.setdefault(fault.id, {}), _products(compute)
        run(_into(found, exact), fault=fault, products=multiplied)
        faulty_products[fault.id] = _wrong(multiplied)
    differing = [label for label, values in first.items() if not _same(values, second.get(label))]
    facts = {
        "device": device_facts(name),
        "verl": version("verl"),
        "path": import_module("harness.numerics.actor_paths").actor_class(path).name,
        "compute": compute,
        "finding": import_module("harness.numerics.actor_paths").finding(path),
        "packed": _packed(replace(case, packed=True), setting, targets, exact, path)
        if kind == "npu"
        else {"why": NO_FUSED_ATTENTION},
        "events": [
            {
                "label": event.label,
                "kind": event.kind,
                "sentence": event.sentence,
                "operators": list(event.operators),
                "error": json_number(errors.get(event.label, np.inf)),
            }
            for event in events
        ],
        "missing": [label for label in index["labels"] if label not in first],
        "differing": differing,
        "faults": {
            fault: {label: json_number(error) for label, error in found.items()}
            for fault, found in faulty.items()
        },
        "products": {
            "count": len(products.found) if products else 0,
            "elements": sum(product.elements for product in products.found) if products else 0,
            "wrong": _wrong(products),
            "faults": faulty_products,
        },
        "seconds": round(time.monotonic() - started, 3),
    }
    out.write_text(json.dumps(facts), encoding="utf-8")
    return facts


def _products(compute: str) -> Products | None:
    """Who judges matrix products: nobody in fp32, where what an update leaves behind shows as much."""
    return None if compute == "float32" else Products(contract=BF16_IO)


def _wrong(products: Products | None) -> list[dict[str, Any]]:
    return [] if products is None else [asdict(product) for product in products.found if product.wrong]


def _packed(
    case: ActorCase, setting: Setting, targets: Arrays, exact: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """Errors of what an update returns and leaves when its rows are packed, clean and under a seeded fault.

    Modules are left out: what passes through them has another shape. why: what the path cannot be run for,
    error: what it raised.
    """

    def errors(fault: ActorFault | None) -> dict[str, float | None]:
        found: dict[str, float] = {}
        recorder = Recorder(sink=_into(found, exact))
        run_update(case, setting, targets, recorder, mode=nullcontext(), fault=fault, path=path)
        return {
            label: json_number(error)
            for label, error in found.items()
            if not label.startswith((f"{FORWARD}/", f"{BACKWARD}/"))
        }

    try:
        return {"errors": errors(None), "faulty": errors(PACKED_FAULT)}
    except ImportError as error:
        return {"why": f"{type(error).__name__}: {error}"}
    except Exception as error:  # noqa: BLE001 - whatever the device raises is a measurement of it
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:LONGEST_ERROR]}


def _same(one: NDArray[np.float64], other: NDArray[np.float64] | None) -> bool:
    return other is not None and np.array_equal(one, other, equal_nan=True)


def json_number(error: float) -> float | None:
    """JSON has no infinity: None is a tensor that is missing, misshapen or not finite."""
    return float(f"{error:.6g}") if np.isfinite(error) else None


def tracing(torch: Any, names: list[str]) -> Any:
    """A mode that notes every operator that computes; those that only move numbers are left out."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from harness.numerics.stochastic import EXACT

    class Tracing(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(not issubclass(kind, torch.nn.Parameter) and kind is not torch.Tensor for kind in types):
                return NotImplemented
            if func.namespace != "profiler" and func.overloadpacket.__name__ not in EXACT:
                names.append(str(func).rpartition(".")[0].removeprefix("aten."))
            return func(*args, **(kwargs or {}))

    return Tracing()


def start(kind: str = "cpu") -> Any:
    """torch and a process group of one, which verl's classes ask for."""
    torch = import_module("torch")
    if kind == "npu":
        import_module("torch_npu")
    torch.manual_seed(0)
    store = Path(tempfile.mkdtemp()) / "store"
    backend = {"npu": "hccl", "cuda": "nccl"}.get(kind, "gloo")
    if kind == "npu":
        torch.npu.set_device(0)
    torch.distributed.init_process_group(backend, init_method=store.as_uri(), rank=0, world_size=1)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)
    return torch


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.numerics.actor_run", description="one actor update"
    )
    parser.add_argument("--role", choices=("reference", "device"), required=True)
    parser.add_argument("--device", default="npu:0", help="npu:0, cpu, cuda:0")
    parser.add_argument("--reference", type=Path, help="what the reference wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--compute", choices=tuple(CONTRACTS), default="float32", help="by verl's autocast")
    parser.add_argument("--path", default="", help="verl's class that trains; its default one without")
    arguments = parser.parse_args(argv)
    given = {"compute": arguments.compute, "path": arguments.path}
    try:
        if arguments.role == "reference":
            facts = reference(arguments.out, arguments.seed, **given)
        else:
            facts = device(arguments.device, arguments.reference, arguments.out, arguments.seed, **given)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        distributed = import_module("torch").distributed
        if distributed.is_initialized():
            distributed.destroy_process_group()
    print(f"{arguments.role} of an actor update with verl {facts['verl']} in {facts['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
