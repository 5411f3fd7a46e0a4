"""Student prediction bands of run-level summaries, from reference runs.

For a summary with mean m and standard deviation s over R reference runs, the mean of n new runs of a healthy
stack is m + t s sqrt(1/n + 1/R), where t is Student-distributed with R - 1 degrees of freedom
(Hahn, Meeker and Escobar, *Statistical Intervals*, 2nd ed. 2017, section 4.7). With the scatter of the n runs
in s, too, t has R + n - 2 (the two-sample test with equal variances).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from harness.convergence.decision import run_summaries as summaries
from harness.convergence.decision.decision import Statistic
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.run_summaries import Levels
from harness.convergence.decision.state_models import StateModel, StateModels, state_models
from harness.convergence.decision.student import student_quantile, student_tail
from harness.convergence.telemetry.series import Series

Floats = NDArray[np.float64]

# Coverage of the band that reports draw around each step. It is not used for decisions.
DRAWN_COVERAGE = 0.99


@dataclass(frozen=True, kw_only=True)
class Band:
    """The distribution of one summary over the reference runs. sd is at least the summary's floor."""

    mean: float
    sd: float
    sides: int


@dataclass(frozen=True, kw_only=True)
class ReferenceBands:
    """The bands computed from reference runs.

    steps: planned steps of a run. bands: the band of each summary, one mapping for each look of the rule.
    models: the models of telemetry at equal states, for the last look.
    starts: the first steps of each reference run, in which a candidate of the same seed is recognised.
    drawn: mean, low and high end of each series' band by step. spread: its standard deviation by step.
    notes: runs that were left out, and why. problem: why the reference runs cannot be used, or "".
    """

    steps: int
    runs: int
    rule: Rule
    levels: Levels | None
    bands: tuple[Mapping[str, Band], ...]
    models: StateModels = field(default_factory=StateModels)
    starts: tuple[Mapping[str, Floats], ...] = ()
    drawn: Mapping[str, tuple[Floats, Floats, Floats]]
    spread: Mapping[str, Floats] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str = ""

    def summaries(self, run: Mapping[str, Floats], look: int) -> dict[str, summaries.Summary]:
        """The summaries of the steps of a run that look number `look` tests."""
        return _summaries(self.rule, run, look, self.steps, self.levels, self.models.all_runs)

    def statistics(
        self, runs: Sequence[Mapping[str, Floats]], look: int, *, pooled: bool = False
    ) -> list[Statistic]:
        """The statistics of the mean of `runs` at a look, the most suspicious first.

        pooled: estimate the variance from the scatter of `runs`, too. With few references this finds smaller
        faults that all runs share, and none that only one run has.
        """
        found = [self.summaries(run, look) for run in runs]
        shared = [name for name in self.bands[look] if all(name in one for one in found)]
        result = []
        for name in shared:
            band = self.bands[look][name]
            values = [one[name].value for one in found]
            candidate = float(np.mean(values))
            freedom, sd = self.runs - 1, band.sd
            if pooled:
                scatter = float(np.square(np.subtract(values, candidate)).sum())
                sd = math.sqrt((freedom * sd**2 + scatter) / (freedom + len(runs) - 1))
                freedom += len(runs) - 1
            t = (candidate - band.mean) / (sd * math.sqrt(1 / len(runs) + 1 / self.runs))
            p = min(1.0, student_tail(t, band.sides, freedom) * len(shared))
            reach = (
                student_quantile(1 - self.rule.share_alpha, self.runs - 1)
                * band.sd
                * math.sqrt(1 + 1 / self.runs)
            )
            result.append(
                Statistic(
                    name=name,
                    look=self.rule.looks[look],
                    runs=len(runs),
                    candidate=candidate,
                    reference=band.mean,
                    sd=band.sd,
                    t=t,
                    p=p,
                    shared=min(math.copysign(1, t) * (value - band.mean) for value in values) > reach,
                )
            )
        return sorted(result, key=lambda one: (one.p, -abs(one.t), one.name))

    def detectable(self, references: int) -> float:
        """The shift of a statistic, in between-run standard deviations, that two confirming runs of a faulty
        stack show with a probability of 0.8, if there are that many reference runs. An approximation: the
        non-central distribution is replaced by a shifted one."""
        if references < 3:
            return math.inf
        statistics = max(len(self.bands[self.rule.last_look]), 1)
        level = self.rule.confirm_alpha / (self.rule.most_runs - 1) * self.rule.spend[-1] / statistics
        reach = student_quantile(1 - level / 2, references) + student_quantile(0.8, references)
        return reach * math.sqrt(1 / 2 + 1 / references)

    def shortfall(self, runs: Sequence[Mapping[str, Floats]], look: int) -> float:
        """How far the runs' reward may lie below the reference, as a share of the reference's rise.

        The one-sided 95 % bound, the worse of area and final reward. Negative if the runs are significantly
        better than the reference.
        """
        reward = self.rule.reward
        rise = self.bands[self.rule.last_look][f"{reward}/rise"].mean
        worst = -math.inf
        found = [self.summaries(run, look) for run in runs]
        for name in (f"{reward}/area", f"{reward}/final"):
            band = self.bands[look][name]
            candidate = float(np.mean([one[name].value for one in found]))
            reach = student_quantile(0.95, self.runs - 1) * band.sd * math.sqrt(1 / len(runs) + 1 / self.runs)
            worst = max(worst, (band.mean - candidate + reach) / rise)
        return worst


