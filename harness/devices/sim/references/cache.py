"""Paged key and value caches: one row per slot, slot = block * block size + place in the block.

A cache is (blocks, block size, heads, head size); attention also takes it with the last two flattened.
"""

from __future__ import annotations

import torch


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Write key and value (tokens, heads, head size) into their slots; a negative slot is padding."""
    store_rows(key, key_cache, slot_indices)
    store_rows(value, value_cache, slot_indices)


def reshape_and_cache_siso(key: torch.Tensor, key_cache: torch.Tensor, slot_indices: torch.Tensor) -> None:
    """`reshape_and_cache` for one cache, as latent attention keeps it."""
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
    cache_mode: str | None = "PA_NZ",  # noqa: ARG001 - formats do not exist in host memory
) -> None:
    """`reshape_and_cache` under its newer name."""
    if any(given is not None for given in (compress_lens, compress_seq_offsets, seq_lens)):
        raise NotImplementedError("the simulated device does not compute npu_scatter_pa_kv_cache compressed")
    reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)


def swap_blocks(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy whole blocks; pairs (n, 2) of a block of `source` and one of `target`."""
    for from_block, to_block in pairs.tolist():
        target[to_block].copy_(source[from_block])


def store_rows(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write one row per slot; IndexError for a slot outside the cache, as memory would be overwritten."""
    slots = slots.flatten().long()
    kept = slots >= 0
    used = slots[kept]
    if used.numel() and int(used.max()) >= cache.shape[0] * cache.shape[1]:
        raise IndexError(f"slot {int(used.max())} is outside a cache of {cache.shape[0] * cache.shape[1]}")
    blocks = torch.div(used, cache.shape[1], rounding_mode="floor")
    own = rows.reshape(-1, *cache.shape[2:])[: slots.numel()][kept]
    cache[blocks, used % cache.shape[1]] = own.to(cache.dtype)


def load_rows(cache: torch.Tensor, table: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    """The first `length` rows (length, heads, head size) of the sequence whose blocks `table` lists."""
    size = cache.shape[1]
    blocks = table[: (length + size - 1) // size].long()
    return cache[blocks].flatten(0, 1)[:length].reshape(length, heads, -1)
