"""The model that every format renders: cells, their results, what needs attention, what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from harness.gc_pause import gc_paused
from harness.ledger.plan_record import CellFacts, PlanEntry
from harness.outcome import Evidence, Status, Tier
from harness.report.model.changes import Pair, RunChange, RunChangeKind, compare
from harness.report.model.failure_owners import OwnedFailure, failures_by_owner, has_or_needs_owner
from harness.report.model.failure_patterns import FAILING, FailurePattern, find_patterns
from harness.report.model.headline import headline, proof
from harness.report.model.marks import EVIDENCE, NEEDS_ATTENTION, RAN, SEVERITY, STYLES, Mark, worst
from harness.report.model.release_age import ReleaseAge, release_age
from harness.report.model.report_inputs import (
    CheckColumn,
    ComparisonRun,
    PublishedStatement,
    ReportInputs,
    ReportResult,
)
from harness.report.model.streak import BROKEN, EarlierVerdict, Streak
from harness.report.model.typed_measurements import measures
from harness.report.model.unanswered import OpenCheck, Unanswered, find_unanswered, open_checks
from harness.report.model.visible_text import file_name
from harness.verdict.verdict import Standing, Verdict

PRINCIPAL_AXES = (
    "verl",
    "torch_npu",
    "vllm_ascend",
    "cann",
    "soc",
    "vllm",
    "torch",
    "transformers",
    "python",
)
SHOWN_AXES = 4
#: Reason, check and mark: what a reader sees of a verdict that needs attention.
_Group = tuple[str, str, Mark]
_Kind = tuple[Tier, Mark, Evidence | None]
CLOCK_SLACK_S = 120.0


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """A cell and its results by check; `worst` is None when nothing was planned for it.

    slug: the name of the cell's page. exports: the cell's lock in the formats that can be installed from, by
    file name.
    """

    cell: CellFacts
    slug: str
    planned: tuple[str, ...]
    exports: Mapping[str, str]
    results: Mapping[str, ReportResult]
    worst: Mark | None
    published: tuple[PublishedStatement, ...] = ()

    # An update of a report with 10,000 cells keeps most rows, and with them what was counted on them.
    @cached_property
    def kinds(self) -> Counter[_Kind]:
        """How many checks have which verdict, by tier and by the evidence of the verdict."""
        return Counter(
            (result.entry.tier, result.mark, result.verdict.evidence) for result in self.results.values()
        )

    @cached_property
    def marks(self) -> Mapping[str, Mark]:
        """Check -> how its verdict is shown."""
        return {name: result.mark for name, result in self.results.items()}

    @cached_property
    def urgent(self) -> tuple[ReportResult, ...]:
        """The results that a person should look at."""
        return tuple(result for result in self.results.values() if result.mark in NEEDS_ATTENTION)

    @cached_property
    def unforeseen(self) -> tuple[tuple[_Group, ReportResult], ...]:
        """The urgent results that no expectation covers, with what equal ones are grouped by."""
        return tuple(
            ((one.reason or STYLES[one.mark].meaning, one.check, one.mark), one)
            for one in self.urgent
            if not _is_known(one)
        )

    @cached_property
    def age(self) -> ReleaseAge:
        """The sort key of its versions; newer stacks have greater ones."""
        return release_age(self.cell.axes)

    @cached_property
    def sound(self) -> bool:
        """Whether a check passed and none fails, expected or not."""
        marks = set(self.marks.values())
        return Mark.PASS in marks and marks.isdisjoint(FAILING)

    @cached_property
    def measured(self) -> Mapping[str, ReportResult]:
        """Check -> its result, for those with measurements."""
        return {name: result for name, result in self.results.items() if result.measurements}

    @cached_property
    def now(self) -> Mapping[Pair, EarlierVerdict]:
        """The verdicts, as those of an earlier run are compared with them."""
        return {(self.cell.id, name): _comparable(result) for name, result in self.results.items()}

    @cached_property
    def passed_with_reasons(self) -> tuple[ReportResult, ...]:
        """The results of checks that passed and say something about it."""
        return tuple(
            result
            for result in self.results.values()
            if result.verdict.reasons and result.verdict.status is Status.PASS
        )

    @cached_property
    def failing(self) -> tuple[ReportResult, ...]:
        """The results of checks that fail, expected or not."""
        return tuple(result for result in self.results.values() if result.mark in FAILING)

    @cached_property
    def accountable(self) -> tuple[ReportResult, ...]:
        """The results that have an owner or need one."""
        return tuple(filter(has_or_needs_owner, self.results.values()))

    @cached_property
    def open(self) -> tuple[OpenCheck, ...]:
        """The checks that have no verdict."""
        return open_checks(self.results.values())

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The planned checks without a result."""
        return tuple(name for name, result in self.results.items() if result.missing)

    @cached_property
    def turned(self) -> tuple[ReportResult, ...]:
        """The results whose verdict has changed in the runs."""
        return tuple(result for result in self.results.values() if result.turns)

    @cached_property
    def on_hardware(self) -> tuple[ReportResult, ...]:
        """The results of checks that hardware has run."""
        return tuple(result for result in self.results.values() if result.hardware is not None)


