"""The decision rule's settings: which series are judged and how, and the error rates, with sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

HIGH_IS_BAD = 1
BOTH_SIDES = 2


@dataclass(frozen=True, kw_only=True)
class Feature:
    """How one telemetry series is judged.

    scale: "plain"; "log" (log(x + offset), for positive quantities whose spread is proportional); "root"
    (square root, which makes the variance of a share nearly constant); "signed-log" (asinh(x / offset), for
    small numbers of either sign). sides: `BOTH_SIDES`, or `HIGH_IS_BAD` where low is never a fault. floor:
    the smallest between-run standard deviation believed, on that scale. noise: what counting alone gives one
    step's value, on that scale; of a mean over n steps less than noise / sqrt(n) is not believed either.
    finite: whether NaN or inf in the series is a failure by itself. spike: whether the largest value is
    judged against the median too. median: whether a part of the series is summed up by its median instead of
    its mean. hint: what to look at when it fails.
    """

    name: str
    scale: str = "plain"
    offset: float = 0.0
    sides: int = BOTH_SIDES
    floor: float = 0.003
    noise: float = 0.0
    finite: bool = False
    spike: bool = False
    median: bool = False
    start: bool = True
    hint: str = ""


# Floors: 0.003 is the standard error of a mean over 256 responses with a standard deviation of 0.05, the
# least a step of the tiny task can resolve; on log scales it means 0.3 %. The mismatch is judged against
# 1e-3 with a floor of 0.5, because its size depends on the device's arithmetic: with 10 references that
# tolerates about 2.5 %, the shift of probabilities when logits of magnitude 5 are rounded to bfloat16 (5 *
# 2^-8 = 2 %).
FEATURES = (
    Feature(
        name="entropy",
        scale="log",
        offset=1e-3,
        finite=True,
        hint="the sampling temperature, the log-softmax and its backward",
    ),
    # A step whose groups are all solved has no gradient, which is no fault, and the logarithm of that
    # outweighs all other steps': 1 of 60 healthy seeds has one, and it failed 1.5 % of the trials.
    Feature(
        name="grad_norm",
        scale="log",
        offset=1e-9,
        finite=True,
        spike=True,
        median=True,
        hint="the scale of the loss: its denominator, masks, the data-parallel size, a missing detach",
    ),
    Feature(
        name="ppo_kl",
        scale="signed-log",
        offset=1e-3,
        finite=True,
        hint="the old log-probabilities and the size of the updates",
    ),
    Feature(name="clip_fraction", scale="root", hint="the policy ratio, its precision, and the clip range"),
    Feature(name="pg_loss", finite=True, hint="the aggregation of the loss and the advantages"),
    Feature(name="response_length", hint="the end token, the response mask and the sampler"),
    Feature(
        name="mismatch",
        scale="log",
        offset=1e-3,
        sides=HIGH_IS_BAD,
        floor=0.5,
        hint="the weights and the temperature the rollout samples with",
    ),
    # verl's own measure of the same, |p_rollout - p_trainer|; where p is near 1 they are equal.
    Feature(
        name="probs_difference",
        scale="log",
        offset=1e-3,
        sides=HIGH_IS_BAD,
        floor=0.5,
        hint="the weights and the temperature the rollout samples with",
    ),
    # One-sided: early low counts have a long lower tail that no Student band fits, and mean slower learning,
    # which the reward shows. Its start is a count of none or one group. While most steps count none, ten
    # references may all agree on none, and one group would be a fault: it failed 0.6 % of healthy trials. The
    # square root of a count (Poisson) has a variance of at most 0.41, here of 32 groups.
    Feature(
        name="zero_variance_groups",
        scale="root",
        noise=math.sqrt(0.41) / math.sqrt(32),
        sides=HIGH_IS_BAD,
        start=False,
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
    """Screen with one run, confirm with up to three.

    screen_alpha 0.15: chance that a healthy stack pays for more runs; two runs whose mean is not suspicious
        pass, others need a third. A healthy verdict so costs at most 1 + 2 * 0.15 = 1.3 runs in the mean
        (measured on recorded healthy runs: 1.11 to 1.16), but for runs that end too early to show the margin
        below (verl's trainer: 1.39).
    confirm_alpha 0.003: chance that a healthy stack fails, split evenly over the second and third run; a
        bound by Bonferroni over statistics and looks, below the 0.5 % the project promises.
    share_alpha 0.05: a statistic fails a stack only if each of its runs lies to the same side by more than
        chance lets one healthy run in 20; a mean that one freak run made is INCONCLUSIVE. A shift that the
        rule finds, of 5 to 7 between-run standard deviations, leaves a run inside 1.9 with a chance of 0.1 %.
    looks, spend: fractions of the planned steps at which a run is tested, and their shares of alpha: little
        early, when curves say little, most at the end (as O'Brien and Fleming, Biometrics 35, 1979).
    most_runs, least_references: candidate runs at most; reference runs at least. A Student band from 5 runs
        finds a fault 4 times in 5 only when it moves a statistic by 14 between-run standard deviations,
        from 10 runs by 7, from 20 by 5.
    margin 0.35: a PASS shows with 95 % confidence that area and final reward are not below the reference by
        more than this share of its rise. It is the least that 10 references let a healthy run meet with
        99.9 %: (1.83 + 4.3) Student quantiles x between-run sd 0.04 x sqrt(1.1) / rise 0.75 = 0.34.
    largest_mismatch 0.15: mean probability shift between rollout and trainer over 5 steps that no arithmetic
        explains.
    constant_steps: as many identical rewards from the start mean that it does not depend on the policy.
    twin_steps, twin_limit, twin_series: how long and how far a run may differ from its twin (see `twin`), in
        between-run standard deviations. Measured on 40 seeds of each algorithm: rounding
        every logit to HF32 (2^-11) exceeds 0.03 in the first step on 15 % of the seeds, where it flips a
        sampled token, so all `most_runs` runs must exceed it for a FAIL (0.3 %); a policy loss in bfloat16
        does on 92 % and 100 %, swapped clip bounds on all. fp32 rounding stays below 0.0001. A second step
        would double the flips (28 %) for little.
    accept_early, learned_share: with `accept_early`, a run can PASS at a look before the last one, provided
        the reference's reward has made `learned_share` of its rise by then. Later steps are then not looked
        at, and the decision says so.
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
    twin_series: tuple[str, ...] = TWIN_SERIES
    accept_early: bool = False
    learned_share: float = 0.8
    reward: str = "reward"
    reward_floor: float = 0.003
    features: tuple[Feature, ...] = field(default=FEATURES)

    def steps_at(self, look: int, steps: int) -> int:
        """Steps of a run of `steps` that look number `look` sees."""
        return min(steps, math.ceil(self.looks[look] * steps - 1e-9))

    @property
    def last_look(self) -> int:
        """Index of the look that sees everything."""
        return len(self.looks) - 1
