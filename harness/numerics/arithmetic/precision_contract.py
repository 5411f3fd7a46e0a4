"""A precision contract: the rounding errors that an implementation guarantees not to exceed. Tolerances are
derived from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A floating-point format.

    unit_roundoff: half the distance from 1 to the next number (IEEE 754; bfloat16 has 8 significant bits).
    flush: magnitude below which a result may become zero. Accelerators flush subnormals of fp32 and bf16 to
        zero, so it is the smallest normal number there. They keep subnormals of fp16, so for fp16 it
        is the distance between two subnormals.
    largest: the largest finite number.
    """

    name: str
    unit_roundoff: float
    flush: float
    largest: float


FORMATS: Mapping[str, FloatFormat] = {
    entry.name: entry
    for entry in (
        FloatFormat(name="fp64", unit_roundoff=2.0**-53, flush=0.0, largest=1.797e308),
        FloatFormat(name="fp32", unit_roundoff=2.0**-24, flush=2.0**-126, largest=3.4028234e38),
        FloatFormat(name="fp16", unit_roundoff=2.0**-11, flush=2.0**-24, largest=65504.0),
        FloatFormat(name="bf16", unit_roundoff=2.0**-8, flush=2.0**-126, largest=3.3895313e38),
    )
}


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The guarantees of an implementation. Every tolerance follows from them and from the inputs of the case.

    io: format of inputs and of returned gradients.
    compute: format to which every elementwise operation rounds.
    accumulate: format of the partial sums of reductions.
    exp_ulp, exp_ulp_per_unit: the error of exp(x) is at most `exp_ulp + exp_ulp_per_unit * |x|` units in the
        last place (one unit is two unit roundoffs). The full profile of OpenCL allows 3, CUDA documents 2. A
        fast exponential whose range reduction is one multiplication by a rounded log2(e) adds 2 u |x|, that
        is 1 per unit of |x|.
    function_ulp: the same for log, sqrt and division; the full profile of OpenCL allows 3.
    lanes: a reduction uses at least this many independent partial sums (a vector register of fp32 lanes).
    chain: constant of the probabilistic summation bound chain * sqrt(n) * u (Higham and Mary 2019, "A new
        approach to probabilistic rounding error analysis": with lambda = 5 it fails with a probability below
        1e-5).
    safety: factor on the first-order terms that covers the second-order terms, which the analysis ignores.
    trailing: rounded operations that an autograd engine may add between the last analysed value and the
        returned gradient (multiplication by the incoming gradient, masks, casts).
    """

    name: str
    io: str
    compute: str = "fp32"
    accumulate: str = "fp32"
    exp_ulp: float = 3.0
    exp_ulp_per_unit: float = 1.0
    function_ulp: float = 3.0
    lanes: int = 16
    chain: float = 5.0
    safety: float = 2.0
    trailing: int = 8

    @property
    def unit(self) -> float:
        """Unit roundoff of elementwise operations."""
        return FORMATS[self.compute].unit_roundoff

    @property
    def ulp(self) -> float:
        """Unit in the last place of elementwise results, relative to the result."""
        return 2 * self.unit

    @property
    def unit_sum(self) -> float:
        """Unit roundoff of accumulation."""
        return FORMATS[self.accumulate].unit_roundoff

    @overload
    def growth(self, terms: int) -> float: ...

    @overload
    def growth(self, terms: Array) -> Array: ...

    def growth(self, terms: int | Array) -> float | Array:
        """Error bound of a sum of `terms` numbers in any order, in unit roundoffs of the sum of their
        magnitudes. It depends on the longest chain of dependent additions and never exceeds the number of
        terms."""
        longest = terms / self.lanes + math.log2(self.lanes) + 1.0
        grown: Array = np.minimum(terms, self.chain * np.sqrt(longest) + 2.0)
        return float(grown) if isinstance(terms, int) else grown

    def io_rounding(self, values: Array) -> Array:
        """Largest error of rounding `values` to the io format, including subnormals."""
        form = FORMATS[self.io]
        return np.asarray(np.maximum(form.unit_roundoff * np.abs(values), form.flush / 2))

    @property
    def underflow(self) -> float:
        """Absolute error of an elementwise result that underflows in the compute format."""
        return FORMATS[self.compute].flush

    @property
    def largest(self) -> float:
        """The largest intermediate that does not overflow."""
        return FORMATS[self.compute].largest

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Contract:
        """The contract in a JSON object; TypeError if fields are missing or unknown."""
        return cls(**data)


FP32 = Contract(name="fp32", io="fp32")
BF16_IO = Contract(name="bf16-io", io="bf16")
FP16_IO = Contract(name="fp16-io", io="fp16")
BF16_APPROXIMATE = Contract(name="bf16-approximate", io="bf16", compute="bf16")
"""Every operator may read and return bf16, and its functions may be wrong by several ulp of bf16."""

FP16_NATIVE = Contract(name="fp16-native", io="fp16", compute="fp16")
"""The same with fp16, for which vector units have instructions."""

BF16_AUTOCAST = Contract(
    name="bf16-autocast",
    io="bf16",
    compute="bf16",
    # The result is rounded once to bf16: half an ulp. Each error of one ulp in the fp32 computation before it
    # adds 2^-16 ulps of bf16.
    exp_ulp=0.5 + 3 * 2.0**-16,
    exp_ulp_per_unit=2.0**-16,
    function_ulp=0.5 + 3 * 2.0**-16,
)
"""The guarantee of autocast to bf16: every operator may read and return bf16, and computes in fp32 inside."""

BF16_NATIVE = replace(
    BF16_AUTOCAST,
    name="bf16-native",
    # An operation rounds its computed operand, not the exact one, which is larger by (1 + u) for each
    # operation before it. The longest chain of a loss has fewer than 24: (1 + 2^-8)^24 = 1.098.
    safety=1.1,
    # The factor by which older releases scale the loss of a micro-batch. The gradient that comes in is 1, and
    # masks, casts and the choice of a branch do not round.
    trailing=1,
)
"""A loss whose tensors stay in bf16. Each operator rounds once, and the operations of the loss are counted:
a tolerance of several ulp for each would accept a gradient that is 10 % wrong. That operators compute in fp32
inside is what torch does on CPUs and GPUs; for NPUs it is an assumption."""

CONTRACTS: Mapping[str, Contract] = {
    contract.name: contract
    for contract in (
        *(FP32, BF16_IO, FP16_IO, BF16_NATIVE, FP16_NATIVE),
        *(BF16_AUTOCAST, BF16_APPROXIMATE),
    )
}


def round_to(values: ArrayLike, format_name: str) -> Array:
    """Round float64 to the nearest number of a format (ties to even), as float64; overflow gives infinity,
    NaN stays NaN."""
    exact = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if format_name == "fp64":
            return exact
        if format_name == "fp16":
            return exact.astype(np.float16).astype(np.float64)
        single = exact.astype(np.float32)
        if format_name == "fp32":
            return single.astype(np.float64)
        return _single_to_bfloat16(single)


def _single_to_bfloat16(single: NDArray[np.float32]) -> Array:
    bits = np.ascontiguousarray(single).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    result = rounded.astype(np.uint32).view(np.float32).astype(np.float64)
    return np.where(np.isnan(single), np.nan, result).reshape(single.shape)
