"""One update through verl's classes: the model, the batch, what is recorded of it, and where it runs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.errors import HarnessError
from harness.numerics.actor.actor_case import ActorCase, Arrays
from harness.numerics.actor.actor_faults import ActorFault
from harness.numerics.actor.matmul_recorder import MatmulRecorder
from harness.numerics.actor.tensor_recorder import GRADIENT, OUTPUT, PARAMETER, TensorRecorder
from harness.numerics.actor.verl_workers import actor_class
from harness.numerics.arithmetic.precision_contract import BF16_AUTOCAST, FP32, Contract

CONTRACTS: Mapping[str, Contract] = {"float32": FP32, "bfloat16": BF16_AUTOCAST}
"""The precision contract of an update that verl computes in a format."""


@dataclass(frozen=True, kw_only=True)
class TensorPlacement:
    """Where an update runs: the module `torch`, a device and a dtype."""

    torch: Any
    device: str
    dtype: Any

    def tensor(self, array: NDArray[Any]) -> Any:
        """The array on the device; floating-point arrays are converted to the dtype."""
        tensor = self.torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self.dtype) if tensor.dtype.is_floating_point else tensor


def run_update(
    case: ActorCase,
    placement: TensorPlacement,
    targets: Arrays | None,
    recorder: TensorRecorder,
    *,
    mode: Any,
    fault: ActorFault | None = None,
    path: str = "",
    matmuls: MatmulRecorder | None = None,
) -> Arrays:
    """Compute log-probabilities, then run the update of the actor class named `path`; returns the targets
    used.

    Every tensor is passed to `recorder`, matmuls of linear layers to `matmuls`.
    """
    torch = placement.torch
    model = build_model(case, placement)
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.update.lr)
    actor = actor_class(path)(model, optimizer, case, placement.device.split(":", maxsplit=1)[0])
    parameters = list(model.named_parameters())

    def before_step(*_: Any) -> None:
        for name, parameter in parameters:
            recorder.note(GRADIENT, name, parameter.grad)

    optimizer.register_step_pre_hook(before_step)
    _keep_optimizer_in_fp32(optimizer, mode)
    injected = fault.injected(model) if fault else nullcontext()
    watched = matmuls.watching(model) if matmuls else nullcontext()
    tokens = {name: placement.tensor(array) for name, array in case.tokens().items()}
    # The recorder comes first, because watching matmuls gives each layer an input tensor of its own.
    with injected, recorder.watching(model), watched, mode:
        log_probs, entropy = actor.log_probs(tokens)
        valid = tokens["attention_mask"][:, -log_probs.shape[1] :].to(log_probs.device)
        # Masked before they are recorded, so that both contain only results of the model's operators.
        scores = {"log_prob": log_probs * valid, "entropy": entropy * valid}
        for name, tensor in scores.items():
            recorder.note(OUTPUT, name, tensor)
        if targets is None:
            targets = case.targets(log_probs.detach().cpu().double().numpy())
        metrics = actor.update(tokens, {name: placement.tensor(array) for name, array in targets.items()})
    for name in sorted(metrics):
        recorder.note(OUTPUT, name, torch.tensor(metrics[name], dtype=torch.float64))
    for name, parameter in parameters:
        recorder.note(PARAMETER, name, parameter)
    return targets


def _keep_optimizer_in_fp32(optimizer: Any, mode: Any) -> None:
    """verl's optimizer steps in fp32 for every compute format, so perturbed runs do the same."""
    contract = getattr(mode, "contract", None)
    if contract is None:
        return
    optimizer.register_step_pre_hook(lambda *_: setattr(mode, "contract", FP32))
    optimizer.register_step_post_hook(lambda *_: setattr(mode, "contract", contract))


def build_model(case: ActorCase, placement: TensorPlacement) -> Any:
    """A Qwen2 with the shape and the weights of the case, on the device of the placement."""
    transformers = import_module("transformers")
    config = transformers.Qwen2Config(**asdict(case.model))
    config._attn_implementation = case.attention  # noqa: SLF001 - transformers has no other way before construction
    model = transformers.Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        parameter.data = placement.torch.from_numpy(case.draw(name, tuple(parameter.shape)))
    return model.to(device=placement.device, dtype=placement.dtype)


def tracing(torch: Any, names: list[str]) -> Any:
    """A mode that records every operator that computes; operators that only move numbers are omitted."""
    # The host imports this module, too, and has no torch.
    from torch.utils._python_dispatch import TorchDispatchMode

    from harness.numerics.arithmetic.stochastic_arithmetic import EXACT

    class Tracing(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(not issubclass(kind, torch.nn.Parameter) and kind is not torch.Tensor for kind in types):
                return NotImplemented
            if func.namespace != "profiler" and func.overloadpacket.__name__ not in EXACT:
                names.append(str(func).rpartition(".")[0].removeprefix("aten."))
            return func(*args, **(kwargs or {}))

    return Tracing()


def start_torch(kind: str = "cpu") -> Any:
    """torch and a process group with one process, which verl's classes require."""
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


class ProgramFacts(Protocol):
    """What every role of a program returns."""

    @property
    def verl(self) -> str:
        """The installed version of verl."""

    @property
    def seconds(self) -> float:
        """The run time."""


def run_role(what: str, work: Callable[[], ProgramFacts]) -> int:
    """Run one role of a program and print its run time; returns the exit code.

    An error of this project is printed to stderr and has its own exit code.
    """
    try:
        facts = work()
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        distributed = import_module("torch").distributed
        if distributed.is_initialized():
            distributed.destroy_process_group()
    print(f"{what} with verl {facts.verl} in {facts.seconds} s")
    return 0
