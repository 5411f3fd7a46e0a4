"""Paged key and value caches. Each slot has one row; slot = block * block size + position in the block.

A cache has the shape (blocks, block size, heads, head size). Attention also accepts the last two flattened.
"""

from __future__ import annotations

import torch

from harness.devices.sim.references.norm import npu_rms_norm
from harness.devices.sim.references.precision import refuse
from harness.devices.sim.references.rotary import npu_interleave_rope


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


def npu_gather_pa_kv_cache(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    seq_offset: torch.Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Copy the rows of all sequences out of paged caches into key and value, one sequence after the other.

    seq_offset: the row with which each sequence begins; only the first row of a block is supported.
    """
    lengths = (seq_lens.diff() if is_seq_lens_cumsum else seq_lens).tolist()
    size = key_cache.shape[1]
    starts = [0] * len(lengths) if seq_offset is None else seq_offset.tolist()
    refuse(
        "npu_gather_pa_kv_cache",
        **{"a cache of another rank than 4": key_cache.dim() != 4},
        **{"seq_offset within a block": any(start % size for start in starts)},
    )
    for rows, cache in ((key, key_cache), (value, value_cache)):
        done = 0
        for table, start, length in zip(block_tables, starts, lengths, strict=True):
            found = load_rows(cache, table[start // size :], length, cache.shape[2])
            rows[done : done + length] = found.to(rows.dtype)
            done += length


def npu_kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMS norm of the first part of kv (b, 1, s, d + r) and rotation of its rest, written into the caches.

    The rest has its pairs beside each other, as for `npu_interleave_rope`. cache_mode "Norm": caches (b, 1,
    length, ...) and the position of each token in index (b, s). "PA" and "PA_BNSD": caches (blocks, block
    size, 1, ...) and the slot of each token. Returns the caches, the rotated part and the normalised part;
    the last two are 0 unless is_output_kv (op-plugin's npu_kv_rmsnorm_rope_cache.md).
    """
    refuse(
        "npu_kv_rmsnorm_rope_cache",
        **{f"cache_mode {cache_mode}": cache_mode not in {"Norm", "PA", "PA_BNSD"}},
        **{name: value is not None for name, value in others.items()},
    )
    normal, rest = kv.split([gamma.shape[0], cos.shape[-1]], -1)
    y = npu_rms_norm(normal, gamma, epsilon)[0]
    rotated = npu_interleave_rope(rest, cos, sin)
    for rows, cache in ((rotated, k_cache), (y, ckv_cache)):
        if cache_mode == "Norm":
            batch = torch.arange(kv.shape[0])[:, None]
            cache[batch, 0, index.long()] = rows.squeeze(1).to(cache.dtype)
        else:
            store_rows(rows, cache, index)
    if not is_output_kv:
        rotated, y = torch.zeros_like(rotated), torch.zeros_like(y)
    return k_cache, ckv_cache, rotated, y


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
    return cache[blocks].flatten(0, 1)[:length].reshape(length, heads, cache[:1, :1].numel() // heads)


def paged_cache_load(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    seq_starts: torch.Tensor | None = None,
    cumsum: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows (tokens, heads, size) of all sequences from caches (blocks, block size, heads, size).

    context_lens: tokens of each sequence, or with cumsum where each starts, and the end. seq_starts: the
    token of a sequence with which its rows begin, rounded down to its block.
    """
    lengths = context_lens.diff() if cumsum else context_lens
    first = torch.zeros_like(lengths) if seq_starts is None else seq_starts // key_cache.shape[1]
    rows = [
        (table[start:], int(length)) for table, start, length in zip(block_table, first, lengths, strict=True)
    ]
    key, value = (
        torch.cat([load_rows(cache, table, length, cache.shape[2]) for table, length in rows])
        for cache in (key_cache, value_cache)
    )
    return key, value


def paged_cache_load_into(
    *arguments: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_starts: torch.Tensor | None = None,
    cumsum: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`paged_cache_load` into given tensors."""
    found = paged_cache_load(*arguments, seq_starts=seq_starts, cumsum=cumsum)
    return key.copy_(found[0]), value.copy_(found[1])
