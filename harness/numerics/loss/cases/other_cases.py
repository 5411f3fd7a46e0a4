"""All cases except policy losses: KL, logits, advantages, aggregation, rollout weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.loss.cases import case_inputs
from harness.numerics.loss.cases.case_builder import FOUR_MODES, CaseBuilder
from harness.numerics.loss.cases.loss_case import LossCase, LossSettings

BEYOND_CLAMP = 25.0
"""A log-ratio that is clamped to 20, whose exponential is finite in fp32."""

OVERFLOWING = 95.0
"""A log-ratio whose exponential is infinite in fp32 unless it is clamped."""


def divergences(build: CaseBuilder) -> Iterator[LossCase]:
    """Every KL estimator near the reference policy, far from it, and beyond the clamps."""
    for size, spread in (("small", 3e-3), ("middle", 0.3), ("large", 4.0)):
        rng = build.rng(f"kl-{size}")
        mask = case_inputs.mask(rng, 16, 64, "edge")
        ref = case_inputs.old_log_probs(rng, 16, 64)
        drift = rng.normal(0.0, spread, ref.shape)
        if size == "large":
            drift[3, :8] = rng.choice([-25.0, 25.0], 8)
            drift[3, 8:10] = (-OVERFLOWING, OVERFLOWING)
        arrays = {
            "log_prob": np.where(mask > 0, ref + build.drift(drift), 50.0),
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


def logits(build: CaseBuilder) -> Iterator[LossCase]:
    """Entropy and log-probability of flat, peaked and shifted logits."""
    batch, tokens, vocabulary = 4, 8, 512
    for shape, spread, offset in (("flat", 1.0, 0.0), ("peaked", 8.0, 0.0), ("offset", 3.0, 95.0)):
        rng = build.rng(f"logits-{shape}")
        mask = case_inputs.mask(rng, batch, tokens, "edge")
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


def native_logits(build: CaseBuilder) -> Iterator[LossCase]:
    """Log-probabilities of logits that stay in 16 bits, as a model under autocast returns them."""
    for case in logits(build):
        if case.operation == "logprob":
            yield replace(
                case,
                name=case.name.replace("logprob/", "logprob/native-"),
                settings={**case.settings, "native": True},
            )


def vocabulary(build: CaseBuilder) -> Iterator[LossCase]:
    """Log-probabilities over the vocabulary of Qwen, with labels that need 17 bits."""
    size, labels = 151_936, np.array([[65_536, 151_935]])
    rng = build.rng("vocabulary")
    yield build.case(
        "logprob/vocabulary",
        {
            "logits": rng.normal(0.0, 3.0, (*labels.shape, size)),
            "labels": labels,
            "weights": np.array([[0.5, -0.5]]),
            "response_mask": np.ones(labels.shape),
        },
        "logits",
        {},
    )


def advantages(build: CaseBuilder) -> Iterator[LossCase]:
    """Groups of rewards: binary, real, far from zero, nearly equal, of different sizes, equal."""
    rng = build.rng("advantages")
    size = 24
    mask = case_inputs.mask(rng, size, 8)
    even = np.repeat(np.arange(size // case_inputs.GROUP), case_inputs.GROUP)
    ragged = np.repeat(np.arange(5), (5, 1, 7, 1, 10))
    equal = np.concatenate([np.full(8, 0.7), np.full(8, 0.1), np.full(8, 1.0 / 3.0)])
    plain: LossSettings = {"norm_adv_by_std_in_grpo": True}
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


def aggregations(build: CaseBuilder) -> Iterator[LossCase]:
    """Every aggregation mode, also with empty sequences and without any token."""
    rng = build.rng("aggregation")
    losses = rng.normal(size=(8, 16))
    for name, mask, modes in (
        ("mixed", case_inputs.mask(rng, 8, 16), FOUR_MODES),
        ("empty-row", case_inputs.mask(rng, 8, 16, "edge"), FOUR_MODES),
        ("one-token", np.ones((1, 1)), FOUR_MODES),
    ):
        rows, tokens = mask.shape
        for mode in modes:
            name_of = f"aggregation/{name}/{mode}"
            yield _aggregation(build, name_of, losses[:rows, :tokens], mask, mode)
    empty = np.zeros((8, 16))
    yield _aggregation(build, "aggregation/all-masked", losses, empty, "token-mean")
    for mode in FOUR_MODES[1:]:
        yield _aggregation(build, f"aggregation/all-masked/{mode}", losses, empty, mode)


def _aggregation(
    build: CaseBuilder, name: str, losses: NDArray[Any], mask: NDArray[Any], mode: str
) -> LossCase:
    return build.case(name, {"losses": losses, "response_mask": mask}, "losses", {"loss_agg_mode": mode})


def weights(build: CaseBuilder) -> Iterator[LossCase]:
    """Weights of the rollout correction, truncated and cut on both sides."""
    rng = build.rng("weights")
    shape = (16, 32)
    mask = case_inputs.mask(rng, *shape, "edge")
    old = case_inputs.old_log_probs(rng, *shape)
    for level, spread in (("token", 0.6), ("sequence", 0.1)):
        drift = rng.normal(0.0, spread, shape)
        # A full response far beyond the clamp, one with padding, and padding itself; also on the other side,
        # where a weight is small, but not 0.
        drift[2:4] += OVERFLOWING / 8
        drift[5, :3] = -BEYOND_CLAMP
        arrays = {
            "old_log_prob": old,
            "rollout_log_prob": old - np.where(mask > 0, drift, OVERFLOWING),
            "response_mask": mask,
        }
        for name, bounds, needs in (
            ("truncated", {"upper": 2.0}, "weights"),
            ("icepop", {"lower": 0.5, "upper": 2.0}, "weights:icepop"),
            ("normalised", {"upper": 2.0, "normalised": True}, "weights:normalised"),
        ):
            # Whether sequences without tokens count in the mean differs between releases.
            full = {**arrays, "response_mask": np.maximum(mask, np.arange(shape[1]) == 0)}
            yield build.case(
                f"weights/{name}/{level}",
                full if name == "normalised" else arrays,
                "",
                {"rollout_is": level, **bounds},
                requires=(needs,),
            )
        if level == "sequence":
            yield build.case(
                "weights/normalised/sequences-without-tokens",
                arrays,
                "",
                {"rollout_is": level, "upper": 2.0, "normalised": True},
                requires=("weights:normalised",),
            )
