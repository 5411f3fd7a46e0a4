"""The gate: compares the verdicts of a change with those of its base and classifies each, with evidence."""

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
    """What a change did to one (cell, check)."""

    NEW = "new"
    FIXED = "fixed"
    FLAKY = "flaky"
    KNOWN = "known"
    INFRA = "infra"
    NOT_RUN = "not-run"
    PASSED = "passed"


class Blocks(str, enum.Enum):
    """Whether an item makes the gate red, and why."""

    NO = "no"
    UNEXPECTED = "unexpected"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The line that an annotation points to: a file of the checkout and its line (1 for a whole file)."""

    file: str
    line: int = 1


@dataclass(frozen=True, kw_only=True)
class GateItem:
    """One entry of the plan, classified. `evidence` are sentences that name keys and runs of the ledger."""

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
    """Every planned entry, and problems of the expected failures.

    untouched: how many entries are left out because their key is the same as on the base. gone: entries that
    only the base plans.
    """

    base: str
    items: tuple[GateItem, ...]
    untouched: int = 0
    gone: tuple[CellCheck, ...] = ()
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def counts(self) -> Mapping[GateClass, int]:
        """How many items of each class, in the order of the classes."""
        counted = Counter(item.gate_class for item in self.items)
        return {one: counted[one] for one in GateClass}

    @property
    def exit_code(self) -> int:
        """1 has precedence over 4, and 4 over 0; 3 when nothing was planned or nothing could run."""
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

    head: every planned entry. base: the verdicts of the base. base_keys: the keys that the base plans, with
    or without an outcome. flakes: the decision for entries with several attempts on their key. changes,
    places: which inputs of an entry this change touched, and the line that sets them. logs: reasons and
    remedies that triage found in its log.
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


#: For these another attempt with the same key may give another decision.
_OPEN = frozenset({None, Stability.FAILS, Stability.UNPROVEN})


def undecided(report: GateReport, flakes: Mapping[CellCheck, FlakeDecision]) -> tuple[str, ...]:
    """Keys of new failures that may be flaky: another run with the same key can show it."""
    found: dict[str, None] = {}
    for item in report.items:
        flake = flakes.get((item.cell_id, item.check))
        answered = item.status in {Status.PASS, Status.FAIL}
        if item.gate_class is GateClass.NEW and answered and (flake.stability if flake else None) in _OPEN:
            found[item.key] = None
    return tuple(key for key in found if key)


def judge_gate(inputs: GateInputs) -> GateReport:
    """Classify every planned entry; in doubt a failure counts as new."""
    judged = {name: side for name, side in inputs.head.items() if not _left_out(name, side, inputs)}
    return GateReport(
        base=inputs.base_name,
        items=tuple(_item(name, side, inputs) for name, side in judged.items()),
        untouched=len(inputs.head) - len(judged),
        gone=tuple(name for name in inputs.base_keys if name not in inputs.head),
        problems=inputs.problems,
        notices=inputs.notices,
    )


def _left_out(name: CellCheck, head: Verdict, inputs: GateInputs) -> bool:
    """Whether an entry has no outcome and the same key on the base: then the change cannot be the cause."""
    answered = head.status not in {Status.ERROR, Status.BLOCKED}
    return inputs.impacted_only and not answered and bool(head.key) and inputs.base_keys.get(name) == head.key


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
        # The check that blocks it is an item of its own; without one, the outcome is missing.
        root = any(
            one.status not in {Status.PASS, Status.NOT_RUN, Status.BLOCKED}
            for (cell_id, _check), one in inputs.head.items()
            if cell_id == name[0]
        )
        blocks = Blocks.NO if root else Blocks.INCOMPLETE
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
        flaky = flake.stability is Stability.FLAKY
        return (
            (GateClass.FLAKY, Blocks.NO, (flake.reason,))
            if flaky
            else (GateClass.NEW, Blocks.UNEXPECTED, (flake.reason,))
        )
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
        return (
            GateClass.NEW,
            Blocks.UNEXPECTED,
            (f"no longer supported; verdict of the base: {_described(base)}",),
        )
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
        return (
            GateClass.NEW,
            Blocks.UNEXPECTED,
            (f"no verdict to compare with: the check {missing} on the base",),
        )
    if base.status is not head.status:
        return GateClass.NEW, Blocks.UNEXPECTED, (f"verdict of the base: {_described(base)}",)
    if _words(base) != _words(head):
        return (
            GateClass.NEW,
            Blocks.UNEXPECTED,
            (f"it fails for other reasons than on the base: {_described(base)}",),
        )
    return GateClass.KNOWN, Blocks.NO, (f"it fails for the same reasons on the base: {_described(base)}",)


def _same_key(head: Verdict, inputs: GateInputs) -> str:
    return f"key {head.key[:12]} is the same on {inputs.base_name}: this change cannot have caused it"


def _words(verdict: Verdict) -> tuple[str, ...]:
    return tuple(sorted({normalised(reason) for reason in verdict.reasons}))


def _described(verdict: Verdict) -> str:
    run = f" in run {verdict.outcome.run_id}" if verdict.outcome and verdict.outcome.run_id else ""
    key = f", key {verdict.key[:12]}" if verdict.key else ""
    return f"{verdict.status.value}{run}{key}"
