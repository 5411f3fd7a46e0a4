"""The search of `npu-matrix bisect`: reads stored outcomes, then runs probes until the change is found."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_OK, InputError, NothingSelectedError
from harness.ledger.store import FILE_NAME, Ledger
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.outcome import Outcome, Status, Tier
from harness.plan.bisection.cells_between import BisectionCells, commit_values
from harness.plan.bisection.search import Bisection, FlakeRates, SearchResult
from harness.plan.cost.task_cost import duration
from harness.plan.keys.facets import FacetInputs
from harness.plan.keys.variant import omitted_patches, patch_series, without_patches
from harness.plan.tasks.planner import restrict_plan
from harness.run.scheduling.scheduler import RunPolicy, run_plan
from harness.settings import Settings
from harness.sources.git.mirrors import find_mirror, mirror_folders
from harness.verdict.plan_verdicts import judge_stored
from harness.verdict.verdict import judge_outcome
from harness.workspace.execution.run_setup import local_run
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import PlanContext, open_plan
from harness.workspace.planning.plan_history import PlanHistory, read_history
from harness.workspace.planning.plan_selection import find_cell

#: Assumed probabilities of a wrong verdict. Static checks have 0.
FALSE_FAIL, FALSE_PASS = 0.05, 0.02


#: The cost of a probe without a verdict on this host, so that it is not chosen.
UNUSABLE_COST = 1e18


@dataclass(frozen=True, kw_only=True)
class Observation:
    """An outcome of a probe. values: axis -> value. how: `known` if it was stored before, else `ran`."""

    cell: str
    values: Mapping[str, str | None]
    status: Status
    how: str


class BisectSearch:
    """One search over cells. It reads the ledger, runs missing probes, and passes its progress to `log`."""

    def __init__(
        self,
        context: PlanContext,
        space: BisectionCells,
        search: Bisection,
        check: str,
        log: Callable[[str], None],
    ) -> None:
        self.context = context
        self.space = space
        self.search = search
        self.check = check
        self.log = log
        self.known: PlanHistory = read_history(context)
        entries = {entry.cell_id: entry for entry in context.plan.entries if entry.check == check}
        self.entries = [entries[cell.id] for cell in space.cells]
        self.unusable: set[int] = set()
        self.observations: list[Observation] = []

    def use_stored_outcomes(self) -> None:
        """Update the search with every stored outcome of every probe."""
        changes = ", ".join(
            f"{span.axis} ({span.steps} step{'s' if span.steps > 1 else ''})" for span in self.space.spans
        )
        self.log(f"{self.check}: between {self.space.good.id} and {self.space.bad.id} change {changes}")
        settings = self.context.settings
        if not (settings.path("state") / FILE_NAME).exists():
            return
        with open_ledger(settings) as ledger:
            for number, entry in enumerate(self.entries):
                for outcome in reversed(ledger.history(key=entry.key)):
                    self.observe(number, outcome, "known")

    def observe(self, number: int, outcome: Outcome, how: str) -> bool:
        """Update the search with an outcome; False if the outcome is neither pass nor fail."""
        task = self.context.plan.tasks[self.entries[number].key]
        status = judge_stored(task, outcome)[0].status
        if status not in {Status.PASS, Status.FAIL}:
            return False
        try:
            self.search.observe(number, failed=status is Status.FAIL)
        except ValueError as error:
            raise InputError(
                str(error),
                why=f"{self.check} of {self.space.cells[number].id} is {status.value}",
                fix="if the check is flaky, pass --false-fail 0.2 --false-pass 0.1",
            ) from None
        vector = self.space.probes[number]
        self.observations.append(
            Observation(cell=self.space.cells[number].id, values=self.values(vector), status=status, how=how)
        )
        self.log(
            f"  {how:<6} {status.value:<5} {self.values_text(vector)}  ({self.search.bits:.1f} bits left)"
        )
        return True

    def values(self, vector: Sequence[int]) -> dict[str, str | None]:
        """Axis -> value of a probe."""
        pairs = zip(self.space.spans, vector, strict=True)
        return {span.axis: span.values[number] for span, number in pairs}

    def values_text(self, vector: Sequence[int]) -> str:
        """The values of a probe as text."""
        return " ".join(f"{axis}={_shortened(value)}" for axis, value in self.values(vector).items())

    def prices(self, earlier: frozenset[int] = frozenset()) -> list[float]:
        """Seconds of each probe, without tasks that have an outcome or that run for the `earlier` probes."""
        made = set(self.known.outcomes)
        for number in earlier:
            made |= self.tasks[number].keys()
        own = {entry.key for entry in self.entries}
        prices = []
        for number, tasks in enumerate(self.tasks):
            if number in self.unusable:
                prices.append(UNUSABLE_COST)
                continue
            prices.append(sum(cost for key, cost in tasks.items() if key in own or key not in made))
        return prices

    @functools.cached_property
    def tasks(self) -> list[dict[str, float]]:
        """For each probe, key -> expected seconds of each of its tasks."""
        by_cell: dict[str, dict[str, float]] = {}
        for entry in self.context.plan.entries:
            if entry.key:
                task = self.context.plan.tasks[entry.key]
                by_cell.setdefault(entry.cell_id, {})[entry.key] = self.known.costs.of_task(task).seconds
        return [by_cell.get(cell.id, {}) for cell in self.space.cells]

    def best(self) -> int | None:
        """The next probe that this host can run, or None."""
        probe = self.search.best(self.prices())
        return None if probe is None or probe in self.unusable else probe

    def forecast(self) -> dict[str, object]:
        """The first probe, and the expected cost of the whole search."""
        probe = self.best()
        trials = 64 if len(self.space.probes) < 500 else 12
        expected = self.search.forecast(costs=self.prices, trials=trials) if probe is not None else None
        if probe is None or expected is None:
            self.conclude()
        else:
            self.log(f"first: {self.values_text(self.space.probes[probe])}")
            self.log(
                f"expected: {expected.probes:.1f} probes of {expected.distinct:.1f} cells, about "
                f"{duration(expected.cost)} of work (mean of {expected.trials} simulated searches)"
            )
        return {
            **self.report(),
            "first": self.values(self.space.probes[probe]) if probe is not None else None,
            "expected": {
                "probes": round(expected.probes, 2),
                "cells": round(expected.distinct, 2),
                "seconds": round(expected.cost, 1),
            }
            if expected
            else None,
        }

    def go(self, limit: int) -> tuple[dict[str, object], int]:
        """Run probes until the culprit is found, no probe is left, or `limit` probes were run."""

        settings = self.context.settings
        with local_run(settings) as (executor, stopped), open_ledger(settings) as ledger:
            for _ in range(limit):
                probe = self.best()
                if probe is None or stopped():
                    break
                self.run(probe, ledger, executor, stopped)
            interrupted = stopped()
        found = self.conclude()
        return self.report(), EXIT_INTERRUPTED if interrupted else EXIT_OK if found else EXIT_INCOMPLETE

    def run(self, probe: int, ledger: Ledger, executor: Any, stopped: Any) -> None:
        """Run one probe. A probe that neither passes nor fails is not run again."""
        key = self.entries[probe].key
        result = run_plan(
            restrict_plan(self.context.plan, {self.space.cells[probe].id}),
            ledger,
            executor,
            judge_outcome,
            policy=RunPolicy(rerun={key}),
            stopped=stopped,
            argv=sys.argv[1:],
        )
        ledger.finish_run(result.run_id, EXIT_OK)
        outcome = result.outcomes.get(key)
        if outcome is None or not self.observe(probe, outcome, "ran"):
            self.unusable.add(probe)
            task = self.context.plan.tasks[key]
            why = judge_outcome(task.check, outcome).reasons[:1] if outcome else ()
            self.log(
                f"  no verdict   {self.values_text(self.space.probes[probe])}: {why[0] if why else 'not run'}"
            )

    def conclude(self) -> SearchResult | None:
        """Log the culprit or the most probable candidate; returns the culprit, if it is known."""
        found = self.search.finding
        leading = found or self.search.leading
        names = " or ".join(self.space.name(culprit) for culprit in leading.culprits)
        if found:
            more = "; no valid cell distinguishes them" if len(found.culprits) > 1 else ""
            self.log(f"found: {names} ({found.probability:.1%}{more})")
        else:
            self.log(
                f"not sure yet: {names} ({leading.probability:.1%}); run the same command again to continue"
            )
        return found

    def report(self) -> dict[str, object]:
        """The state of the search as JSON (schema `npu-matrix.bisect`)."""
        leading = self.search.leading
        return {
            "schema": {"name": "npu-matrix.bisect", "version": 1},
            "check": self.check,
            "good": self.space.good.id,
            "bad": self.space.bad.id,
            "changes": {span.axis: list(span.values) for span in self.space.spans},
            "observations": self.observations,
            "found": self.search.finding is not None,
            "leading": {
                "culprits": [self.space.name(culprit) for culprit in leading.culprits],
                "probability": round(leading.probability, 4),
            },
        }


def cell_with_patches(settings: Settings, matrix: Matrix, words: str, inputs: FacetInputs) -> Cell:
    """The cell that `CELL` or `CELL+PATCHES` names."""
    name, plus, patches = words.partition("+")
    cell = find_cell(matrix, settings["profile"], name)
    if not plus:
        return cell
    return without_patches(cell, omitted_patches(patches, patch_series(cell.axes, inputs), name))


def runnable_probes(context: PlanContext, space: BisectionCells, check: str) -> list[int]:
    """The probes that this host can run; NothingSelectedError with the reasons if there are none."""
    entries = {entry.cell_id: entry for entry in context.plan.entries if entry.check == check}
    found = [number for number, cell in enumerate(space.cells) if entries[cell.id].key]
    if not found:
        reasons = {entry.skip.reason for entry in entries.values() if entry.skip}
        raise NothingSelectedError(
            f"{check} cannot run on any cell between the two", why="; ".join(sorted(reasons))
        )
    return found


def distinguishing_check(settings: Settings, ends: tuple[Cell, ...]) -> str:
    """The cheapest check that is known to pass on the good cell and to fail on the bad one."""
    context = open_plan(settings, choose=lambda _matrix: ends)
    known = read_history(context)
    status = {
        (entry.cell_id, entry.check): known.judgements[entry.key].status
        for entry in context.plan.entries
        if entry.key in known.judgements
    }
    for entry in context.plan.entries:
        end_statuses = (status.get((ends[0].id, entry.check)), status.get((ends[1].id, entry.check)))
        if end_statuses == (Status.PASS, Status.FAIL):
            return entry.check
    raise InputError(
        "no check is known to pass on the good cell and to fail on the bad one",
        fix="name one with --check, or run both cells first",
    )


def _shortened(value: str | None) -> str:
    """`none`, a version, or the first and last of many patches."""
    first, *rest = (value or "none").split(",")
    return f"{first}..{rest[-1]} ({len(rest) + 1})" if len(rest) > 1 else value or "none"


def check_noise(
    context: PlanContext, name: str, false_fail: float | None, false_pass: float | None
) -> FlakeRates:
    """The probabilities of a wrong verdict: as given, else 0 for a static check and defaults for others."""
    static = any(entry.check == name and entry.tier is Tier.STATIC for entry in context.plan.entries)
    return FlakeRates(
        false_fail=false_fail if false_fail is not None else 0.0 if static else FALSE_FAIL,
        false_pass=false_pass if false_pass is not None else 0.0 if static else FALSE_PASS,
    )


def commits_between(matrix: Matrix, good: Cell, bad: Cell) -> dict[str, list[str]]:
    """Axis -> commits between the two cells, oldest first, if a local mirror has their history."""
    mirrors = mirror_folders()
    found: dict[str, list[str]] = {}
    for axis in matrix.axes.values() if mirrors else ():
        if good.axes.get(axis.name) == bad.axes.get(axis.name):
            continue
        ends = [axis.parse(cell.axes[axis.name]) for cell in (good, bad) if axis.name in cell.axes]
        if len(ends) != 2 or not all(end.commit for end in ends):
            continue
        repository = find_mirror(mirrors, ends[1].commit)
        values = commit_values(repository, *ends) if repository else []
        if values:
            found[axis.name] = values
    return found
