"""An external module that lets verl train on the CPU.

verl supports the devices cuda and npu only. This module adds the functions and registry entries that are
missing for the CPU, and changes no arithmetic. In-cell module; `VERL_USE_EXTERNAL_MODULES` names it before
`verl_plugin`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from harness.convergence.trainer.verl_extensions.verl_plugin import Action, act


def complete_torch_cpu() -> None:
    """Add to `torch.cpu` the memory and random-state functions that verl calls on every device module."""
    nothing: Callable[..., None] = lambda *_values, **_named: None  # noqa: E731
    zero: Callable[..., int] = lambda *_values, **_named: 0  # noqa: E731
    functions: dict[str, Callable[..., object]] = {
        **dict.fromkeys(("empty_cache", "ipc_collect", "reset_peak_memory_stats"), nothing),
        **dict.fromkeys(("reset_accumulated_memory_stats", "set_per_process_memory_fraction"), nothing),
        **dict.fromkeys(("memory_allocated", "memory_reserved"), zero),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), zero),
        "mem_get_info": lambda *_values: (1, 1),
        "get_device_name": lambda *_values: "CPU",
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *_values: torch.get_rng_state(),
        "set_rng_state": lambda state, *_values: torch.set_rng_state(state),
    }
    for name, function in functions.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


def use_gloo() -> None:
    """Create process groups with gloo, the only backend for CPU tensors, whatever backend verl requests."""

    def gloo_for(backend: Any) -> Any:
        return "gloo" if isinstance(backend, str) else backend

    start, group = distributed_c10d.init_process_group, distributed_c10d.new_group

    def init_process_group(backend: Any = None, *values: Any, **named: Any) -> Any:
        return start(gloo_for(backend), *values, **named)

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *values: Any, **named: Any
    ) -> Any:
        return group(ranks, timeout, gloo_for(backend), *values, **named)

    for module in (dist, distributed_c10d):
        module.init_process_group = init_process_group
        module.new_group = new_group


def name_gloo(module: Any) -> None:
    """Replace the backend name in `verl.utils.device`."""
    module.get_nccl_backend = lambda: "gloo"


def gather_vectors(module: Any) -> None:
    """Gather times as vectors in `verl.utils.profiler.performance`: gloo does not gather 0-d tensors."""
    if not hasattr(module, "topk_reduce_ratio_min_max"):
        return

    def topk_reduce_ratio_min_max(timing: float, k: int = 10) -> tuple[float, float, float]:
        del k
        own = torch.tensor([timing], dtype=torch.float32)
        gathered = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own)
        values = torch.cat(gathered)
        share_near_max = (values > 0.9 * values.max()).float().mean()
        return float(share_near_max), float(values.min()), float(values.max())

    module.topk_reduce_ratio_min_max = topk_reduce_ratio_min_max


def register_engine(module: Any) -> None:
    """Register verl's FSDP engine, which runs on the CPU too, for the device `cpu`."""
    engines = module.EngineRegistry._engines  # noqa: SLF001 - verl's decorator registers new classes only
    for by_backend in engines.values():
        for name, by_device in by_backend.items():
            if name in ("fsdp", "fsdp2") and "cuda" in by_device:
                by_device.setdefault("cpu", by_device["cuda"])


def register_platform() -> None:
    """Register a CPU platform where verl has platforms (verl 0.9 and later)."""
    try:
        import verl.plugin.platform as platforms
    except ImportError:
        return

    class CpuPlatform(platforms.PlatformBase):  # type: ignore[misc]
        """The CPU as a platform of verl."""

        device_name = vendor_name = property(lambda _self: "cpu")
        device_module = property(lambda _self: torch.cpu)

        def is_available(self) -> bool:
            return True

        def is_platform_available(self, use_smi_check: bool = False) -> bool:
            del use_smi_check
            return True

        def current_device(self) -> str:
            return "cpu"

        def device_count(self) -> int:
            return 1

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        manual_seed_all = manual_seed

        def nothing(self, *_values: Any, **_named: Any) -> None:
            """Do nothing: a CPU does not need the method."""

        set_device = synchronize = set_allocator_settings = empty_cache = nothing
        profiler_start = profiler_stop = cudart = nothing

        def get_device_capability(self, device_id: int = 0) -> tuple[None, None]:
            del device_id
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CPU_VISIBLE_DEVICES"

        @contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            del msg
            yield

        def ray_resource_name(self) -> str:
            return "GPU"

        def ray_resource_options(self, num: float) -> dict[str, float]:
            return {"num_gpus": num}

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False

    platforms.PlatformRegistry.register(platform="cpu")(CpuPlatform)
    platforms.set_platform(CpuPlatform())


ACTIONS: dict[str, Action] = {
    "verl.utils.device": name_gloo,
    "verl.utils.profiler.performance": gather_vectors,
    "verl.workers.engine.fsdp.transformer_impl": register_engine,
}

# verl would use torch_npu's kernels if it could import them; they do not support CPU tensors.
sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
complete_torch_cpu()
use_gloo()
act(ACTIONS)
register_platform()
