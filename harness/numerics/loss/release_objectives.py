"""The functions that each verl release has, and the objective that it really computes, if it differs from the
standard one.

The differences were found by comparing the functions of the releases with the standard reference. Which
releases and commits have them, and which functions a release has, is read from verl's sources
(`verl_losses_source`) and stored in `verl_losses.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from harness.numerics.loss.cases.loss_case import LossCase, LossSettings
from harness.numerics.loss.verl_losses_source import InstalledLosses, ReleasedLosses
from harness.package import data_file

ReleaseVersion = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ObjectiveDifference:
    """One difference from the standard objective.

    applies: whether it concerns a case. changes: the settings that describe it. consequence: what it changes
    in a training.
    """

    id: str
    what: str
    consequence: str
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


def _has_global_sequences(case: LossCase) -> bool:
    averaged = str(case.setting("loss_agg_mode", "")).startswith("seq-mean")
    return averaged and "global_batch_size" in case.settings and case.setting("dp_size", 1) != 1


def _normalises_over_an_empty_sequence(case: LossCase) -> bool:
    by_sequence = case.setting("normalised", False) and case.setting("rollout_is") == "sequence"
    return bool(by_sequence) and bool((case.inputs["response_mask"].sum(axis=-1) == 0).any())


DIFFERENCES = (
    ObjectiveDifference(
        id="gspo-ignores-loss-agg-mode",
        what="GSPO ignores loss_agg_mode and always computes seq-mean-token-mean",
        consequence="a recipe that sets another mode trains with this one",
        source="verl 0.6.0 to 0.9.0, core_algos.compute_policy_loss_gspo; honoured from 0.9.1",
        changes={"loss_agg_mode": "seq-mean-token-mean"},
        applies=_is_gspo,
    ),
    ObjectiveDifference(
        id="sum-norm-without-sequences",
        what="seq-mean-token-sum-norm divides by the horizon only, not by sequences, without dp_size",
        consequence="the gradient grows with the number of sequences in a micro-batch",
        source="verl up to 0.7.0, core_algos.agg_loss; changed in 0.7.1",
        changes={"sum_norm": "horizon", "dp_size": 1},
        applies=_is_sum_norm,
    ),
    ObjectiveDifference(
        id="empty-sequences-counted",
        what="the mean over sequences includes sequences without valid tokens",
        consequence="each empty response makes the gradient of the others smaller",
        source="verl up to 0.6.0 and commits before 0.7.1 such as ccd7d934, core_algos.agg_loss",
        changes={"empty_rows": "counted"},
        applies=_has_empty_row,
    ),
    ObjectiveDifference(
        id="dp-size-divides",
        what="modes that average over the sequences of the global batch divide by dp_size instead of "
        "multiplying by it",
        consequence="with engine workers, which pass the global batch, gradients are dp_size squared times "
        "too small, so grad_clip and the epsilon of Adam act differently from what the recipe sets; legacy "
        "workers pass no global batch and are not affected",
        source="verl between 0.6.1 and 0.7.0, for example ccd7d934, core_algos.agg_loss",
        changes={"dp_size_divides": True},
        applies=_has_global_sequences,
    ),
    ObjectiveDifference(
        id="weights-count-empty-sequences",
        what="the mean by which weights of sequences are normalised counts sequences without tokens, as 0",
        consequence="in a batch with such sequences all weights, and with them the gradients, are larger: by "
        "the number of sequences, divided by the number of those with tokens",
        source="verl 0.6.1, rollout_corr_helper.compute_rollout_correction_weights",
        changes={"empty_weights": "counted"},
        applies=_normalises_over_an_empty_sequence,
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
    "weights:normalised": "rollout-correction weights cannot be normalised",
}


@dataclass(frozen=True, kw_only=True)
class ReleaseObjective:
    """The objective of one release: the standard one with `differences`.

    capabilities: what this release has. If the installed package lacks one of them, something removed it.
    known: whether this very release or commit was read, so that the check is known to call it correctly.
    """

    version: str
    known: bool
    differences: tuple[ObjectiveDifference, ...]
    capabilities: frozenset[str]

    def released_case(self, case: LossCase) -> tuple[LossCase, tuple[ObjectiveDifference, ...]]:
        """The case as this release computes it, and its differences; the same case if there are none."""
        return released_case(case, self.differences)


def released_case(
    case: LossCase, differences: Iterable[ObjectiveDifference]
) -> tuple[LossCase, tuple[ObjectiveDifference, ...]]:
    """The case as it is computed with those of the differences that concern it."""
    concerned = []
    for difference in differences:
        if difference.applies(case):
            case = case.with_settings(**difference.changes)
            concerned.append(difference)
    return case, tuple(concerned)


def named_differences(names: Iterable[str]) -> tuple[ObjectiveDifference, ...]:
    """The differences with these ids, in the order in which they are applied."""
    wanted = frozenset(names)
    return tuple(entry for entry in DIFFERENCES if entry.id in wanted)


def release_objective(version: str, source: InstalledLosses | None = None) -> ReleaseObjective:
    """The objective of a verl version, or of a commit: `0.7.0.dev0@COMMIT`.

    A commit that is not in `verl_losses.json`, or a release that is newer than all in it, has everything that
    both its neighbours have, and what its source has. The differences are those of its source. source: what
    was read from the installed verl; without it, the differences are those of the next release, or none,
    which is the standard objective.
    """
    number, _, commit = version.partition("@")
    known = known_losses()
    released = known.get(commit or number) or _unknown(number, known, source)
    differences = named_differences(released.differences)
    return ReleaseObjective(
        version=number,
        known=(commit or number) in known,
        differences=differences,
        capabilities=released.capabilities,
    )


def newest_release(difference: str) -> str:
    """The newest release with a difference, "" if none has it."""
    found = [name for name, losses in known_losses().items() if difference in losses.differences]
    return max((name for name in found if parse_release(name)), key=parse_release, default="")  # type: ignore[arg-type]


@cache
def known_losses() -> Mapping[str, ReleasedLosses]:
    """What is known of each release (by its number) and commit."""
    stored = json.loads(data_file("numerics/loss/verl_losses.json").read_text(encoding="utf-8"))
    return {
        name: ReleasedLosses(
            capabilities=frozenset(entry["capabilities"]), differences=frozenset(entry["differences"])
        )
        for name, entry in stored.items()
    }


def _unknown(
    version: str, known: Mapping[str, ReleasedLosses], source: InstalledLosses | None
) -> ReleasedLosses:
    between = _between(version, known)
    if source is None:
        return between
    return ReleasedLosses(
        capabilities=between.capabilities.union(source.capabilities),
        differences=frozenset(source.differences),
    )


def _between(version: str, known: Mapping[str, ReleasedLosses]) -> ReleasedLosses:
    parsed = parse_release(version)
    releases = {number: losses for name, losses in known.items() if (number := parse_release(name))}
    before = [
        number
        for number in releases
        if parsed is None or number < parsed or (number == parsed and ".dev" not in version)
    ]
    after = [number for number in releases if parsed is not None and number >= parsed]
    below = [releases[number] for number in sorted(before)[-1:]]
    above = [releases[number] for number in sorted(after)[:1]]
    offered = [losses.capabilities for losses in (*below, *above)]
    return ReleasedLosses(
        capabilities=frozenset.intersection(*offered) if below else frozenset(),
        differences=above[0].differences if above else frozenset(),
    )


def parse_release(version: str) -> ReleaseVersion | None:
    """`0.7.0.dev0` gives (0, 7, 0): a development version computes what the release that follows computes.
    None without a number."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else None