def arrays(run: Series) -> dict[str, Floats]:
    """The series of a run as float64 arrays."""
    return {name: np.asarray(values, dtype=np.float64).reshape(-1) for name, values in run.items()}


def reference_bands(runs: Sequence[Series], rule: Rule) -> ReferenceBands:
    """The bands of `runs` at every look. Runs that cannot be used are left out and named in the notes."""
    converted = [arrays(run) for run in runs]
    lengths = Counter(len(run.get(rule.reward, ())) for run in converted)
    steps = max(lengths, key=lambda length: (lengths[length], length), default=0)
    usual = _usual_series(converted, rule)
    usable, notes = [], []
    for number, run in enumerate(converted, start=1):
        reason = _unfit(run, rule, steps, usual)
        if reason:
            notes.append(f"reference run {number} is left out: {reason}")
        else:
            usable.append({name: values[:steps] for name, values in run.items()})
    problem = _problem(usable, rule, steps)
    if problem:
        return ReferenceBands(
            steps=steps,
            runs=len(usable),
            rule=rule,
            levels=None,
            bands=(),
            drawn={},
            notes=tuple(notes),
            problem=problem,
        )
    measured = _measured(usable, rule, steps, tuple(notes))
    if len(usable) == len(converted):
        return measured
    before, after = measured.detectable(len(converted)), measured.detectable(len(usable))
    loss = (
        f"{len(usable)} of {len(converted)} reference runs are left: a fault is found in 4 of 5 cases if it "
        f"shifts a statistic by {after:.1f} between-run standard deviations, with all of them by {before:.1f}"
    )
    return replace(measured, notes=(*measured.notes, loss))


def _measured(
    runs: list[dict[str, Floats]], rule: Rule, steps: int, notes: tuple[str, ...]
) -> ReferenceBands:
    start, rise = _start_and_rise(runs, rule)
    levels = Levels(quarter=start + 0.25 * rise, half=start + 0.5 * rise, most=start + 0.75 * rise)
    shared = set.intersection(*(set(run) for run in runs))
    dropped = sorted(set().union(*(set(run) for run in runs)) - shared)
    if dropped:
        notes = (*notes, f"not judged, because not every reference run has it: {', '.join(dropped)}")
    notes = (*notes, *_absent_series(shared, rule))
    runs = [{name: run[name] for name in run if name in shared} for run in runs]
    models = state_models(runs, rule)
    bands = []
    for look in range(len(rule.looks)):
        found = [
            _summaries(rule, run, look, steps, levels, unseen)
            for run, unseen in zip(runs, models.without, strict=True)
        ]
        names = [name for name in found[0] if all(name in one for one in found)]
        bands.append({name: _band([one[name] for one in found]) for name in names})
    stacked = {name: np.sort([run[name] for run in runs], axis=0) for name in sorted(shared)}
    return ReferenceBands(
        steps=steps,
        runs=len(runs),
        rule=rule,
        levels=levels,
        bands=tuple(bands),
        models=models,
        starts=tuple({name: run[name][: rule.twin_steps] for name in run} for run in runs),
        drawn={name: _drawn(values) for name, values in stacked.items()},
        spread={name: values.std(axis=0, ddof=1) for name, values in stacked.items()},
        notes=notes,
    )


