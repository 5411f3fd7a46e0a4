"""Installs the references for the operators of serving engines: ATB's and vllm-ascend's own kernels.

torch_npu declares ATB's operators. vllm-ascend's operators (`_C_ascend`) exist only after its extension was
imported, so they are replaced then. A call of an operator without a reference raises NotImplementedError.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from harness.devices.sim.operators.aten_kernels import refusing_kernel
from harness.devices.sim.operators.custom_kernels import install_reference, no_workspace
from harness.devices.sim.operators.dispatch import Machine
from harness.devices.sim.operators.torch_internals import DEVICE_KEY, has_kernel, overload, override, schemas
from harness.devices.sim.references import (
    atb_attention,
    cache,
    matmul,
    norm,
    quantization,
    rotary,
    routing,
    sampling,
)

EXTENSION = "vllm_ascend.vllm_ascend_C"

Reference = Callable[..., Any]

ATB: Mapping[str, Reference] = {
    "_npu_flash_attention": atb_attention.flash_attention,
    "_npu_flash_attention_qlens": atb_attention.flash_attention_qlens,
    "_npu_flash_attention_unpad": atb_attention.flash_attention_unpad,
    "_npu_flash_attention_unpad_v2": atb_attention.flash_attention_unpad_by_kernel,
    "_npu_flash_attention_v2.out": atb_attention.flash_attention_with_bias,
    "_npu_flash_attention_v3": atb_attention.flash_attention_by_type,
    "_npu_flash_attention_prefix_v2.out": atb_attention.flash_attention_prefix,
    "_npu_matmul_add_fp32": matmul.matmul_add_fp32,
    "_npu_paged_attention": atb_attention.paged_attention,
    "_npu_paged_attention_mla": atb_attention.paged_attention_mla,
    "_npu_paged_attention_splitfuse": atb_attention.paged_attention_splitfuse,
    "_npu_paged_attention_splitfuse_v2": atb_attention.paged_attention_splitfuse_by_type,
    "_npu_paged_attention_v2.out": atb_attention.paged_attention_with_bias,
    "_npu_quantize_per_tensor": quantization.quantize_per_tensor,
    "_npu_reshape_and_cache": cache.reshape_and_cache,
    "_npu_reshape_and_cache_siso": cache.reshape_and_cache_siso,
    "_npu_rotary_embedding": rotary.rotary_embedding,
    "npu_multi_head_latent_attention": atb_attention.latent_attention_alone,
    "npu_multi_head_latent_attention.lse": atb_attention.latent_attention,
    "npu_multi_head_latent_attention.lse_out": atb_attention.latent_attention_into,
    "npu_multi_head_latent_attention.out": atb_attention.latent_attention_alone_into,
    "npu_paged_cache_load": cache.paged_cache_load,
    "npu_paged_cache_load.out": cache.paged_cache_load_into,
}


ENGINE: Mapping[str, Reference] = {
    "get_masked_input_and_mask": sampling.masked_input_and_mask,
    "moe_gating_top_k": routing.gating_top_k,
    "npu_add_rms_norm_bias": norm.add_rms_norm_bias,
    "npu_apply_top_k_top_p": sampling.npu_top_k_top_p,
    "npu_gemma_rms_norm": norm.npu_gemma_rms_norm,
    "npu_moe_init_routing_custom": routing.npu_moe_init_routing_v2,
    "swap_blocks": cache.swap_blocks,
}
"""vllm-ascend's kernels. Most of them compute the same as an operator of torch_npu with another name."""

# It returns a tensor that shares the memory without keeping it alive. Here the tensor itself is returned.
_WEAK_REFERENCE = "weak_ref_tensor"
_ATB_DIMENSIONS = 8
# They ask only for the size of memory, and return that memory.
_WORKSPACES = {
    "_npu_paged_attention_get_workspace",
    "_npu_paged_attention_v2_get_workspace",
    "_npu_multi_head_latent_attention_get_workspace.lse",
}


def install_serving(machine: Machine) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Register ATB's references now, and vllm-ascend's when its extension is imported.

    Returns the names of the operators registered now, and the torch libraries, which the caller must keep.
    """
    atb = torch.library.Library("atb", "IMPL")
    limited = {name: _with_dimension_limit(reference) for name, reference in ATB.items()}
    installed = _install(atb, "atb", limited, machine)
    sys.meta_path.insert(0, _AfterExtension(machine))
    return tuple(f"atb::{name}" for name in installed), (atb,)


def _with_dimension_limit(reference: Reference) -> Reference:
    """A reference of ATB, whose tensors have at most eight dimensions (atb::MAX_DIM)."""

    def run(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dim() > _ATB_DIMENSIONS:
                raise RuntimeError(
                    f"ATB tensor supports at most {_ATB_DIMENSIONS} dimensions, but got {value.dim()}"
                )
        return reference(*args, **kwargs)

    return run


def install_engine(machine: Machine) -> Any:
    """Register the references of `_C_ascend`, whose schemas must exist. The caller must keep the library."""
    library = torch.library.Library("_C_ascend", "IMPL")
    _install(library, "_C_ascend", ENGINE, machine)
    if overload("_C_ascend", _WEAK_REFERENCE) is not None:
        override(library, _WEAK_REFERENCE, lambda tensor: tensor, DEVICE_KEY)
    return library


def _install(
    library: Any, namespace: str, references: Mapping[str, Reference], machine: Machine
) -> Sequence[str]:
    """Install the references of a namespace. Its other operators raise NotImplementedError when called.

    Returns the names of the operators with a reference.
    """
    installed = []
    for name in [name for name, _schema in schemas(namespace)]:
        operator = overload(namespace, name)
        if operator is None or name == _WEAK_REFERENCE:
            continue
        if name in _WORKSPACES:
            override(library, name, no_workspace, DEVICE_KEY)
        elif name in references:
            install_reference(library, name, operator, references[name], machine)
            installed.append(name)
        elif has_kernel(f"{namespace}::{name}", DEVICE_KEY):
            override(library, name, refusing_kernel(f"not simulated: {namespace}::{name}"), DEVICE_KEY)
    return installed


class _AfterExtension:
    """An import hook that installs the references after vllm-ascend's extension was loaded."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._libraries: list[Any] = []
        # True while the other finders look for the extension, so that this one is skipped.
        self._is_searching = False

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the extension, with a loader that also installs. None for every other module."""
        if name != EXTENSION or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._libraries.append(install_engine(self._machine))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