@dataclass(frozen=True, kw_only=True)
class TierColumns:
    """A tier and its checks, in order."""

    tier: Tier
    checks: tuple[CheckColumn, ...]


@dataclass(frozen=True, kw_only=True)
class Attention:
    """A verdict that a person should look at, with all cells that have it for the same reason."""

    check: str
    mark: Mark
    evidence: Evidence | None
    change: str
    reason: str
    remedy: str
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReportModel:
    """The content of a report: its inputs, arranged.

    kinds: results by tier, mark and evidence. counts: results by mark. by_evidence: the marks of the checks
    that ran, by kind of evidence. headline: what a person has to look at. proof: how many checks passed and
    on what evidence. missing: planned checks that have no result, as (cell, check). unanswered: why checks
    have no verdict.
    strangers: results of cells that are not in the matrix.
    earlier: the run that `changes` compares with, None when there is none. runs: the earlier runs, newest
    first.
    """

    inputs: ReportInputs
    tiers: tuple[TierColumns, ...]
    rows: tuple[ReportRow, ...]
    axes: tuple[str, ...]
    kinds: Counter[_Kind]
    counts: Mapping[Mark, int]
    by_evidence: Mapping[Evidence, Mapping[Mark, int]]
    planned: int
    missing: tuple[tuple[str, str], ...]
    attention: tuple[Attention, ...]
    patterns: tuple[FailurePattern, ...]
    headline: str
    proof: str
    unanswered: tuple[Unanswered, ...] = ()
    strangers: tuple[ReportResult, ...] = ()
    changes: tuple[RunChange, ...] = ()

    @property
    def passed(self) -> dict[Evidence, int]:
        """The number of checks that passed, by evidence."""
        return {evidence: marks.get(Mark.PASS, 0) for evidence, marks in self.by_evidence.items()}

    @property
    def ran(self) -> dict[Evidence, int]:
        """The number of checks that ran, by evidence."""
        return {evidence: sum(marks.values()) for evidence, marks in self.by_evidence.items()}

    @property
    def turns(self) -> dict[RunChangeKind, int]:
        """How many changes there are of each kind that occurs, most urgent first."""
        counts = Counter(change.turn for change in self.changes)
        return {turn: counts[turn] for turn in RunChangeKind if counts[turn]}

    @property
    def checks(self) -> tuple[CheckColumn, ...]:
        """All columns, in order."""
        return tuple(check for tier in self.tiers for check in tier.checks)

    def measured(self, *shapes: type) -> Iterator[tuple[ReportRow, ReportResult]]:
        """Every result with measurements of a check that can have them in one of these classes."""
        names = [check.name for check in self.checks if measures(check.name, *shapes)]
        return ((row, row.measured[name]) for row in self.rows for name in names if name in row.measured)

    @cached_property
    def owners(self) -> Mapping[str, Sequence[OwnedFailure]]:
        """Owner -> failures; those without an owner come first, the others by name."""
        results = [result for row in self.rows for result in row.accountable]
        return failures_by_owner(self.inputs, [*results, *self.strangers])

    @cached_property
    def by_stack(self) -> Mapping[str, Counter[tuple[Mark, Evidence | None]]]:
        """How many checks of each stack have which verdict, on which evidence; None if they did not run."""
        counts: dict[str, Counter[tuple[Mark, Evidence | None]]] = defaultdict(Counter)
        for row in self.rows:
            if row.cell.stack:
                found = counts[row.cell.stack]
                for (_tier, mark, evidence), count in row.kinds.items():
                    found[mark, evidence if mark in RAN else None] += count
        return dict(counts)

    @cached_property
    def all_axes(self) -> tuple[str, ...]:
        """The axes of all cells, in the order of the cells."""
        # Most cells have the same axes.
        kinds = dict.fromkeys(tuple(row.cell.axes) for row in self.rows)
        return tuple(dict.fromkeys(chain.from_iterable(kinds)))

    @cached_property
    def versions(self) -> frozenset[str]:
        """The values of all axes of all cells."""
        return frozenset().union(*(row.cell.axes.values() for row in self.rows))

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Cell -> its title, or its id if it has none; with the id if other cells have the same title."""
        titles = {row.cell.id: row.cell.name for row in self.rows}
        count = Counter(titles.values())
        return {id_: title if count[title] == 1 else f"{title} ({id_})" for id_, title in titles.items()}

    @property
    def complete(self) -> bool:
        """Whether every planned check has a result and none ended with an infrastructure error."""
        return not self.missing and not self.counts.get(Mark.ERROR, 0)

    def streak(self, result: ReportResult) -> Streak | None:
        """Since which run the verdict is the same; None without an outcome or without a history."""
        return result.history.streak(
            result.verdict.status,
            this_run=self.inputs.run.run_id,
            now=self.inputs.run.started or self.inputs.generated,
        )

    def notes_on(self, result: ReportResult) -> tuple[str, ...]:
        """Contradictions in a result that a reader should know of."""
        notes = []
        outcome = result.verdict.outcome
        if outcome and outcome.started > self.inputs.generated + CLOCK_SLACK_S:
            notes.append("This outcome is dated after the report: the clocks of the machines disagree.")
        if result.verdict.evidence is None and result.mark in RAN:
            notes.append("No evidence is recorded with this verdict.")
        return tuple(notes)

    def row(self, cell_id: str) -> ReportRow | None:
        """The row of a cell, or None."""
        return next((row for row in self.rows if row.cell.id == cell_id), None)


@gc_paused()
def build_model(inputs: ReportInputs, before: ReportModel | None = None) -> ReportModel:
    """Arrange cells and results as the model of a report. Pure: equal inputs give equal models.

    before: the model of earlier inputs. Its rows are reused if their cell and results are the same objects.
    """
    cell_ids = {cell.id for cell in inputs.cells}
    changed = _changed_cells(before.inputs, inputs) if before else None
    by_cell: dict[str, dict[str, ReportResult]] = defaultdict(dict)
    for result in inputs.results:
        cell_id = result.entry.cell_id
        if (changed is None or cell_id in changed) and cell_id in cell_ids:
            by_cell[cell_id][result.entry.check] = result
    published: dict[str, list[PublishedStatement]] = defaultdict(list)
    for fact in inputs.published:
        published[fact.cell_id].append(fact)
    tiers = before.tiers if before and _same_columns(before.inputs, inputs) else _columns(inputs)
    older = {row.cell.id: row for row in before.rows} if before else {}
    rows = tuple(
        older[cell.id]
        if changed is not None and cell.id not in changed
        else _row(cell, by_cell[cell.id], tuple(published[cell.id]), tiers, inputs)
        for cell in inputs.cells
    )
    urgent = [result for row in rows for result in row.urgent]
    kinds = _kinds(rows, before, changed)
    counts: Counter[Mark] = Counter()
    by_evidence: dict[Evidence, Counter[Mark]] = {evidence: Counter() for evidence in EVIDENCE}
    for (_tier, mark, evidence), count in kinds.items():
        counts[mark] += count
        if evidence and mark in RAN:
            by_evidence[evidence][mark] += count
    passed = {evidence: marks[Mark.PASS] for evidence, marks in by_evidence.items()}
    missing = tuple((row.cell.id, name) for row in rows for name in row.missing)
    return ReportModel(
        inputs=inputs,
        tiers=tiers,
        rows=rows,
        axes=before.axes if before and before.inputs.cells == inputs.cells else _principal_axes(inputs.cells),
        kinds=kinds,
        counts={mark: counts[mark] for mark in Mark},
        by_evidence=by_evidence,
        planned=sum(len(row.results) for row in rows),
        missing=missing,
        attention=_attention(one for row in rows for one in row.unforeseen),
        patterns=find_patterns([(row.cell.axes, row.marks) for row in rows]),
        headline=headline(counts, missing, sum(_is_known(result) for result in urgent), inputs.run.selection),
        proof=proof(counts, passed),
        unanswered=find_unanswered(one for row in rows for one in row.open),
        strangers=before.strangers
        if before and changed is not None and changed <= cell_ids
        else tuple(result for result in inputs.results if result.entry.cell_id not in cell_ids),
        changes=_changes(inputs.earlier, rows),
    )


def _kinds(rows: Sequence[ReportRow], before: ReportModel | None, changed: set[str] | None) -> Counter[_Kind]:
    """How many results are of each kind. changed: the cells of the rows that are not those of `before`."""
    if before is None or changed is None:
        kinds: Counter[_Kind] = Counter()
        for row in rows:
            kinds.update(row.kinds)
        return kinds
    kinds = before.kinds.copy()
    for old, new in zip(before.rows, rows, strict=True):
        if old is not new:
            kinds.subtract(old.kinds)
            kinds.update(new.kinds)
    return +kinds


def _changed_cells(before: ReportInputs, now: ReportInputs) -> set[str] | None:
    """The cells that differ, or have results that are other objects; None if they cannot be compared."""
    if len(before.cells) != len(now.cells) or len(before.results) != len(now.results):
        return None
    if (before.checks, before.published) != (now.checks, now.published):
        return None
    cells = zip(before.cells, now.cells, strict=True)
    results = zip(before.results, now.results, strict=True)
    different = [pair for pair in results if pair[0] is not pair[1]]
    return {
        *(new.id for old, new in cells if old is not new),
        *(one.entry.cell_id for pair in different for one in pair),
        *(id_ for id_ in now.planned if before.planned.get(id_) != now.planned[id_]),
        *(id_ for id_ in now.exports if before.exports.get(id_) != now.exports[id_]),
    }


def _changes(earlier: ComparisonRun | None, rows: Sequence[ReportRow]) -> tuple[RunChange, ...]:
    if earlier is None:
        return ()
    now: dict[Pair, EarlierVerdict] = {}
    for row in rows:
        now |= row.now
    return compare(earlier.verdicts, now, earlier.causes)


def _comparable(result: ReportResult) -> EarlierVerdict:
    return EarlierVerdict(
        status=result.verdict.status,
        reason=result.reason,
        evidence=result.verdict.evidence,
        key=result.entry.key,
        standing=result.verdict.standing,
    )


def _same_columns(before: ReportInputs, now: ReportInputs) -> bool:
    """Whether two inputs surely have the same columns: the checks, plans and entries are equal."""
    return (
        before.checks == now.checks
        and before.planned == now.planned
        and len(before.results) == len(now.results)
        and all(
            old.entry == new.entry
            for old, new in zip(before.results, now.results, strict=True)
            if old is not new
        )
    )


def _columns(inputs: ReportInputs) -> tuple[TierColumns, ...]:
    checks = {check.name: check for check in inputs.checks}
    entries = {result.entry.check: result.entry for result in inputs.results}
    for entry in entries.values():
        if entry.check not in checks:
            checks[entry.check] = CheckColumn(name=entry.check, tier=entry.tier, question=entry.question)
    for planned in inputs.planned.values():
        for name in planned:
            checks.setdefault(name, CheckColumn(name=name, tier=Tier.STATIC))
    return tuple(
        TierColumns(tier=tier, checks=tuple(check for check in checks.values() if check.tier is tier))
        for tier in Tier
        if any(check.tier is tier for check in checks.values())
    )


def _row(
    cell: CellFacts,
    found: Mapping[str, ReportResult],
    published: tuple[PublishedStatement, ...],
    tiers: Sequence[TierColumns],
    inputs: ReportInputs,
) -> ReportRow:
    planned = inputs.planned.get(cell.id, ())
    results: dict[str, ReportResult] = {}
    for check in (check for tier in tiers for check in tier.checks):
        if check.name in found:
            results[check.name] = found[check.name]
        elif check.name in planned:
            results[check.name] = _no_result(cell.id, check)
    return ReportRow(
        cell=cell,
        slug=file_name(cell.id),
        planned=planned,
        exports=inputs.exports.get(cell.id, {}),
        results=results,
        worst=worst([result.mark for result in results.values()]),
        published=published,
    )


def _no_result(cell_id: str, check: CheckColumn) -> ReportResult:
    return ReportResult(
        entry=PlanEntry(cell_id=cell_id, check=check.name, tier=check.tier, question=""),
        verdict=Verdict(
            cell_id=cell_id,
            check=check.name,
            status=Status.NOT_RUN,
            standing=Standing.AS_EXPECTED,
            reasons=("This check was planned, but it has no outcome: the run is incomplete.",),
            remedies=("Run the same command again; it resumes with what is missing.",),
        ),
        missing=True,
    )


def _principal_axes(cells: Sequence[CellFacts]) -> tuple[str, ...]:
    values: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        for axis, value in cell.axes.items():
            values[axis].add(value)
    preferred = [axis for axis in PRINCIPAL_AXES if axis in values]
    preferred += [axis for axis in values if axis not in PRINCIPAL_AXES]
    varied = [axis for axis in preferred if len(values[axis]) > 1]
    return tuple((varied or preferred)[:SHOWN_AXES])


def _is_known(result: ReportResult) -> bool:
    """Whether an error or an inconclusive verdict is an expected failure."""
    return result.mark in NEEDS_ATTENTION and result.verdict.standing is Standing.KNOWN


def _attention(results: Iterable[tuple[_Group, ReportResult]]) -> tuple[Attention, ...]:
    groups: dict[_Group, list[ReportResult]] = defaultdict(list)
    for group, result in results:
        groups[group].append(result)
    found = [
        Attention(
            check=check,
            mark=mark,
            evidence=group[0].verdict.evidence if mark in RAN else None,
            change=group[0].change,
            reason=reason,
            remedy=group[0].remedy,
            cells=tuple(result.cell_id for result in group),
        )
        for (reason, check, mark), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda item: (SEVERITY[item.mark], item.change != BROKEN)))
