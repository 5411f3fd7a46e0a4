"""The gate: compares the verdicts of a change with those of its base, and classifies each with evidence."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.outcome import Evidence, Status
from harness.plan.tasks.task import reproduce_command
from harness.settings import DEFAULT_PROFILE
from harness.verdict.gate.flake import FlakeDecision, Stability
from harness.verdict.triage.stack_trace import normalised
from harness.verdict.verdict import UNDECIDED, Standing, Verdict

CellCheck = tuple[str, str]


class GateClass(str, enum.Enum):
    """The effect of a change on one (cell, check). `INFRA`: planned, but without a decided outcome."""

    NEW = "new"
    FIXED = "fixed"
    FLAKY = "flaky"
    KNOWN = "known"
    INFRA = "infra"
    NOT_RUN = "not-run"
    PASSED = "passed"


class Blocks(str, enum.Enum):
    """Whether an item makes the gate fail, and why."""

    NO = "no"
    UNEXPECTED = "unexpected"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The line that an annotation points to: a file of the repository, and its line (1 for a whole file)."""

    file: str
    line: int = 1


@dataclass(frozen=True, kw_only=True)
class GateItem:
    """One classified entry of the plan. `evidence`: sentences that name keys and runs of the ledger.

    obtained: how the outcome was obtained. changes: the inputs that the change modified. place: the line that
    sets them. reproduce: the command that repeats the check.
    """

    cell_id: str
    check: str
    gate_class: GateClass
    blocks: Blocks
    status: Status
    key: str = ""
    obtained: Evidence | None = None
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    place: Place | None = None
    reproduce: str = ""


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """The classified entries, and problems of the expected failures.

    untouched: the number of entries that are left out, because they have no outcome and the same key as on
    the base. gone: entries that only the base plans.
    """

    base: str
    items: tuple[GateItem, ...]
    untouched: int = 0
    gone: tuple[CellCheck, ...] = ()
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def counts(self) -> Mapping[GateClass, int]:
        """Class -> number of items, in the order of the classes."""
        counted = Counter(item.gate_class for item in self.items)
        return {one: counted[one] for one in GateClass}

    @property
    def exit_code(self) -> int:
        """1 if an item is unexpected, else 4 if an outcome is missing, else 0; 3 if nothing could run."""
        if not self.items and not self.untouched:
            return EXIT_NOTHING_SELECTED
        blocking = {item.blocks for item in self.items}
        if Blocks.UNEXPECTED in blocking or self.problems:
            return EXIT_UNEXPECTED
        if Blocks.INCOMPLETE in blocking:
            return EXIT_INCOMPLETE
        ran = any(item.gate_class is not GateClass.NOT_RUN for item in self.items)
        return EXIT_OK if ran or self.untouched else EXIT_NOTHING_SELECTED

    @property
    def blocking(self) -> tuple[GateItem, ...]:
        """The items that block the gate, unexpected ones first."""
        found = [item for item in self.items if item.blocks is not Blocks.NO]
        return tuple(sorted(found, key=lambda item: item.blocks is not Blocks.UNEXPECTED))


