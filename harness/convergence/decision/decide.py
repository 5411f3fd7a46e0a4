"""The decision rule: do candidate runs train as well as the reference runs?

Each run must first pass the gates. One run then screens; if it is suspicious, up to two further runs confirm
or clear the suspicion.

`decide` is pure and works with any curves: a run is a mapping of series names to numbers, one for each step.
The series `reward` is required; `decision_rule.FEATURES` lists the other series that are judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.convergence.decision import run_gates
from harness.convergence.decision.bands import Floats, ReferenceBands, arrays, reference_bands
from harness.convergence.decision.decision import Decision, Deviation, InterimTest, Statistic
from harness.convergence.decision.decision_rule import REWARD_HINT, Rule
from harness.convergence.decision.paired_run import blank_series, deviation, same_start
from harness.convergence.telemetry.series import Series
from harness.outcome import Status


def decide(
    reference_runs: Sequence[Series],
    candidate_runs: Sequence[Series],
    rule: Rule | None = None,
    *,
    twins: Sequence[Series | None] = (),
    running: bool = False,
) -> Decision:
    """Judge candidate runs of one stack against reference runs of the same settings.

    The first candidate run screens. If it is suspicious, further runs (as many as the rule allows) confirm
    the suspicion or clear it: two runs whose mean is not suspicious pass. If several complete runs are handed
    in, their mean must not be suspicious either, and none of them may fail a gate or lack a series. With too
    few runs the decision is INCONCLUSIVE and `runs_wanted` says how many more are needed.

    A run may be shorter than the reference only if it was stopped early after an interim test gave an alarm;
    any other short run fails as truncated. The order of the reference runs does not matter. The
    function raises no exception for any numbers, also NaN and infinity.

    twins: for each candidate run a recorded run of the same seed and noise, or None (see `paired_run`). If it
        is None, a reference run of the same seed is recognised by its first step.
    running: the last candidate run is still training. Its end then does not count as truncation, and
        `decided_by` is "running" as long as the run should continue.
    """
    bands = reference_bands(reference_runs, rule or Rule())
    return judge(bands, candidate_runs, twins=twins, running=running)


def judge(
    bands: ReferenceBands,
    candidate_runs: Sequence[Series],
    *,
    twins: Sequence[Series | None] = (),
    running: bool = False,
) -> Decision:
    """`decide` for reference bands that were computed before."""
    if bands.problem:
        return Decision(
            status=Status.INCONCLUSIVE,
            decided_by="reference",
            reasons=(f"The reference runs cannot be used: {bands.problem}.",),
            remedies=("Record more reference runs of these settings.",),
            notes=bands.notes,
        )
    if not candidate_runs:
        return Decision(
            status=Status.INCONCLUSIVE,
            decided_by="runs",
            reasons=("There is no candidate run.",),
            runs_wanted=1,
            notes=bands.notes,
        )
    with np.errstate(all="ignore"):
        trial = _Trial(bands, [arrays(twin) if twin else None for twin in twins])
        candidates = [arrays(run) for run in candidate_runs]
        return trial.run(candidates, running=candidates[-1] if running else None)


class _Trial:
    """The state of one decision: the runs and interim tests so far, and the training steps they cost."""

    def __init__(self, bands: ReferenceBands, twins: Sequence[Mapping[str, Floats] | None]) -> None:
        self.bands = bands
        self.twins = twins
        self.running: Mapping[str, Floats] | None = None
        self.deviations: list[Deviation | None] = []
        # Of each run that started as a reference run did, by its place: the deviation from that run.
        self.parted: dict[int, Deviation | None] = {}
        # The complete runs that were handed in, and what their mean shows if it is suspicious.
        self.given: list[Mapping[str, Floats]] = []
        self.suspected: Statistic | None = None
        self.rule = bands.rule
        self.looks: list[InterimTest] = []
        self.cost = 0.0
        self.runs: list[Mapping[str, Floats]] = []
        self.notes = list(bands.notes)

    def run(
        self, candidates: Sequence[Mapping[str, Floats]], *, running: Mapping[str, Floats] | None = None
    ) -> Decision:
        self.running = running
        if len(candidates) > self.rule.most_runs:
            self.notes.append(
                f"{len(candidates) - self.rule.most_runs} candidate runs beyond the rule's "
                f"{self.rule.most_runs} are not used"
            )
        self._find_same_starts(candidates[: self.rule.most_runs])
        self.given = [
            run
            for run in candidates[: self.rule.most_runs]
            if run is not running
            and self._reject_input(run) is None
            and len(run[self.rule.reward]) >= self.bands.steps
            and run_gates.first_failed_gate(run, self.rule) is None
        ]
        for run in candidates[: self.rule.most_runs]:
            final = self._reject_input(run) or (self._confirm(run) if self.runs else self._screen(run))
            if final is not None and final.status is Status.PASS:
                return self._unusable_run(candidates[: self.rule.most_runs]) or final
            if final is not None:
                return final
        missing = self.rule.most_runs - len(self.runs)
        if not missing and self._is_unlike_its_twins():
            return self._unlike_its_twins()
        if missing:
            return self._final(
                Status.INCONCLUSIVE,
                "runs",
                f"The first run is suspicious ({self._suspicion()}). {missing} more runs are needed to "
                "confirm or clear it.",
                further_runs=missing,
            )
        return self._decide_after_last_run()

    def _unusable_run(self, candidates: Sequence[Mapping[str, Floats]]) -> Decision | None:
        """The decision about a run that the rule did not need, but which was handed in: it fails a gate, or
        lacks a series."""
        for place, run in enumerate(candidates[len(self.runs) :], start=len(self.runs) + 1):
            if run is self.running:
                continue
            rejected = self._reject_input(run, place)
            if rejected is not None:
                return rejected
            steps = self.bands.steps
            gate = run_gates.first_failed_gate(
                {name: values[:steps] for name, values in run.items()}, self.rule
            )
            if gate is not None:
                return self._failed_gate(gate, place)
        return None

    def _reject_input(self, run: Mapping[str, Floats], place: int = 0) -> Decision | None:
        """Inconclusive if the run lacks a series that the reference runs have. place: its number from 1, by
        default that of the next run."""
        place = place or len(self.runs) + 1
        reward = run.get(self.rule.reward)
        if reward is None or not len(reward):
            return self._final(
                Status.INCONCLUSIVE,
                "input",
                f"Candidate run {place} has no series called {self.rule.reward}.",
            )
        judged = set(self.bands.drawn) & {feature.name for feature in self.rule.features}
        missing_series = sorted(name for name in judged if len(run.get(name, ())) < len(reward))
        if not missing_series or run is self.running:
            return None
        return self._final(
            Status.INCONCLUSIVE,
            "input",
            f"Candidate run {place} has no complete series for {', '.join(missing_series)}, "
            "which the reference runs have. A fault that only these series show would not be found.",
            remedies=("Make the training log these metrics, or record reference runs without them.",),
        )

    def _find_same_starts(self, candidates: Sequence[Mapping[str, Floats]]) -> None:
        """Compare each run without a recorded twin with the reference run that started the same, if any.

        Also runs that the rule need not use: they are there, and the comparison costs nothing.
        """
        for place, run in enumerate(candidates):
            twin = None if self._twin(place) else same_start(run, self.bands.starts)
            if twin is not None:
                self.parted[place] = self._deviation(place, run, twin, self.rule.same_start_limit)

    def _twin(self, place: int) -> Mapping[str, Floats] | None:
        return self.twins[place] if place < len(self.twins) else None

    def _deviation(
        self, place: int, run: Mapping[str, Floats], twin: Mapping[str, Floats], limit: float
    ) -> Deviation | None:
        blank = blank_series(run, twin, self.rule)
        if blank:
            self.notes.append(
                f"run {place + 1} is not compared with the same seed in {', '.join(blank)}: the recorded run "
                "has no finite value there"
            )
        return deviation(run, twin, self.bands.spread, self.rule, limit)

    def _compare_with_twin(self, run: Mapping[str, Floats]) -> bool:
        """Whether the next run differs from its twin by more than rounding explains."""
        place = len(self.deviations)
        twin = self._twin(place)
        found = self._deviation(place, run, twin, self.rule.twin_limit) if twin else self.parted.get(place)
        self.deviations.append(found)
        return (found is not None and found.alarm) or self._is_unlike_its_twins()

    def _is_unlike_its_twins(self) -> bool:
        """Whether every run differs from its twin, or one from the reference run with which it started.

        The samples of the latter are equal, so no flipped token explains the difference.
        """
        if any(found is not None and found.alarm for found in self.parted.values()):
            return True
        return all(found is not None and found.alarm for found in self.deviations)

    def _unlike_its_twins(self) -> Decision:
        worst = max((found for found in self.deviations if found is not None), key=lambda found: found.size)
        hint = next((one.hint for one in self.rule.features if one.name == worst.series), REWARD_HINT)
        apart = [found for found in self.deviations if found is not None and found.alarm]
        return self._final(
            Status.FAIL,
            "twin",
            f"In {len(apart)} of {_runs(len(self.runs))}, {worst.sentence()}.",
            remedies=(
                f"Look at {hint}.",
                "Look at the check `loss` of the numerics tier: it names the function that differs.",
            ),
        )

    def _screen(self, run: Mapping[str, Floats]) -> Decision | None:
        deviates = self._compare_with_twin(run)
        stopped = self._test_at_looks(run, "screen", self.rule.screen_alpha)
        if stopped is not None:
            return stopped
        if deviates or self.looks[-1].alarm or self._given_runs_deviate():
            return None
        shortfall = self.bands.shortfall([run], self.rule.last_look)
        if shortfall < self.rule.margin:
            return self._pass(shortfall, self.rule.last_look)
        return None

    def _given_runs_deviate(self) -> bool:
        """Whether the mean of several given runs is suspicious. They are there, so the first does not decide
        alone."""
        if len(self.given) < 2:
            return False
        found = self.bands.statistics(self.given, self.rule.last_look)
        if found and found[0].p < self.rule.screen_alpha * self.rule.spend[-1]:
            self.suspected = found[0]
        return self.suspected is not None

    def _confirm(self, run: Mapping[str, Floats]) -> Decision | None:
        self._compare_with_twin(run)
        stopped = self._test_at_looks(run, "confirm", self.rule.confirm_alpha / (self.rule.most_runs - 1))
        if stopped is not None:
            return stopped
        if self.looks[-1].alarm and self.looks[-1].purpose == "confirm":
            return self._failed(self.looks[-1])
        return self._cleared()

    def _cleared(self) -> Decision | None:
        """PASS before the last run if all runs are complete and their mean would not fail the screen."""
        last = self.rule.last_look
        whole = all(len(run[self.rule.reward]) >= self.bands.steps for run in self.runs)
        if len(self.runs) >= self.rule.most_runs or self._is_unlike_its_twins() or not whole:
            return None
        found = self.bands.statistics(self.runs, last)
        if self.suspected or (found and found[0].p < self.rule.screen_alpha):
            return None
        shortfall = self.bands.shortfall(self.runs, last)
        return self._pass(shortfall, last) if shortfall < self.rule.margin else None

    def _test_at_looks(self, run: Mapping[str, Floats], purpose: str, alpha: float) -> Decision | None:
        """Test a run at each interim look. None if it neither decides the outcome nor is still running."""
        steps = self.bands.steps
        recorded = len(run[self.rule.reward])
        self.runs.append(run)
        # Gates see all recorded steps, also those after a look that accepts the run or suspects it.
        gate = run_gates.first_failed_gate({name: values[:steps] for name, values in run.items()}, self.rule)
        if gate is not None:
            self.cost += (gate.step + 1) / steps
            return self._failed_gate(gate, len(self.runs))
        for look, fraction in enumerate(self.rule.looks):
            seen = self.rule.steps_at(look, steps)
            if recorded < seen and run is self.running:
                self.cost += recorded / steps
                return self._final(
                    Status.INCONCLUSIVE,
                    "running",
                    f"Run {len(self.runs)} is not suspicious in its first {recorded} of {steps} steps.",
                )
            if recorded < seen:
                self.cost += recorded / steps
                return self._final(
                    Status.FAIL,
                    "gate",
                    f"Run {len(self.runs)} ended after {recorded} of {steps} steps.",
                    remedies=("Read the end of the training's log.",),
                )
            level = alpha * self.rule.spend[look]
            here = [one for one in self.runs if len(one[self.rule.reward]) >= seen]
            found = self.bands.statistics(here, look, pooled=purpose == "confirm")
            # Only a deviation that every run shows is a fault of the stack.
            against = [one for one in found if one.p < level and (purpose == "screen" or one.shared)]
            alarm = bool(against)
            worst = next(iter(against or found), None)
            self.looks.append(
                InterimTest(
                    purpose=purpose,
                    runs=len(here),
                    fraction=fraction,
                    statistic=worst,
                    level=level,
                    alarm=alarm,
                )
            )
            if alarm or (purpose == "screen" and self._may_accept_early(run, look)):
                self.cost += seen / steps
                return None if alarm else self._pass(self.bands.shortfall([run], look), look)
        self.cost += 1.0
        return None

    def _may_accept_early(self, run: Mapping[str, Floats], look: int) -> bool:
        """Whether a look before the last may accept: by then the reference and the run have both learned."""
        if not self.rule.accept_early or look == self.rule.last_look:
            return False
        reward = self.rule.reward
        start = self.bands.bands[look][f"{reward}/start"].mean
        rise = self.bands.bands[self.rule.last_look][f"{reward}/rise"].mean
        share = (self.bands.bands[look][f"{reward}/final"].mean - start) / rise
        return share >= self.rule.learned_share and self.bands.shortfall([run], look) < self.rule.margin

    def _decide_after_last_run(self) -> Decision:
        last = self.rule.last_look
        whole = [run for run in self.runs if len(run[self.rule.reward]) >= self.bands.steps]
        if not whole:
            return self._final(Status.INCONCLUSIVE, "runs", "No candidate run is complete.", further_runs=1)
        shortfall = self.bands.shortfall(whole, last)
        alone = next(iter(self.bands.statistics(whole, last)), None)
        if alone is not None and alone.p < self.looks[-1].level:
            return self._final(
                Status.INCONCLUSIVE,
                "statistic",
                f"{alone.sentence()}, but not every run shows it: this is chance or an intermittent fault.",
                remedies=("Run more seeds, and compare the deviating run with the others.",),
                statistic=alone,
                shortfall=shortfall,
            )
        if shortfall < self.rule.margin:
            return self._pass(shortfall, last)
        return self._final(
            Status.INCONCLUSIVE,
            "non-inferiority",
            f"{len(whole)} runs do not differ significantly from the reference, but the reward may be lower "
            f"by up to {shortfall:.0%} of the reference's rise (accepted: {self.rule.margin:.0%}).",
            remedies=("Run more seeds, or record more reference runs.",),
            shortfall=shortfall,
        )

    def _pass(self, shortfall: float, look: int) -> Decision:
        bound = f"{max(0.0, shortfall):.0%} of the reference's rise (accepted: {self.rule.margin:.0%})"
        seen = self.rule.steps_at(look, self.bands.steps)
        whole = sum(len(run[self.rule.reward]) >= seen for run in self.runs)
        inside = f"{_runs(whole)} within the reference's bands"
        reasons = [f"{inside}; the reward is lower than the reference's by at most {bound}."]
        if whole < len(self.runs):
            reasons.append(
                f"The complete runs do not confirm the suspicion that ended {_runs(len(self.runs) - whole)} "
                "early."
            )
        if look != self.rule.last_look:
            reasons.append(
                f"Accepted at {self.rule.looks[look]:.0%} of the steps; later steps were not judged."
            )
        return self._final(Status.PASS, "non-inferiority", *reasons, shortfall=shortfall)

    def _failed(self, look: InterimTest) -> Decision:
        statistic = look.statistic
        assert statistic is not None
        series = statistic.name.split("/")[0]
        hint = next((one.hint for one in self.rule.features if one.name == series), REWARD_HINT)
        return self._final(
            Status.FAIL,
            "statistic",
            f"{statistic.sentence()}; the probability for a healthy stack is {statistic.p:.1g}, "
            f"the limit is {look.level:.2g}.",
            remedies=(f"Look at {hint}.",),
            statistic=statistic,
        )

    def _failed_gate(self, gate: run_gates.Gate, place: int) -> Decision:
        return self._final(Status.FAIL, "gate", f"Run {place}: {gate.reason}.", remedies=(gate.hint,))

    def _suspicion(self) -> str:
        statistic = self.looks[-1].statistic if self.looks and self.looks[-1].alarm else None
        shown = statistic or self.suspected
        if shown:
            return shown.sentence()
        compared = (*self.deviations, *self.parted.values())
        twin = next((found for found in compared if found is not None and found.alarm), None)
        return twin.sentence() if twin else "its reward may be too far below the reference"

    def _final(
        self,
        status: Status,
        decided_by: str,
        *reasons: str,
        remedies: tuple[str, ...] = (),
        statistic: Statistic | None = None,
        shortfall: float | None = None,
        further_runs: int = 0,
    ) -> Decision:
        return Decision(
            status=status,
            decided_by=decided_by,
            reasons=reasons,
            remedies=remedies,
            statistic=statistic,
            looks=tuple(self.looks),
            twins=tuple(self.deviations),
            runs_used=len(self.runs),
            runs_wanted=further_runs,
            runs_cost=self.cost,
            runs_full=float(len(self.runs)),
            shortfall=shortfall,
            notes=tuple(self.notes),
        )


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
