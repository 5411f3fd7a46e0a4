"""verl on the CPU: an external module that gives verl what it takes for granted of a device.

verl knows cuda and npu. What is missing on the CPU is filled in here, in verl's own registries where it has
them; no arithmetic is touched. In-cell module, loaded with `VERL_USE_EXTERNAL_MODULES` before `plugin`.
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
    """Put into `torch.cpu` the memory and random-state functions that verl calls on every device module."""
    nothing: Callable[..., None] = lambda *_values, **_named: None  # noqa: E731
    zero: Callable[..., int] = lambda *_values, **_named: 0  # noqa: E731
    lacking: dict[str, Any] = {
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
    for name, function in lacking.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


def use_gloo() -> None:
    """Make process groups that verl asks of NCCL with gloo, the only backend for CPU tensors."""

    def backend(asked: Any) -> Any:
        return "gloo" if isinstance(asked, str) and asked != "gloo" else asked

    start, group = distributed_c10d.init_process_group, distributed_c10d.new_group

    def init_process_group(asked: Any = None, *values: Any, **named: Any) -> Any:
        if "backend" in named:
            asked = named.pop("backend")
        return start(backend(asked), *values, **named)

    def new_group(
        ranks: Any = None, timeout: Any = None, asked: Any = None, *values: Any, **named: Any
    ) -> Any:
        if "backend" in named:
            asked = named.pop("backend")
        return group(ranks, timeout, backend(asked), *values, **named)

    for module in (dist, distributed_c10d):
        module.init_process_group = init_process_group
        module.new_group = new_group


def name_gloo(module: Any) -> None:
    """In `verl.utils.device`."""
    module.get_nccl_backend = lambda: "gloo"


def gather_vectors(module: Any) -> None:
    """In `verl.utils.profiler.performance`: gloo refuses to gather 0-d tensors, which NCCL and HCCL take."""
    if not hasattr(module, "topk_reduce_ratio_min_max"):
        return

    def topk_reduce_ratio_min_max(timing: float, k: int = 10) -> tuple[float, float, float]:
        del k
        mine = torch.tensor([timing], dtype=torch.float32)
        gathered = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine)
        values = torch.cat(gathered)
        near = (values > 0.9 * values.max()).float().mean()
        return float(near), float(values.min()), float(values.max())

    module.topk_reduce_ratio_min_max = topk_reduce_ratio_min_max


def register_engine(module: Any) -> None:
    """In verl's FSDP engine: registered for cuda and npu, it runs on the CPU too."""
    engines = module.EngineRegistry._engines  # noqa: SLF001 - its decorator takes classes, not entries
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
        """What verl asks of a platform, answered for the CPU."""

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
            """What a CPU has no need of."""

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

# Whoever looks for it would take its kernels, which know no CPU tensors.
sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
complete_torch_cpu()
use_gloo()
act(ACTIONS)
register_platform()
