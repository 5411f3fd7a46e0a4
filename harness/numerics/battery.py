"""The battery: seeded, self-contained cases that make wrong losses observable.

Inputs matter more than thresholds: a naive battery (Gaussian log-ratios, no padding, clip 0.2) makes 34 of
64 semantic mutants observable at all; this one all 64. Names do not depend on the seed. Cases under another
contract than fp32 carry its name (`policy/grpo-near/token-mean@bf16-io`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics import inputs
from harness.numerics.case import REQUIRED, ROBUSTNESS, Case
from harness.numerics.contract import BF16_IO, FP32, Contract

DEFAULT_SEED = 20250718
"""Any number would do; 2025-07-18 is near GSPO's publication."""

FOUR_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
TWO_MODES = ("token-mean", "seq-mean-token-mean")
GSPO_MODE = ("seq-mean-token-mean",)
PAPER_CLIP = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
"""GSPO, arXiv:2507.18071, section 5.1."""

PAPER_MEANS = (1e-4, -1e-4, 2e-4, -2e-4, 6e-4, -6e-4, 9e-4, -9e-4)
"""Mean log-ratios inside and outside the paper's clip range, so that every draw has both."""

GLOBAL_BATCH = {"dp_size": 4, "batch_num_tokens": 2600, "global_batch_size": 64, "loss_scale_factor": 100}
PRODUCTION = {
    "batch_num_tokens": 2048 * 600,
    "global_batch_size": 2048,
    "loss_scale_factor": 8192,
}
"""A micro-batch of 8 responses of a 128 x 16 batch with 600 tokens on average, as GSPO recipes on 16 cards
run it: gradients near 5e-7."""

NO_SETTINGS: Mapping[str, Any] = {}

Drift = Callable[[np.random.Generator, int, int], NDArray[np.float64]]


def battery(*, seed: int = DEFAULT_SEED, contract: Contract = FP32) -> tuple[Case, ...]:
    """All cases for one contract, deterministic in the seed."""
    builder = _Builder(seed, contract)
    cases = [
        *_grpo(builder),
        *_gspo(builder),
        *_production(builder),
        *_divergences(builder),
        *_logits(builder),
    ]
    if contract.io == "fp32":
        cases += [*_advantages(builder), *_aggregations(builder), *_weights(builder)]
    return tuple(cases)


def default_battery(seed: int = DEFAULT_SEED) -> tuple[Case, ...]:
    """What a cell is asked: fp32 and bf16 io, both with fp32 arithmetic, which is what verl promises."""
    return (*battery(seed=seed, contract=FP32), *battery(seed=seed, contract=BF16_IO))


