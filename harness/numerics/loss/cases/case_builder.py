"""Builds the cases of a battery: random numbers, names, rounding to the contract, clip ranges that a format
can resolve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.precision_contract import FORMATS, FP32, Contract
from harness.numerics.loss.cases import case_inputs
from harness.numerics.loss.cases.loss_case import LossCase, LossSettings
from harness.numerics.loss.loss_measurements import REQUIRED, ROBUSTNESS

FOUR_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

COARSEST_DECIDED = 2.0**-12
"""Unit roundoff above which arithmetic counts as 16-bit: it is 2^-11 for fp16 and 2^-24 for fp32."""

COARSE_CLIP = {"clip_ratio_low": 0.3, "clip_ratio_high": 0.4}
COARSE_MEANS = (0.1, -0.1, 0.2, -0.2, 0.6, -0.6, 0.9, -0.9)
"""The clip range for 16-bit arithmetic, which cannot resolve narrower bounds: near 1 the numbers of bf16 are
2^-8 and 2^-7 apart, and an exponential may be wrong by three of these steps. Mean log-ratios have at least
this distance from the bounds."""

NARROW_DRIFT = 4.0
"""The largest log-ratio for arithmetic in fp16, in which e^12 is infinite, and a thousand times e^5, too."""

NO_SETTINGS: LossSettings = {}

Drift = Callable[[np.random.Generator, int, int], NDArray[np.float64]]


class CaseBuilder:
    """Names and rounds cases. Each family of cases has its own random numbers, so that adding a family does
    not change the others."""

    def __init__(self, seed: int, contract: Contract) -> None:
        self.seed = seed
        self.contract = contract
        self.suffix = "" if contract is FP32 else f"@{contract.name}"

    @property
    def is_narrow(self) -> bool:
        """Whether the arithmetic has the range of fp16."""
        return self.contract.largest < FORMATS["bf16"].largest

    def drift(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-ratios that the arithmetic can exponentiate and add."""
        return np.clip(values, -NARROW_DRIFT, NARROW_DRIFT) if self.is_narrow else values

    def rng(self, family: str) -> np.random.Generator:
        """The random numbers of one family of cases."""
        return np.random.default_rng([self.seed, *family.encode()])

    def case(
        self,
        name: str,
        arrays: dict[str, NDArray[Any]],
        gradient_of: str,
        settings: LossSettings,
        *,
        requires: Sequence[str] = (),
        severity: str = REQUIRED,
    ) -> LossCase:
        """A case whose arrays are rounded to the io format of the contract."""
        return LossCase(
            name=name + self.suffix,
            operation=name.split("/", maxsplit=1)[0],
            contract=self.contract,
            inputs=case_inputs.for_device(self.contract, arrays),
            gradient_of=gradient_of,
            settings=settings,
            requires=tuple(requires),
            severity=severity,
        )

    def policy(
        self,
        family: str,
        drift: Drift,
        *,
        modes: Sequence[str] = FOUR_MODES,
        shape: tuple[int, int] = (16, 64),
        lengths: str = "mixed",
        advantage: str = "group",
        capped: bool = True,
        adapts: bool = False,
        padding: str = "as-drawn",
        weighted: bool = False,
        row_means: Sequence[float] = (),
        requires: Sequence[str] = (),
        settings: LossSettings = NO_SETTINGS,
    ) -> Iterator[LossCase]:
        """One case for each aggregation mode over the same inputs.

        capped: whether the new log-probability stays below 0.
        adapts: whether 16-bit arithmetic gets a clip range that it can resolve. Otherwise such a case is
            ill-posed there, as it is with the clip range of the paper.
        row_means: mean log-ratio of each sequence, repeated.
        """
        if adapts and self.contract.unit > COARSEST_DECIDED:
            settings, row_means = {**settings, **COARSE_CLIP}, COARSE_MEANS
        rng = self.rng(family)
        mask = case_inputs.mask(rng, *shape, lengths)
        old = case_inputs.old_log_probs(rng, *shape)
        moved = self.drift(drift(rng, *shape))
        new = old + (case_inputs.recentred(moved, mask, row_means) if row_means else moved)
        arrays: dict[str, NDArray[Any]] = {
            "old_log_prob": old,
            "log_prob": np.minimum(new, -1e-5) if capped else new,
            "advantages": case_inputs.advantages(rng, *shape, advantage),
            "response_mask": mask,
        }
        if weighted:
            arrays["rollout_is_weights"] = np.minimum(np.exp(rng.normal(0.0, 0.3, shape)), 2.0)
            requires = (*requires, "rollout_is_weights")
        _fill_padding(arrays, padding)
        loss_mode = "gspo" if family.startswith("gspo") else "vanilla"
        base: LossSettings = {
            "loss_mode": loss_mode,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.28,
            "clip_ratio_c": 3.0,
        }
        for mode in modes:
            yield self.case(
                f"policy/{family}/{mode}",
                arrays,
                "log_prob",
                {**base, **settings, "loss_agg_mode": mode},
                requires=(loss_mode, *requires, *_needs(mode, settings)),
                severity=ROBUSTNESS if padding == "not-finite" else REQUIRED,
            )


def _needs(mode: str, settings: LossSettings) -> tuple[str, ...]:
    needs = ("token-sum",) if mode == "token-sum" else ()
    return (*needs, "global_denominators") if "batch_num_tokens" in settings else needs


def _fill_padding(arrays: dict[str, NDArray[Any]], style: str) -> None:
    """Values on padding, which must not have an effect: large finite numbers, or NaN and infinities."""
    if style == "as-drawn":
        return
    garbage = {
        "finite": {"old_log_prob": -60.0, "log_prob": 60.0, "advantages": 7.0},
        "not-finite": {"old_log_prob": -np.inf, "log_prob": np.nan, "advantages": 7.0},
    }[style]
    padding = arrays["response_mask"] == 0
    for name, value in garbage.items():
        arrays[name] = np.where(padding, value, arrays[name])
