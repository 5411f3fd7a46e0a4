"""Layouts of fused attention, and which keys a query sees.

B is the batch, S the sequence length, N the number of heads, D the head size, H = N*D, and T the number of
all tokens of packed sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from harness.devices.sim.references.precision import refuse, wide

# The operator returns the softmax statistics once for each lane of a vector register block.
_LANES = 8
_LEFT_UP_CAUSAL, _RIGHT_DOWN_CAUSAL, _BAND, _PREFIX, _COMPRESSED_PREFIX = 2, 3, 4, 5, 6
_BATCH_AND_SEQUENCE = {"BSH": (0, 1), "SBH": (1, 0), "BSND": (0, 1), "BNSD": (0, 2)}


class Span(NamedTuple):
    """A sequence: its rows among all queries, its rows among all keys, and (batch, queries, keys)."""

    rows: slice
    keys: slice
    sizes: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the tensors of one call are laid out.

    query_ends, key_ends: where the sequences of TND end, counted from the first token. Ends that do not grow
    are of sequences without tokens. same_as_input: whether the statistics of TND have the order of the input;
    otherwise those of a sequence are ordered by heads, then tokens.
    """

    name: str
    heads: int
    query_ends: Sequence[int] | None = None
    key_ends: Sequence[int] | None = None
    same_as_input: bool = False

    @property
    def packed(self) -> bool:
        """Whether the sequences are packed into one dimension."""
        return self.name == "TND"

    def sequences(self, query: torch.Tensor, key: torch.Tensor) -> list[Span]:
        """The sequences of a packed batch; any other layout as one span with the whole batch."""
        if not self.packed:
            if self.name not in _BATCH_AND_SEQUENCE:
                raise NotImplementedError(f"npu_fusion_attention is not simulated in layout {self.name!r}")
            batch, sequence = _BATCH_AND_SEQUENCE[self.name]
            sizes = query.shape[batch], query.shape[sequence], key.shape[sequence]
            everything = slice(None)
            return [Span(everything, everything, sizes)]
        if self.query_ends is None or self.key_ends is None:
            raise RuntimeError("npu_fusion_attention: layout TND needs actual_seq_qlen and actual_seq_kvlen")
        spans: list[Span] = []
        start, key_start = 0, 0
        for query_end, key_end in zip(self.query_ends, self.key_ends, strict=True):
            queries, keys = max(0, query_end - start), max(0, key_end - key_start)
            rows, key_rows = slice(start, start + queries), slice(key_start, key_start + keys)
            spans.append(Span(rows, key_rows, (1, queries, keys)))
            start, key_start = start + queries, key_start + keys
        left_out = start != query.shape[0] or key_start != key.shape[0]
        refuse("npu_fusion_attention", **{"tokens of no sequence": left_out})
        return spans

    def to_bnsd(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """Queries, keys or values with `heads` heads as (B, N, S, D), at least in float32."""
        x = wide(x)
        if self.packed:
            return x.transpose(0, 1)[None]
        if self.name == "BSND":
            return x.transpose(1, 2)
        if self.name == "BSH":
            return x.unflatten(-1, (heads, -1)).transpose(1, 2)
        if self.name == "SBH":
            return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
        return x

    def from_bnsd(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `to_bnsd`."""
        if self.packed:
            return x[0].transpose(0, 1)
        if self.name == "BSND":
            return x.transpose(1, 2)
        if self.name == "BSH":
            return x.transpose(1, 2).flatten(2)
        if self.name == "SBH":
            return x.permute(2, 0, 1, 3).flatten(2)
        return x

    def key_heads(self, query: torch.Tensor, key: torch.Tensor) -> int:
        """The number of heads of the keys: at most those of the queries."""
        if self.name in {"BSH", "SBH"}:
            return int(key.shape[-1]) * self.heads // max(1, int(query.shape[-1]))
        return int(key.shape[1 if self.name in {"BNSD", "TND"} else 2])

    def from_statistics(self, x: torch.Tensor) -> torch.Tensor:
        """Expands (B, N, S, 1) to equal lanes; the statistics of a packed sequence get the shape (S, N, 8).

        Without `same_as_input`, their memory has the order (N, S, 8), as MindSpeed reads it
        (mindspeed/core/context_parallel/utils.py, flatten_softmax).
        """
        lanes = x.expand(*x.shape[:-1], _LANES)
        if not self.packed:
            return lanes
        heads, rows = lanes.shape[1:3]
        return lanes[0].transpose(0, 1) if self.same_as_input else lanes[0].reshape(rows, heads, _LANES)

    def to_statistics(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `from_statistics`."""
        if not self.packed:
            return x[..., :1]
        rows, heads, _lanes = x.shape
        ordered = x.transpose(0, 1) if self.same_as_input else x.reshape(heads, rows, _LANES)
        return ordered[None, ..., :1]


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """Which keys a query sees. True in a mask hides an entry.

    before, after: the extent of the window of sparse modes 0 and 4. prefix: for each sequence the number of
    keys that all its queries see, in sparse modes 5 and 6. Without a mask all keys are visible, whatever the
    mode says (documentation of npu_fusion_attention).
    """

    mask: torch.Tensor | None
    sparse_mode: int
    before: int
    after: int
    prefix: Sequence[int] | None

    def __post_init__(self) -> None:
        if self.sparse_mode not in range(_COMPRESSED_PREFIX + 1):
            refuse("npu_fusion_attention", **{f"sparse_mode {self.sparse_mode}": True})

    def hidden(self, queries: int, keys: int, sequence: int | None) -> torch.Tensor | None:
        """The mask of packed sequence `sequence`, or for None of a whole batch; None if nothing is hidden."""
        if self.mask is None:
            return None
        rows, columns = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
        # The mask argument is a fixed triangle in these modes. The mode says in which corner the diagonal is.
        if self.sparse_mode == _LEFT_UP_CAUSAL:
            return columns > rows
        last = rows + keys - queries
        if self.sparse_mode == _RIGHT_DOWN_CAUSAL:
            return columns > last
        if self.sparse_mode == _BAND:
            return (columns > last + self.after) | (columns < last - self.before)
        if self.sparse_mode == _COMPRESSED_PREFIX:
            return (columns > last) & (columns >= self._prefixes(sequence))
        mask = self.mask.bool()
        if sequence is not None:
            mask = mask[..., :queries, :keys]
        if self.sparse_mode == 0 and (self.after < keys or self.before < queries):
            mask = mask | (columns - rows > self.after) | (rows - columns > self.before)
        return mask

    def _prefixes(self, sequence: int | None) -> torch.Tensor:
        if not self.prefix:
            raise RuntimeError("npu_fusion_attention: sparse_mode 6 needs prefix")
        chosen = self.prefix if sequence is None else [self.prefix[sequence]]
        return torch.tensor(list(chosen)).view(-1, 1, 1, 1)