class _Builder:
    """Names and rounds cases; each family draws from its own stream, so that adding one does not change the
    others."""

    def __init__(self, seed: int, contract: Contract) -> None:
        self.seed = seed
        self.contract = contract
        self.suffix = "" if contract is FP32 else f"@{contract.name}"

    def rng(self, family: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *family.encode()])

    def case(
        self,
        name: str,
        arrays: dict[str, NDArray[Any]],
        gradient_of: str,
        settings: dict[str, Any],
        *,
        requires: Sequence[str] = (),
        severity: str = REQUIRED,
    ) -> Case:
        return Case(
            name=name + self.suffix,
            operation=name.split("/", maxsplit=1)[0],
            contract=self.contract,
            inputs=inputs.for_device(self.contract, arrays),
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
        padding: str = "as-drawn",
        weighted: bool = False,
        row_means: Sequence[float] = (),
        requires: Sequence[str] = (),
        settings: Mapping[str, Any] = NO_SETTINGS,
    ) -> Iterator[Case]:
        """One case per aggregation mode over the same inputs.

        capped: the new log-probability stays below 0. row_means: mean log-ratio of each sequence, repeated.
        """
        rng = self.rng(family)
        mask = inputs.mask(rng, *shape, lengths)
        old = inputs.old_log_probs(rng, *shape)
        moved = drift(rng, *shape)
        new = old + (inputs.recentred(moved, mask, row_means) if row_means else moved)
        arrays: dict[str, NDArray[Any]] = {
            "old_log_prob": old,
            "log_prob": np.minimum(new, -1e-5) if capped else new,
            "advantages": inputs.advantages(rng, *shape, advantage),
            "response_mask": mask,
        }
        if weighted:
            arrays["rollout_is_weights"] = np.minimum(np.exp(rng.normal(0.0, 0.3, shape)), 2.0)
            requires = (*requires, "rollout_is_weights")
        _fill_padding(arrays, padding)
        loss_mode = "gspo" if family.startswith("gspo") else "vanilla"
        base = {"loss_mode": loss_mode, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
        for mode in modes:
            yield self.case(
                f"policy/{family}/{mode}",
                arrays,
                "log_prob",
                {**base, **settings, "loss_agg_mode": mode},
                requires=(loss_mode, *requires, *_needs(mode, settings)),
                severity=ROBUSTNESS if padding == "not-finite" else REQUIRED,
            )


def _needs(mode: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    needs = ("token-sum",) if mode == "token-sum" else ()
    return (*needs, "global_denominators") if "batch_num_tokens" in settings else needs


def _fill_padding(arrays: dict[str, NDArray[Any]], style: str) -> None:
    """Whatever stands in padding must not matter: large finite numbers, or NaN and infinities."""
    if style == "as-drawn":
        return
    garbage = {
        "finite": {"old_log_prob": -60.0, "log_prob": 60.0, "advantages": 7.0},
        "not-finite": {"old_log_prob": -np.inf, "log_prob": np.nan, "advantages": 7.0},
    }[style]
    padding = arrays["response_mask"] == 0
    for name, value in garbage.items():
        arrays[name] = np.where(padding, value, arrays[name])


def _tokens(spread: float) -> Drift:
    return lambda rng, batch, tokens: inputs.token_drift(rng, batch, tokens, spread)


def _rows(row: float, token: float) -> Drift:
    return lambda rng, batch, tokens: inputs.row_drift(rng, batch, tokens, row, token)


def _grpo(build: _Builder) -> Iterator[Case]:
    yield from build.policy("grpo-on", _tokens(1e-3), modes=(*FOUR_MODES, "token-sum"))
    yield from build.policy("grpo-near", _tokens(0.08))
    yield from build.policy("grpo-off", _tokens(0.6), advantage="sequence")
    yield from build.policy(
        "grpo-far", _far_tokens, advantage="token", capped=False, settings={"clip_ratio_c": 10.0}
    )
    yield from build.policy("grpo-edge", _tokens(0.3), lengths="edge", padding="finite", advantage="sequence")
    yield from build.policy("grpo-skew", _tokens(0.1), lengths="skew", shape=(16, 128))
    yield from build.policy("grpo-weighted", _tokens(0.2), weighted=True, modes=TWO_MODES)
    yield from build.policy("grpo-turns", _tokens(0.2), lengths="turns", modes=TWO_MODES)
    yield from build.policy("grpo-large", _tokens(0.05), shape=(64, 512), modes=TWO_MODES)
    yield from build.policy("grpo-global", _tokens(0.1), settings=GLOBAL_BATCH)
    yield from build.policy("grpo-padding-not-finite", _tokens(0.1), padding="not-finite", modes=TWO_MODES)


def _far_tokens(rng: np.random.Generator, batch: int, tokens: int) -> NDArray[np.float64]:
    """Heavy tails, and the first two tokens of each sequence beyond the clamp of the log-ratio at 20."""
    drift = rng.standard_t(2, (batch, tokens)) * 1.2
    drift[:, :2] = (-25.0, 25.0)
    return drift


def _gspo(build: _Builder) -> Iterator[Case]:
    narrow = {"clip_ratio_low": 0.03, "clip_ratio_high": 0.04}
    yield from build.policy(
        "gspo-on",
        _rows(3e-4, 2e-3),
        shape=(16, 128),
        modes=(*FOUR_MODES, "token-sum"),
        settings=PAPER_CLIP,
        row_means=PAPER_MEANS,
        capped=False,
    )
    yield from build.policy(
        "gspo-near", _rows(1e-3, 0.02), settings=PAPER_CLIP, row_means=PAPER_MEANS, capped=False
    )
    yield from build.policy("gspo-off", _rows(0.25, 0.1), advantage="sequence", capped=False)
    yield from build.policy(
        "gspo-far", _far_rows, advantage="alternating", capped=False, settings={"clip_ratio_high": 0.2}
    )
    yield from build.policy(
        "gspo-edge",
        _rows(0.05, 0.1),
        lengths="edge",
        padding="finite",
        advantage="sequence",
        capped=False,
        settings=narrow,
    )
    yield from build.policy(
        "gspo-skew",
        _rows(0.02, 0.05),
        lengths="skew",
        shape=(16, 128),
        capped=False,
        settings={"clip_ratio_low": 0.01, "clip_ratio_high": 0.01},
    )
    yield from build.policy(
        "gspo-weighted", _rows(0.05, 0.1), weighted=True, modes=GSPO_MODE, capped=False, settings=narrow
    )
    yield from build.policy(
        "gspo-turns", _rows(0.05, 0.1), lengths="turns", modes=GSPO_MODE, capped=False, settings=narrow
    )
    yield from build.policy(
        "gspo-large",
        _rows(5e-4, 0.02),
        shape=(64, 512),
        modes=TWO_MODES,
        settings=PAPER_CLIP,
        row_means=PAPER_MEANS,
        capped=False,
    )
    yield from build.policy(
        "gspo-token",
        _rows(0.1, 0.1),
        advantage="token",
        modes=GSPO_MODE,
        capped=False,
        settings={"clip_ratio_low": 0.1, "clip_ratio_high": 0.1},
    )
    yield from build.policy(
        "gspo-global", _rows(0.05, 0.1), modes=TWO_MODES, capped=False, settings={**narrow, **GLOBAL_BATCH}
    )
    yield from build.policy(
        "gspo-padding-not-finite",
        _rows(0.05, 0.1),
        padding="not-finite",
        modes=GSPO_MODE,
        capped=False,
        settings=narrow,
    )


def _far_rows(rng: np.random.Generator, batch: int, tokens: int) -> NDArray[np.float64]:
    """Every fifth sequence is beyond the clamp of the sequence ratio at e^10."""
    beyond = np.arange(batch)[:, None] % 5 == 1
    level = np.where(beyond, 12.0, rng.normal(0.0, 4.0, (batch, 1)))
    return np.asarray(level + rng.normal(0.0, 0.5, (batch, tokens)))


def _production(build: _Builder) -> Iterator[Case]:
    """One micro-batch of a production step: by global denominators, and as releases without them scale it."""
    shape = (8, 1024)
    scaled = {"scale": 8 / 2048}
    grpo, gspo = _tokens(0.03), _rows(6e-4, 0.02)
    yield from build.policy("grpo-production", grpo, shape=shape, settings=PRODUCTION)
    yield from build.policy(
        "gspo-production",
        gspo,
        shape=shape,
        settings={**PRODUCTION, **PAPER_CLIP},
        row_means=PAPER_MEANS,
        capped=False,
    )
    yield from build.policy("grpo-accumulated", grpo, shape=shape, modes=TWO_MODES, settings=scaled)
    yield from build.policy(
        "gspo-accumulated",
        gspo,
        shape=shape,
        modes=GSPO_MODE,
        settings={**scaled, **PAPER_CLIP},
        row_means=PAPER_MEANS,
        capped=False,
    )


def _divergences(build: _Builder) -> Iterator[Case]:
    for size, spread in (("small", 3e-3), ("middle", 0.3), ("large", 4.0)):
        rng = build.rng(f"kl-{size}")
        mask = inputs.mask(rng, 16, 64, "edge")
        ref = inputs.old_log_probs(rng, 16, 64)
        drift = rng.normal(0.0, spread, ref.shape)
        if size == "large":
            drift[3, :8] = rng.choice([-25.0, 25.0], 8)
        arrays = {
            "log_prob": np.where(mask > 0, ref + drift, 50.0),
            "ref_log_prob": np.where(mask > 0, ref, -50.0),
            "response_mask": mask,
        }
        for estimator in ("k1", "abs", "k2", "k3", "k3+"):
            yield build.case(
                f"kl/{estimator}/{size}",
                arrays,
                "log_prob",
                {"kl_penalty": estimator, "loss_agg_mode": "token-mean"},
                requires=("kl:k3+",) if estimator == "k3+" else (),
            )


def _logits(build: _Builder) -> Iterator[Case]:
    batch, tokens, vocabulary = 4, 8, 512
    for shape, spread, offset in (("flat", 1.0, 0.0), ("peaked", 8.0, 0.0), ("offset", 3.0, 95.0)):
        rng = build.rng(f"logits-{shape}")
        mask = inputs.mask(rng, batch, tokens, "edge")
        logits = rng.normal(0.0, spread, (batch, tokens, vocabulary)) + offset
        incoming = np.where(mask > 0, rng.normal(size=(batch, tokens)), 0.0) / mask.sum()
        labels = rng.integers(0, vocabulary, (batch, tokens))
        if shape != "offset":
            yield build.case(
                f"entropy/{shape}",
                {"logits": logits, "response_mask": mask},
                "logits",
                {"loss_agg_mode": "token-mean"},
            )
        yield build.case(
            f"logprob/{shape}",
            {"logits": logits, "labels": labels, "weights": incoming, "response_mask": mask},
            "logits",
            {},
        )


def _advantages(build: _Builder) -> Iterator[Case]:
    rng = build.rng("advantages")
    size = 24
    mask = inputs.mask(rng, size, 8)
    even = np.repeat(np.arange(size // inputs.GROUP), inputs.GROUP)
    ragged = np.repeat(np.arange(5), (5, 1, 7, 1, 10))
    equal = np.concatenate([np.full(8, 0.7), np.full(8, 0.1), np.full(8, 1.0 / 3.0)])
    plain: dict[str, Any] = {"norm_adv_by_std_in_grpo": True}
    for name, rewards, index, settings in (
        ("binary", (rng.random(size) < 0.5).astype(np.float64), even, plain),
        ("real", rng.normal(size=size), even, plain),
        ("offset", 100.0 + rng.normal(0.0, 0.5, size), even, plain),
        ("low-variance", 0.5 + rng.normal(0.0, 2e-3, size), even, plain),
        ("ragged", rng.normal(size=size), ragged, plain),
        ("dr-grpo", rng.normal(size=size), ragged, {"norm_adv_by_std_in_grpo": False}),
        ("equal-rewards", equal, np.repeat(np.arange(3), 8), plain),
    ):
        arrays = {"rewards": rewards, "index": index, "response_mask": mask}
        yield build.case(f"advantage/{name}", arrays, "", settings)


def _aggregations(build: _Builder) -> Iterator[Case]:
    rng = build.rng("aggregation")
    losses = rng.normal(size=(8, 16))
    for name, mask, modes in (
        ("mixed", inputs.mask(rng, 8, 16), FOUR_MODES),
        ("empty-row", inputs.mask(rng, 8, 16, "edge"), FOUR_MODES),
    ):
        for mode in modes:
            yield _aggregation(build, f"aggregation/{name}/{mode}", losses, mask, mode)
    empty = np.zeros((8, 16))
    yield _aggregation(build, "aggregation/all-masked", losses, empty, "token-mean")
    for mode in FOUR_MODES[1:]:
        yield _aggregation(build, f"aggregation/all-masked/{mode}", losses, empty, mode)


def _aggregation(build: _Builder, name: str, losses: NDArray[Any], mask: NDArray[Any], mode: str) -> Case:
    return build.case(name, {"losses": losses, "response_mask": mask}, "losses", {"loss_agg_mode": mode})


def _weights(build: _Builder) -> Iterator[Case]:
    rng = build.rng("weights")
    shape = (16, 32)
    mask = inputs.mask(rng, *shape, "edge")
    old = inputs.old_log_probs(rng, *shape)
    for level, spread in (("token", 0.6), ("sequence", 0.1)):
        arrays = {
            "old_log_prob": old,
            "rollout_log_prob": old - rng.normal(0.0, spread, shape),
            "response_mask": mask,
        }
        for name, bounds, needs in (
            ("truncated", {"upper": 2.0}, "weights"),
            ("icepop", {"lower": 0.5, "upper": 2.0}, "weights:icepop"),
        ):
            yield build.case(
                f"weights/{name}/{level}", arrays, "", {"rollout_is": level, **bounds}, requires=(needs,)
            )
