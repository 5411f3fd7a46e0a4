"""Cases of policy losses: GRPO and GSPO on-policy, near to and far from the policy, edge cases, production
sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harness.numerics.loss.cases import case_inputs
from harness.numerics.loss.cases.case_builder import FOUR_MODES, CaseBuilder, Drift
from harness.numerics.loss.cases.loss_case import LossCase, LossSettings

TWO_MODES = ("token-mean", "seq-mean-token-mean")
GSPO_MODE = ("seq-mean-token-mean",)
PAPER_CLIP = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
"""GSPO, arXiv:2507.18071, section 5.1."""

PAPER_MEANS = (1e-4, -1e-4, 2e-4, -2e-4, 6e-4, -6e-4, 9e-4, -9e-4)
"""Mean log-ratios inside and outside the clip range of the paper, so that every seed has both."""

GLOBAL_BATCH = {"dp_size": 4, "batch_num_tokens": 2600, "global_batch_size": 64, "loss_scale_factor": 100}
PRODUCTION: LossSettings = {
    "batch_num_tokens": 2048 * 600,
    "global_batch_size": 2048,
    "loss_scale_factor": 8192,
}
"""A micro-batch of 8 responses from a batch of 128 x 16 with 600 tokens on average, as in GSPO recipes for 16
cards: gradients are near 5e-7."""

NARROW_PRODUCTION: LossSettings = {
    "batch_num_tokens": 100 * 600,
    "global_batch_size": 100,
    "loss_scale_factor": 256,
}
"""The same for arithmetic in fp16. Its largest number is 65,504, and numbers near 5e-7 have three bits there,
so a trainer scales such losses."""


def _tokens(spread: float) -> Drift:
    return lambda rng, batch, tokens: case_inputs.token_drift(rng, batch, tokens, spread)


def _rows(row: float, token: float) -> Drift:
    return lambda rng, batch, tokens: case_inputs.row_drift(rng, batch, tokens, row, token)


def grpo(build: CaseBuilder) -> Iterator[LossCase]:
    """GRPO at every distance from the policy, with every shape of the mask."""
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
    modes = (*FOUR_MODES, "token-sum")
    yield from build.policy("grpo-global", _tokens(0.1), modes=modes, settings=GLOBAL_BATCH)
    yield from build.policy("grpo-padding-not-finite", _tokens(0.1), padding="not-finite", modes=TWO_MODES)


def _far_tokens(rng: np.random.Generator, batch: int, tokens: int) -> NDArray[np.float64]:
    """Log-ratios with heavy tails; the first two tokens of each sequence are beyond the clamp of the
    log-ratio at 20."""
    drift = rng.standard_t(2, (batch, tokens)) * 1.2
    drift[:, :2] = (-25.0, 25.0)
    return drift


def gspo(build: CaseBuilder) -> Iterator[LossCase]:
    """GSPO at every distance from the policy, with the clip range of the paper and with wider ones."""
    policy = partial(build.policy, capped=False)
    paper = partial(policy, settings=PAPER_CLIP, row_means=PAPER_MEANS)
    adapting_paper = partial(paper, adapts=True)
    narrow = {"clip_ratio_low": 0.03, "clip_ratio_high": 0.04}
    adapting = partial(policy, adapts=True, settings=narrow)
    drift = _rows(0.05, 0.1)
    on_modes = (*FOUR_MODES, "token-sum")
    yield from adapting_paper("gspo-on", _rows(3e-4, 2e-3), shape=(16, 128), modes=on_modes)
    yield from paper("gspo-near", _rows(1e-3, 0.02))
    yield from policy("gspo-off", _rows(0.25, 0.1), advantage="sequence", adapts=True)
    yield from policy("gspo-far", _far_rows, advantage="alternating", settings={"clip_ratio_high": 0.2})
    yield from adapting("gspo-edge", drift, lengths="edge", padding="finite", advantage="sequence")
    narrower = {"clip_ratio_low": 0.01, "clip_ratio_high": 0.01}
    yield from adapting("gspo-skew", _rows(0.02, 0.05), lengths="skew", shape=(16, 128), settings=narrower)
    yield from adapting("gspo-weighted", drift, weighted=True, modes=GSPO_MODE)
    yield from adapting("gspo-turns", drift, lengths="turns", modes=GSPO_MODE)
    yield from adapting_paper("gspo-large", _rows(5e-4, 0.02), shape=(64, 512), modes=TWO_MODES)
    wide = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1}
    yield from adapting("gspo-token", _rows(0.1, 0.1), advantage="token", modes=GSPO_MODE, settings=wide)
    yield from adapting("gspo-global", drift, modes=TWO_MODES, settings={**narrow, **GLOBAL_BATCH})
    yield from policy(
        "gspo-padding-not-finite", drift, padding="not-finite", modes=GSPO_MODE, settings=narrow
    )


def _far_rows(rng: np.random.Generator, batch: int, tokens: int) -> NDArray[np.float64]:
    """Log-ratios of which every fifth sequence is beyond the clamp of the sequence ratio at e^10."""
    beyond = np.arange(batch)[:, None] % 5 == 1
    level = np.where(beyond, 12.0, rng.normal(0.0, 4.0, (batch, 1)))
    return np.asarray(level + rng.normal(0.0, 0.5, (batch, tokens)))


def production(build: CaseBuilder) -> Iterator[LossCase]:
    """One micro-batch of a production step, with global denominators and with the scale of releases without
    them."""
    shape = (8, 1024)
    batch = NARROW_PRODUCTION if build.is_narrow else PRODUCTION
    scaled: LossSettings = {"scale": 8 / float(batch["global_batch_size"])}
    grpo, gspo = _tokens(0.03), _rows(6e-4, 0.02)
    gspo_policy = partial(build.policy, shape=shape, row_means=PAPER_MEANS, capped=False, adapts=True)
    yield from build.policy("grpo-production", grpo, shape=shape, settings=batch)
    yield from gspo_policy("gspo-production", gspo, settings={**batch, **PAPER_CLIP})
    # Sums over more tokens than any kernel reduces in one block, and many data-parallel ranks.
    ranks: LossSettings = {**batch, "dp_size": 16}
    # Two rows of a group may both have the advantage 0.
    long = partial(build.policy, shape=(2, 8192), advantage="sequence")
    yield from long("grpo-long", grpo, modes=TWO_MODES, settings=ranks)
    yield from build.policy("grpo-accumulated", grpo, shape=shape, modes=TWO_MODES, settings=scaled)
    yield from gspo_policy("gspo-accumulated", gspo, modes=GSPO_MODE, settings={**scaled, **PAPER_CLIP})
