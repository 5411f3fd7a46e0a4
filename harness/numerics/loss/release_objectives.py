"""The objective that each verl release really computes, if it differs from the standard one.

These differences were found by comparing the functions of the releases with the standard reference and
confirmed in their sources (`verl/trainer/ppo/core_algos.py`, `agg_loss` and `compute_policy_loss_gspo`).
Differences that show in the signature of a function are not listed here, because `verl_adapters` inspects the
functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.numerics.loss.cases.loss_case import LossCase, LossSettings

ReleaseVersion = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ObjectiveDifference:
    """One difference of a range of releases from the standard objective.

    last: the newest release that differs. applies: whether it concerns a case. changes: the settings that
        describe it.
    """

    id: str
    last: ReleaseVersion
    what: str
    source: str
    changes: LossSettings = field(default_factory=dict)
    applies: Callable[[LossCase], bool]


def _is_gspo(case: LossCase) -> bool:
    return bool(
        case.setting("loss_mode") == "gspo" and case.setting("loss_agg_mode") != "seq-mean-token-mean"
    )


def _is_sum_norm(case: LossCase) -> bool:
    mode = str(case.setting("loss_agg_mode", ""))
    return mode == "seq-mean-token-sum-norm" and str(case.setting("loss_mode", "")) != "gspo"


def _has_empty_row(case: LossCase) -> bool:
    mask = case.inputs.get("response_mask")
    averaged = str(case.setting("loss_agg_mode", "")).startswith("seq-mean")
    return mask is not None and averaged and bool((mask.sum(axis=-1) == 0).any())


DIFFERENCES = (
    ObjectiveDifference(
        id="gspo-ignores-loss-agg-mode",
        last=(0, 9, 0),
        what="GSPO ignores loss_agg_mode and always computes seq-mean-token-mean",
        source="verl 0.6.0 to 0.9.0, core_algos.compute_policy_loss_gspo; honoured from 0.9.1",
        changes={"loss_agg_mode": "seq-mean-token-mean"},
        applies=_is_gspo,
    ),
    ObjectiveDifference(
        id="sum-norm-without-sequences",
        last=(0, 7, 0),
        what="seq-mean-token-sum-norm divides by the horizon only, not by sequences, without dp_size",
        source="verl up to 0.7.0, core_algos.agg_loss; changed in 0.7.1",
        changes={"sum_norm": "horizon", "dp_size": 1},
        applies=_is_sum_norm,
    ),
    ObjectiveDifference(
        id="empty-sequences-counted",
        last=(0, 6, 0),
        what="the mean over sequences includes sequences without valid tokens",
        source="verl up to 0.6.0, core_algos.agg_loss; excluded from 0.6.1",
        changes={"empty_rows": "counted"},
        applies=_has_empty_row,
    ),
)

MISSING_CAPABILITIES = {
    "global_denominators": "the loss depends on how a batch is packed into micro-batches: agg_loss takes no "
    "global denominators",
    "rollout_is_weights": "policy losses take no rollout_is_weights",
    "gspo": "there is no GSPO loss",
    "token-sum": "there is no token-sum aggregation",
    "kl:k3+": "the straight-through estimator k3+ is not implemented",
    "weights": "there are no rollout-correction weights with this interface",
    "weights:icepop": "rollout-correction weights cannot have a lower limit (IcePop)",
}


@dataclass(frozen=True, kw_only=True)
class ReleaseObjective:
    """The objective of one release: the standard one with `differences`."""

    version: str
    differences: tuple[ObjectiveDifference, ...]

    def released_case(self, case: LossCase) -> tuple[LossCase, tuple[ObjectiveDifference, ...]]:
        """The case as this release computes it, and its differences; the same case if there are none."""
        concerned = []
        for difference in self.differences:
            if difference.applies(case):
                case = case.with_settings(**difference.changes)
                concerned.append(difference)
        return case, tuple(concerned)


def release_objective(version: str) -> ReleaseObjective:
    """The objective of a verl version. A version without a release number counts as the newest: the standard
    objective."""
    parsed = parse_release(version)
    applicable = () if parsed is None else tuple(entry for entry in DIFFERENCES if parsed <= entry.last)
    return ReleaseObjective(version=version, differences=applicable)


def parse_release(version: str) -> ReleaseVersion | None:
    """`0.7.0.dev0` gives (0, 7, 0): a development version behaves like the release that follows. None without
    a number."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else None
