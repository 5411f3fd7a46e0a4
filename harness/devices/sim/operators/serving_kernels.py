"""Puts references under the operators of serving engines: ATB's, and vllm-ascend's own compiled kernels.

torch_npu declares ATB's operators itself. vllm-ascend's (`_C_ascend`) exist once its extension is
imported, so they are taken over then. An operator without a reference fails with its name.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from harness.devices.sim.operators.aten_kernels import DEVICE_KEY
from harness.devices.sim.operators.dispatch import Machine, make_kernel
from harness.devices.sim.operators.schema_plan import plan_of
from harness.devices.sim.operators.torch_internals import has_kernel, overload, override, schema_of, schemas
from harness.devices.sim.references import (
    atb_attention,
    cache,
    matmul,
    norm,
    rotary,
    routing,
    sampling,
)

EXTENSION = "vllm_ascend.vllm_ascend_C"
NOT_SIMULATED = "not simulated:"

Reference = Callable[..., Any]

ATB: Mapping[str, Reference] = {
    "_npu_flash_attention": atb_attention.flash_attention,
    "_npu_flash_attention_qlens": atb_attention.flash_attention_qlens,
    "_npu_flash_attention_unpad": atb_attention.flash_attention_unpad,
    "_npu_matmul_add_fp32": matmul.matmul_add_fp32,
    "_npu_paged_attention": atb_attention.paged_attention,
    "_npu_paged_attention_splitfuse": atb_attention.paged_attention_splitfuse,
    "_npu_reshape_and_cache": cache.reshape_and_cache,
    "_npu_reshape_and_cache_siso": cache.reshape_and_cache_siso,
    "_npu_rotary_embedding": rotary.rotary_embedding,
}


def _itself(tensor: Any) -> Any:
    """A weak reference saves memory on the device; on the host the tensor does."""
    return tensor


ENGINE: Mapping[str, Reference] = {
    "get_masked_input_and_mask": sampling.masked_input_and_mask,
    "moe_gating_top_k": routing.gating_top_k,
    "npu_add_rms_norm_bias": norm.add_rms_norm_bias,
    "npu_apply_top_k_top_p": sampling.npu_top_k_top_p,
    "npu_gemma_rms_norm": norm.npu_gemma_rms_norm,
    "npu_moe_init_routing_custom": routing.npu_moe_init_routing_v2,
    "swap_blocks": cache.swap_blocks,
}
"""vllm-ascend's kernels that compute what a torch_npu operator computes, under their own names."""

_UNTOUCHED: Mapping[str, Reference] = {"weak_ref_tensor": _itself}


def install_serving(machine: Machine) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Register ATB's references now and the engine's when its extension is imported.

    Names of the operators registered now, and the torch libraries that must stay alive.
    """
    import torch

    atb = torch.library.Library("atb", "IMPL")
    installed = _install(atb, "atb", ATB, machine)
    sys.meta_path.insert(0, _AfterExtension(machine))
    return tuple(f"atb::{name}" for name in installed), (atb,)


def install_engine(machine: Machine) -> Any:
    """Register the references of `_C_ascend`, whose schemas must exist; the library to keep alive."""
    import torch

    library = torch.library.Library("_C_ascend", "IMPL")
    _install(library, "_C_ascend", ENGINE, machine)
    for name, function in _UNTOUCHED.items():
        if overload("_C_ascend", name) is not None:
            override(library, name, function, DEVICE_KEY)
    return library


def _install(
    library: Any, namespace: str, references: Mapping[str, Reference], machine: Machine
) -> Sequence[str]:
    """Kernels for every operator of the namespace: its reference, or one that refuses."""
    installed = []
    for name, schema in list(schemas(namespace)):
        operator = overload(namespace, name)
        if operator is None or name in _UNTOUCHED:
            continue
        reference = references.get(name)
        if reference is None and not has_kernel(f"{namespace}::{name}", DEVICE_KEY):
            continue
        if reference is None:
            override(library, name, _refusing(f"{namespace}::{name}"), DEVICE_KEY)
            continue
        compute = _trimmed(reference, len(schema_of(operator).returns))
        override(library, name, make_kernel(plan_of(operator, schema), compute, machine), DEVICE_KEY)
        installed.append(name)
    return installed


def _trimmed(function: Reference, results: int) -> Reference:
    """Releases differ in how many results an operator has."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return value[:results] if results > 1 else value

    return compute


def _refusing(name: str) -> Reference:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{NOT_SIMULATED} {name}")

    return refuse


class _AfterExtension:
    """Finds vllm-ascend's extension as usual and installs the references once it is loaded."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._libraries: list[Any] = []
        self._busy = False

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the extension with a loader that installs; None for every other module."""
        if name != EXTENSION or self._busy:
            return None
        with self._aside():
            spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._libraries.append(install_engine(self._machine))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    @contextmanager
    def _aside(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