def _summaries(
    rule: Rule,
    run: Mapping[str, Floats],
    look: int,
    steps: int,
    levels: Levels | None,
    models: Sequence[StateModel],
) -> dict[str, summaries.Summary]:
    part = {name: values[: rule.steps_at(look, steps)] for name, values in run.items()}
    whole = look == rule.last_look
    found = summaries.all_summaries(
        part,
        reward=rule.reward,
        floor=rule.reward_floor,
        features=rule.features,
        levels=levels if whole else None,
        steps=steps,
    )
    for model in models if whole else ():
        summary = model.summary(part)
        if summary is not None:
            found[f"{model.feature.name}/at equal state"] = summary
    return found


def _absent_series(shared: Collection[str], rule: Rule) -> list[str]:
    """What may pass because the reference runs lack a series and every other one that shows the same."""
    seen = {feature.hint for feature in rule.features if feature.name in shared}
    return [
        f"the reference runs have no {feature.name}: faults in {feature.hint} may pass"
        for feature in rule.features
        if feature.name not in shared and feature.hint not in seen
    ]


def _usual_series(runs: Sequence[Mapping[str, Floats]], rule: Rule) -> tuple[str, ...]:
    """The judged series that more than half of the runs have."""
    names = (feature.name for feature in rule.features)
    return tuple(name for name in names if 2 * sum(name in run for run in runs) > len(runs))


def _unfit(run: Mapping[str, Floats], rule: Rule, steps: int, usual: Sequence[str]) -> str:
    reward = run.get(rule.reward)
    if reward is None or not len(reward):
        return f"it has no {rule.reward}"
    if len(reward) < steps:
        return f"it has {len(reward)} steps, the others {steps}"
    short = [name for name, values in run.items() if len(values) < steps]
    if short:
        return f"{', '.join(sorted(short))} ends before step {steps}"
    missing = [name for name in usual if name not in run]
    if missing:
        return f"it has no {', '.join(missing)}"
    for name in (rule.reward, *usual):
        if not (np.abs(run[name][:steps]) < summaries.LARGEST).all():
            return f"its {name} is not finite"
    return ""


def _problem(runs: list[dict[str, Floats]], rule: Rule, steps: int) -> str:
    if len(runs) < rule.least_references:
        return f"there are {len(runs)} usable reference runs, at least {rule.least_references} are needed"
    absent = [name for name in rule.core if not all(name in run for run in runs)]
    if absent:
        return f"they do not have {', '.join(absent)}, and a fault that only these series show would pass"
    if rule.steps_at(0, steps) < summaries.SHORTEST:
        return (
            f"runs of {steps} steps are too short: the first look needs at least {summaries.SHORTEST} steps"
        )
    if _start_and_rise(runs, rule)[1] <= 0:
        return "the reward of the reference runs does not rise"
    return ""


def _start_and_rise(runs: list[dict[str, Floats]], rule: Rule) -> tuple[float, float]:
    found = [summaries.reward_summaries(run[rule.reward], floor=rule.reward_floor) for run in runs]
    mean = {name: float(np.mean([one[name].value for one in found])) for name in ("start", "rise")}
    return mean["start"], mean["rise"]


def _band(found: Sequence[summaries.Summary]) -> Band:
    # Sorted, so that the rounding does not depend on the order of the reference runs.
    values = np.sort([one.value for one in found])
    sd = max(float(values.std(ddof=1)), found[0].floor)
    return Band(mean=float(values.mean()), sd=sd, sides=found[0].sides)


def _drawn(values: Floats) -> tuple[Floats, Floats, Floats]:
    runs = len(values)
    ordered = np.sort(values, axis=0)
    mean = ordered.mean(axis=0)
    reach = (
        student_quantile((1 + DRAWN_COVERAGE) / 2, runs - 1)
        * ordered.std(axis=0, ddof=1)
        * math.sqrt(1 + 1 / runs)
    )
    return mean, mean - reach, mean + reach
