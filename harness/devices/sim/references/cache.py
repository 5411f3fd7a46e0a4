"""Paged key and value caches. Each slot has one row; slot = block * block size + position in the block.

A cache has the shape (blocks, block size, heads, head size). Attention also accepts the last two flattened.
"""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import refuse


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Write key and value (tokens, heads, head size) into their slots. A negative slot is padding."""
    store_rows(key, key_cache, slot_indices)
    store_rows(value, value_cache, slot_indices)


def reshape_and_cache_siso(key: torch.Tensor, key_cache: torch.Tensor, slot_indices: torch.Tensor) -> None:
    """`reshape_and_cache` with a single cache, as in multi-head latent attention."""
    store_rows(key, key_cache, slot_indices)


def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",  # noqa: ARG001 - host memory has no formats
) -> None:
    """`reshape_and_cache` under its newer name."""
    refuse(
        "npu_scatter_pa_kv_cache",
        compression=any(lengths is not None for lengths in (compress_lens, compress_seq_offsets, seq_lens)),
    )
    reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)


def swap_blocks(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy whole blocks. Each row of `pairs` (n, 2) has a block of `source` and a block of `target`."""
    for from_block, to_block in pairs.tolist():
        target[to_block].copy_(source[from_block])


def store_rows(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write one row per slot. IndexError for a slot outside the cache; a device would overwrite memory."""
    slots = slots.flatten().long()
    is_used = slots >= 0
    used = slots[is_used]
    count = cache.shape[0] * cache.shape[1]
    if used.numel() and int(used.max()) >= count:
        raise IndexError(f"slot {int(used.max())} is outside the cache, which has {count} slots")
    blocks = torch.div(used, cache.shape[1], rounding_mode="floor")
    own = rows.reshape(-1, *cache.shape[2:])[: slots.numel()][is_used]
    cache[blocks, used % cache.shape[1]] = own.to(cache.dtype)


def load_rows(cache: torch.Tensor, table: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    """The first `length` rows (length, heads, head size) of the sequence whose blocks `table` lists."""
    size = cache.shape[1]
    blocks = table[: (length + size - 1) // size].long()
    return cache[blocks].flatten(0, 1)[:length].reshape(length, heads, -1)