@dataclass(frozen=True, kw_only=True)
class GateInputs:
    """All inputs of the gate. Mappings are by (cell, check).

    head: the verdicts on all entries of the change. base: the verdicts of the base. base_keys: the keys of
    all entries of the base, with or without an outcome. flakes: decisions for entries with several attempts
    with the same key. changes, places: the inputs of an entry that the change modified, and the line that
    sets them. logs: (reasons, remedies) that triage found in the log of an entry. strict_coverage: entries
    that ran on the base, but not on the change, make the gate fail. impacted_only: leave out entries without
    an outcome whose key is the same on the base. options: command-line options to reproduce a check.
    """

    base_name: str
    head: Mapping[CellCheck, Verdict]
    base: Mapping[CellCheck, Verdict] = field(default_factory=dict)
    base_keys: Mapping[CellCheck, str] = field(default_factory=dict)
    flakes: Mapping[CellCheck, FlakeDecision] = field(default_factory=dict)
    changes: Mapping[CellCheck, Sequence[str]] = field(default_factory=dict)
    places: Mapping[CellCheck, Place] = field(default_factory=dict)
    logs: Mapping[CellCheck, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    strict_coverage: bool = False
    impacted_only: bool = False
    profile: str = DEFAULT_PROFILE
    options: tuple[str, ...] = ()


#: Another attempt with the same key may change these decisions.
_UNDECIDED_STABILITY = frozenset({None, Stability.FAILS, Stability.UNPROVEN})


def undecided(report: GateReport, flakes: Mapping[CellCheck, FlakeDecision]) -> tuple[str, ...]:
    """The keys of new failures that may be flaky; another run of the same key can decide it."""
    keys: dict[str, None] = {}
    for item in report.items:
        flake = flakes.get((item.cell_id, item.check))
        stability = flake.stability if flake else None
        decided = item.status in {Status.PASS, Status.FAIL}
        if item.gate_class is GateClass.NEW and decided and stability in _UNDECIDED_STABILITY:
            keys[item.key] = None
    return tuple(key for key in keys if key)


def judge_gate(inputs: GateInputs) -> GateReport:
    """Classify every planned entry. If the cause of a failure is unclear, it counts as new."""
    judged = {name: verdict for name, verdict in inputs.head.items() if not _left_out(name, verdict, inputs)}
    return GateReport(
        base=inputs.base_name,
        items=tuple(_item(name, verdict, inputs) for name, verdict in judged.items()),
        untouched=len(inputs.head) - len(judged),
        gone=tuple(name for name in inputs.base_keys if name not in inputs.head),
        problems=inputs.problems,
        notices=inputs.notices,
    )


def _left_out(name: CellCheck, head: Verdict, inputs: GateInputs) -> bool:
    """Whether an entry has no outcome and the same key on the base, so that the change cannot be a cause."""
    no_outcome = head.status in {Status.ERROR, Status.BLOCKED}
    return inputs.impacted_only and no_outcome and bool(head.key) and inputs.base_keys.get(name) == head.key


def _item(name: CellCheck, head: Verdict, inputs: GateInputs) -> GateItem:
    gate_class, blocks, evidence = _classify(name, head, inputs)
    reasons, remedies = inputs.logs.get(name, ((), ()))
    return GateItem(
        cell_id=name[0],
        check=name[1],
        gate_class=gate_class,
        blocks=blocks,
        status=head.status,
        key=head.key,
        reproduce=reproduce_command(*name, profile=inputs.profile, options=inputs.options),
        obtained=head.evidence,
        reasons=(*head.reasons, *reasons),
        remedies=(*head.remedies, *remedies),
        evidence=evidence,
        changes=tuple(inputs.changes.get(name, ())),
        place=inputs.places.get(name),
    )


_Class = tuple[GateClass, Blocks, tuple[str, ...]]


def _classify(name: CellCheck, head: Verdict, inputs: GateInputs) -> _Class:
    if head.standing is Standing.UNEXPECTED_PASS:
        where = f" ({head.expected.where})" if head.expected else ""
        return (
            GateClass.FIXED,
            Blocks.UNEXPECTED,
            (f"expected to fail{where}, but it passes: run `npu-matrix expect update`",),
        )
    if head.status is Status.NOT_RUN:
        return _not_run(name, inputs)
    if head.status is Status.BLOCKED:
        # The failed check of the cell is an item of its own. Without one, the outcome is missing.
        has_cause = any(
            verdict.status not in {Status.PASS, Status.NOT_RUN, Status.BLOCKED}
            for (cell_id, _check), verdict in inputs.head.items()
            if cell_id == name[0]
        )
        blocks = Blocks.NO if has_cause else Blocks.INCOMPLETE
        return GateClass.NOT_RUN, blocks, ("a check that it depends on did not pass in this cell",)
    if head.standing is Standing.KNOWN:
        known = head.expected
        why = (
            f"expected failure: {known.reason} ({known.where}, until {known.until})"
            if known
            else "expected failure"
        )
        return GateClass.KNOWN, Blocks.NO, (why,)
    if head.status is Status.INCONCLUSIVE and head.key == inputs.base_keys.get(name):
        return GateClass.KNOWN, Blocks.NO, (f"inconclusive; {_same_key(head, inputs)}",)
    if head.status in UNDECIDED:
        what = (
            "inconclusive: the measurements do not decide the verdict"
            if head.status is Status.INCONCLUSIVE
            else "the check is planned but has no outcome"
        )
        return GateClass.INFRA, Blocks.INCOMPLETE, (what,)
    flake = inputs.flakes.get(name)
    if flake and flake.stability not in {Stability.PASSES, Stability.FAILS}:
        if flake.stability is Stability.FLAKY:
            return GateClass.FLAKY, Blocks.NO, (flake.reason,)
        return _new(flake.reason)
    if head.standing is Standing.AS_EXPECTED:
        return _passed(name, head, inputs)
    gate_class, blocks, evidence = _failed(name, head, inputs)
    return gate_class, blocks, (*evidence, flake.reason) if flake else evidence


def _not_run(name: CellCheck, inputs: GateInputs) -> _Class:
    base = inputs.base.get(name)
    lost = base is not None and base.status not in {Status.NOT_RUN, Status.BLOCKED}
    evidence = (f"not run, but the base has an outcome: {_described(base)}",) if base and lost else ()
    blocks = Blocks.INCOMPLETE if inputs.strict_coverage else Blocks.NO
    return GateClass.NOT_RUN, blocks, evidence


def _passed(name: CellCheck, head: Verdict, inputs: GateInputs) -> _Class:
    base = inputs.base.get(name)
    if base and head.status is Status.UNSUPPORTED and base.status is Status.PASS:
        return _new(f"no longer supported; verdict of the base: {_described(base)}")
    if base and head.status is Status.PASS and base.status is Status.FAIL:
        return GateClass.FIXED, Blocks.NO, (f"it failed on the base: {_described(base)}",)
    if head.status is Status.UNSUPPORTED:
        return GateClass.NOT_RUN, Blocks.NO, ("unsupported in this cell, so nothing was verified",)
    return GateClass.PASSED, Blocks.NO, ()


def _failed(name: CellCheck, head: Verdict, inputs: GateInputs) -> _Class:
    if head.key and inputs.base_keys.get(name) == head.key:
        return GateClass.KNOWN, Blocks.NO, (_same_key(head, inputs),)
    base = inputs.base.get(name)
    if base is None:
        missing = "is not planned" if name not in inputs.base_keys else "was never run"
        return _new(f"no verdict to compare with: the check {missing} on the base")
    if base.status is not head.status:
        return _new(f"verdict of the base: {_described(base)}")
    if _normalised_reasons(base) != _normalised_reasons(head):
        return _new(f"it fails for other reasons than on the base: {_described(base)}")
    return GateClass.KNOWN, Blocks.NO, (f"it fails for the same reasons on the base: {_described(base)}",)


def _new(evidence: str) -> _Class:
    return GateClass.NEW, Blocks.UNEXPECTED, (evidence,)


def _same_key(head: Verdict, inputs: GateInputs) -> str:
    return f"key {head.key[:12]} is the same on {inputs.base_name}: this change cannot have caused it"


def _normalised_reasons(verdict: Verdict) -> tuple[str, ...]:
    return tuple(sorted({normalised(reason) for reason in verdict.reasons}))


def _described(verdict: Verdict) -> str:
    run = f" in run {verdict.outcome.run_id}" if verdict.outcome and verdict.outcome.run_id else ""
    key = f", key {verdict.key[:12]}" if verdict.key else ""
    return f"{verdict.status.value}{run}{key}"
