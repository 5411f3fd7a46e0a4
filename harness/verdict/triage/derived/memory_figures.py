"""Derives from the figures in torch's message who uses the memory of a card that is used up."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause

#: Contexts, graphs and buffers of collectives of a process take less of a card than this share.
OTHERS_SHARE = 0.15
_GIB = {"B": 2**-30, "bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}
_SIZE = r"(?P<{}>\d{{1,6}}(?:\.\d{{1,4}})?) (?P<{}_unit>bytes|[KMG]iB)"


def _size(name: str) -> str:
    return _SIZE.format(name, name)


_TRIED = rf"out of memory\. Tried to allocate {_size('tried')}"
#: torch_npu, and torch up to 2.1.
_LISTED = re.compile(
    rf"{_TRIED} \([A-Z]{{3}} \d{{1,4}}; {_size('total')} total capacity; "
    rf"{_size('allocated')} already allocated; .{{0,60}}?{_size('free')} free; "
    rf"{_size('reserved')} reserved in total by PyTorch"
)
#: torch from 2.2 on.
_TOLD = re.compile(
    rf"{_TRIED}\. GPU \d{{1,4}} has a total capacity of {_size('total')} of which {_size('free')} is free\."
    rf".{{0,300}}?{_size('allocated')} is allocated by PyTorch.{{0,120}}? "
    rf"and {_size('unallocated')} is reserved"
)


@dataclass(frozen=True, kw_only=True)
class MemoryFigures:
    """What torch says of a failed allocation, in GiB. reserved: by its allocator, including `allocated`."""

    tried: float
    total: float
    free: float
    allocated: float
    reserved: float

    @property
    def outside(self) -> float:
        """What is used neither by torch's allocator of this process nor free."""
        return max(0.0, self.total - self.free - self.reserved)


def memory_figures(text: str) -> MemoryFigures | None:
    """The figures in torch's message; None if it does not have all of them."""
    found = _LISTED.search(text) or _TOLD.search(text)
    if found is None:
        return None
    sizes = {
        name: float(found[name]) * _GIB[found[f"{name}_unit"]]
        for name in found.groupdict()
        if "_" not in name
    }
    reserved = sizes.get("reserved", sizes["allocated"] + sizes.get("unallocated", 0.0))
    return MemoryFigures(
        tried=sizes["tried"],
        total=sizes["total"],
        free=sizes["free"],
        allocated=sizes["allocated"],
        reserved=reserved,
    )


def memory_cause(text: str) -> DerivedCause | None:
    """Who uses the memory of the card, by the figures of the message; None if they do not tell."""
    seen = memory_figures(text)
    if seen is None or seen.tried <= seen.free:
        return None
    reserved, total = f"{seen.reserved:.1f} GiB", f"{seen.total:.1f} GiB"
    if seen.outside > OTHERS_SHARE * seen.total and seen.outside >= seen.tried:
        return _cause(
            f"of {total} of memory of this card {seen.outside:.1f} GiB are used outside of torch's allocator "
            f"of this process, which has {reserved}: by other processes on the card, or by memory that this "
            "process has taken past torch",
            "look in `npu-smi info` or `nvidia-smi` for other processes on this card (an earlier job, a "
            "rollout engine beside the trainer); lower rollout.gpu_memory_utilization, and turn on offload",
            is_open=True,
        )
    freed = seen.reserved - seen.allocated
    if freed >= seen.tried:
        return _cause(
            f"the memory of this card is fragmented: torch's allocator keeps {freed:.1f} GiB of freed "
            f"memory, but no block of {seen.tried:.2f} GiB",
            "set expandable_segments:True in PYTORCH_NPU_ALLOC_CONF (on GPUs PYTORCH_CUDA_ALLOC_CONF) where "
            "no memory pool of vLLM's sleep mode is used, or lower gpu_memory_utilization",
        )
    return _cause(
        f"this process itself uses the memory of the card: torch's allocator has {reserved} of {total}, and "
        f"the next {seen.tried:.2f} GiB do not fit",
        "lower the micro batch size, the length of sequences or rollout.gpu_memory_utilization, turn on "
        "offload, or shard over more cards",
    )


def _cause(sentence: str, remedy: str, *, is_open: bool = False) -> DerivedCause:
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=sentence,
        proof=("the figures in the message of torch",),
        packages=(),
        remedy=remedy,
        is_open=is_open,
    )
