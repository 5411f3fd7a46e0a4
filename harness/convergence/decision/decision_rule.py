"""The decision rule's settings: which series are judged and how, and the error rates, with sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

HIGH_IS_BAD = 1
BOTH_SIDES = 2


@dataclass(frozen=True, kw_only=True)
class Feature:
    """How one telemetry series is judged. A value that is not finite fails the run by itself.

    scale: "plain"; "log" (log(x + offset), for positive quantities whose spread is proportional); "root"
    (square root, which makes the variance of a share nearly constant); "signed-log" (asinh(x / offset), for
    small numbers of either sign). sides: `BOTH_SIDES`, or `HIGH_IS_BAD` if low values are never a fault.
    floor: the smallest between-run standard deviation that is used, on that scale. noise: the standard
    deviation that counting causes in one step, on that scale; for a mean over n steps the floor is at least
    noise / sqrt(n). spike: whether the difference between
    the largest value and the median is judged too. bounded: whether single values that lie far outside count
    less in a mean (`run_summaries.centre_of`). start: whether the first steps are judged. state: whether the
    series describes the policy, so that others are predicted from it (`state_models`). at_equal_state:
    whether the series is compared with this prediction. hint: what to look at if it fails.
    """

    name: str
    scale: str = "plain"
    offset: float = 0.0
    sides: int = BOTH_SIDES
    floor: float = 0.003
    noise: float = 0.0
    spike: bool = False
    bounded: bool = False
    start: bool = True
    state: bool = False
    at_equal_state: bool = True
    hint: str = ""


# Floors: 0.003 is the standard error of a mean over 256 responses with a standard deviation of 0.05, the
# smallest difference that a step of the tiny task can resolve; on log scales it means 0.3 %. The mismatch has
# the offset 1e-3 and the floor 0.5, because its size depends on the device's arithmetic: with 10 reference
# runs this tolerates about 2.5 %, the change of probabilities when logits of magnitude 5 are rounded to
# bfloat16 (5 * 2^-8 = 2 %).
FEATURES = (
    Feature(
        name="entropy",
        scale="log",
        offset=1e-3,
        state=True,
        hint="the sampling temperature, the log-softmax and its backward",
    ),
    # If all groups of a step are solved, its gradient is zero, which is not a fault. Its logarithm would
    # dominate a plain mean over the steps: 1 of 60 healthy seeds has such a step, and a mean failed 1.5 % of
    # the trials. A median would ignore it, but varies by 40 % more between healthy runs than a bounded mean.
    Feature(
        name="grad_norm",
        scale="log",
        offset=1e-9,
        spike=True,
        bounded=True,
        hint="the scale of the loss: its denominator, masks, the data-parallel size, a missing detach",
    ),
    Feature(
        name="ppo_kl",
        scale="signed-log",
        offset=1e-3,
        hint="the old log-probabilities and the size of the updates",
    ),
    Feature(name="clip_fraction", scale="root", hint="the policy ratio, its precision, and the clip range"),
    Feature(name="pg_loss", hint="the aggregation of the loss and the advantages"),
    Feature(name="response_length", state=True, hint="the end token, the response mask and the sampler"),
    Feature(
        name="mismatch",
        scale="log",
        offset=1e-3,
        sides=HIGH_IS_BAD,
        floor=0.5,
        at_equal_state=False,
        hint="the weights and the temperature the rollout samples with",
    ),
    # verl's measure of the mismatch, |p_rollout - p_trainer|; for p near 1 both are equal.
    Feature(
        name="probs_difference",
        scale="log",
        offset=1e-3,
        sides=HIGH_IS_BAD,
        floor=0.5,
        at_equal_state=False,
        hint="the weights and the temperature the rollout samples with",
    ),
    # One-sided: low early counts have a long lower tail that no Student band fits. They mean slower learning,
    # which the reward shows too. The start is not judged, because it is a count of zero or one groups: all
    # ten reference runs can have zero, and a run with one group would fail (0.6 % of healthy trials did). The
    # square root of a Poisson count has a variance of at most 0.41; here the share of 32 groups is judged.
    Feature(
        name="zero_variance_groups",
        scale="root",
        noise=math.sqrt(0.41) / math.sqrt(32),
        sides=HIGH_IS_BAD,
        start=False,
        state=True,
        hint="the grouping of responses and the sampler",
    ),
)
TWIN_SERIES = (
    "reward",
    "entropy",
    "grad_norm",
    "ppo_kl",
    "clip_fraction",
    "pg_loss",
    "response_length",
)
REWARD_HINT = "the advantages (sign, grouping), the optimizer, and the reward function"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The settings of the rule: screen with one run, confirm with up to three runs.

    screen_alpha 0.15: probability that a healthy stack needs more than one run. Two runs whose mean is not
        suspicious pass, others need a third run. On average, a verdict on a healthy stack costs at most
        1 + 2 * 0.15 = 1.3 runs (measured with recorded healthy runs: 1.11 to 1.16), except where runs are too
        short to show the margin below (verl's trainer: 1.39).
    confirm_alpha 0.003: probability that a healthy stack fails, split evenly between the second and third
        run. It is a Bonferroni bound over statistics and looks, below the 0.5 % that the project promises.
    share_alpha 0.05: a statistic fails a stack only if every run deviates to the same side by more than 19 of
        20 healthy runs do. If one unusual run alone determines the mean, the decision is INCONCLUSIVE. For a
        shift that the rule detects (5 to 7 between-run standard deviations), the probability that a run
        deviates by less than 1.9 is 0.1 %.
    looks, spend: the fractions of the planned steps at which a run is tested, and their shares of alpha:
        small early, when curves contain little information, and largest at the end (as O'Brien and Fleming,
        Biometrics 35, 1979).
    most_runs, least_references: the largest number of candidate runs, the smallest number of reference runs.
        With 5 reference runs, a fault is detected in 4 of 5 cases only if it shifts a statistic by 14
        between-run standard deviations; with 10 runs 7, with 20 runs 5.
    margin 0.35: a PASS shows with 95 % confidence that area and final reward are not below the reference by
        more than this share of its rise. It is the smallest margin that a healthy run meets with 99.9 %
        probability when there are 10 reference runs: (1.83 + 4.3) Student quantiles x between-run standard
        deviation 0.04 x sqrt(1.1) / rise 0.75 = 0.34.
    largest_mismatch 0.15: the largest mean probability difference between rollout and trainer over 5 steps
        that arithmetic can explain.
    constant_steps: this many identical rewards at the start mean that the reward does not depend on the
    policy. twin_steps, twin_limit, twin_series: how many steps of a run are compared with its twin (see
    `paired_run`),
        and how far they may differ, in between-run standard deviations. Measured on 40 seeds of each
        algorithm: rounding every logit to HF32 (2^-11) exceeds 0.03 in the first step on 15 % of the seeds,
        where it flips a sampled token, so all `most_runs` runs must exceed it for a FAIL (0.3 %); a policy
        loss in bfloat16 does on 92 % and 100 %, swapped clip bounds on all. fp32 rounding stays below 0.0001.
        A second step would nearly double the flipped tokens (28 %) and detect hardly more faults.
    same_start_limit: the same limit for a reference run that sampled exactly the same in its first step.
        There no token was flipped, and rounding in fp32 stays below 0.0001, so one such run is enough for a
        FAIL.
    accept_early, learned_share: with `accept_early`, a run can PASS at a look before the last one if the
        reference's reward has reached `learned_share` of its rise by then. The decision then says that later
        steps were not judged.
    core: series without which nothing is decided, in reference and candidate: without them, a doubled
        gradient or a wrong sampling temperature would pass as long as the reward rises. For other series that
        the reference lacks, a note says which faults may pass.
    reward, reward_floor, features: the series that must rise, its floor (see `Feature`), the other series.
    """

    screen_alpha: float = 0.15
    confirm_alpha: float = 0.003
    share_alpha: float = 0.05
    looks: tuple[float, ...] = (0.4, 0.6, 1.0)
    spend: tuple[float, ...] = (0.15, 0.25, 0.60)
    most_runs: int = 3
    least_references: int = 10
    margin: float = 0.35
    largest_mismatch: float = 0.15
    constant_steps: int = 10
    twin_steps: int = 1
    twin_limit: float = 0.03
    same_start_limit: float = 0.003
    twin_series: tuple[str, ...] = TWIN_SERIES
    accept_early: bool = False
    learned_share: float = 0.8
    core: tuple[str, ...] = ("entropy", "grad_norm")
    reward: str = "reward"
    reward_floor: float = 0.003
    features: tuple[Feature, ...] = field(default=FEATURES)

    def steps_at(self, look: int, steps: int) -> int:
        """The number of steps that look number `look` tests, in a run of `steps` steps."""
        return min(steps, math.ceil(self.looks[look] * steps - 1e-9))

    @property
    def last_look(self) -> int:
        """The index of the last look, which tests all steps."""
        return len(self.looks) - 1
