"""The gate: the verdicts of a change held against those of its base, each classified with its evidence."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.outcome import Evidence, Status
from harness.plan.tasks.reproduce import reproduce_command
from harness.settings import DEFAULT_PROFILE
from harness.verdict.gate.flake import FlakeDecision, Stability
from harness.verdict.triage.stack_trace import normalised
from harness.verdict.verdict import WITHOUT_ANSWER, Standing, Verdict

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
    """Whether an item keeps the gate from green, and why."""

    NO = "no"
    UNEXPECTED = "unexpected"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, kw_only=True)
class Place:
    """What is to blame: a file of the checkout and its line (1 where a line makes no sense)."""

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
    """Every planned entry, what was planned before and is not now, and problems of the list.

    untouched: planned entries left out because their key is the base's, so that nothing changed for them.
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
        """1 before 4 before 0; where nothing was planned, or nothing of it asked, it is 3, never green."""
        if not self.items and not self.untouched:
            return EXIT_NOTHING_SELECTED
        blocking = {item.blocks for item in self.items}
        if Blocks.UNEXPECTED in blocking or self.problems:
            return EXIT_UNEXPECTED
        if Blocks.INCOMPLETE in blocking:
            return EXIT_INCOMPLETE
        asked = any(item.gate_class is not GateClass.NOT_RUN for item in self.items)
        return EXIT_OK if asked or self.untouched else EXIT_NOTHING_SELECTED

    @property
    def blocking(self) -> tuple[GateItem, ...]:
        """The items that keep it from green, the unexpected first."""
        found = [item for item in self.items if item.blocks is not Blocks.NO]
        return tuple(sorted(found, key=lambda item: item.blocks is not Blocks.UNEXPECTED))


@dataclass(frozen=True, kw_only=True)
class GateInputs:
    """All a gate judges from. Mappings are by (cell, check).

    head: every planned entry. base: what is known of the base. base_keys: the keys the base plans, answered
    or not. flakes: the decision for entries attempted more than once on their key. changes, places: what this
    change touched of an entry, and where that is written. logs: reasons and remedies its log adds.
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


#: Of these, another attempt on the same key may show more; the others are decided.
_OPEN = frozenset({None, Stability.FAILS, Stability.UNPROVEN})


def undecided(report: GateReport, flakes: Mapping[CellCheck, FlakeDecision]) -> tuple[str, ...]:
    """Keys of new failures that may be chance: what a run on the same key can tell."""
    found: dict[str, None] = {}
    for item in report.items:
        flake = flakes.get((item.cell_id, item.check))
        answered = item.status in {Status.PASS, Status.FAIL}
        if item.gate_class is GateClass.NEW and answered and (flake.stability if flake else None) in _OPEN:
            found[item.key] = None
    return tuple(key for key in found if key)


def judge_gate(inputs: GateInputs) -> GateReport:
    """Classify every planned entry; whatever cannot be told apart from a new failure is one."""
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
    """Without an answer, and of a key the base has too: the change has no part in the answer."""
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
            (f"expected to fail, but it passes: `npu-matrix expect update` takes it off{where}",),
        )
    if head.status is Status.NOT_RUN:
        return _not_run(name, inputs)
    if head.status is Status.BLOCKED:
        # What blocks it stands in the report itself; without that, nobody has answered.
        root = any(
            one.status not in {Status.PASS, Status.NOT_RUN, Status.BLOCKED}
            for (cell_id, _check), one in inputs.head.items()
            if cell_id == name[0]
        )
        blocks = Blocks.NO if root else Blocks.INCOMPLETE
        return GateClass.NOT_RUN, blocks, ("what it needs did not pass in this cell",)
    if head.standing is Standing.KNOWN:
        known = head.expected
        why = f"on the list: {known.reason} ({known.where}, until {known.until})" if known else "on the list"
        return GateClass.KNOWN, Blocks.NO, (why,)
    if head.status is Status.INCONCLUSIVE and head.key == inputs.base_keys.get(name):
        return GateClass.KNOWN, Blocks.NO, (f"measured, but not decided; {_same_key(head, inputs)}",)
    if head.status in WITHOUT_ANSWER:
        what = (
            "measured, but not decided"
            if head.status is Status.INCONCLUSIVE
            else "planned, and there is no answer"
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
    evidence = (f"the base has an answer: {_described(base)}",) if base and lost else ()
    blocks = Blocks.INCOMPLETE if inputs.strict_coverage else Blocks.NO
    return GateClass.NOT_RUN, blocks, evidence


def _passed(name: CellCheck, head: Verdict, inputs: GateInputs) -> _Class:
    base = inputs.base.get(name)
    if base and head.status is Status.UNSUPPORTED and base.status is Status.PASS:
        return GateClass.NEW, Blocks.UNEXPECTED, (f"no longer supported; on the base: {_described(base)}",)
    if base and head.status is Status.PASS and base.status is Status.FAIL:
        return GateClass.FIXED, Blocks.NO, (f"it failed on the base: {_described(base)}",)
    if head.status is Status.UNSUPPORTED:
        return GateClass.NOT_RUN, Blocks.NO, ("unsupported here, which proves nothing",)
    return GateClass.PASSED, Blocks.NO, ()


def _failed(name: CellCheck, head: Verdict, inputs: GateInputs) -> _Class:
    if head.key and inputs.base_keys.get(name) == head.key:
        return GateClass.KNOWN, Blocks.NO, (_same_key(head, inputs),)
    base = inputs.base.get(name)
    if base is None:
        missing = "the base does not plan it" if name not in inputs.base_keys else "the base was never run"
        return GateClass.NEW, Blocks.UNEXPECTED, (f"nothing to compare with: {missing}",)
    if base.status is not head.status:
        return GateClass.NEW, Blocks.UNEXPECTED, (f"on the base: {_described(base)}",)
    if _words(base) != _words(head):
        return GateClass.NEW, Blocks.UNEXPECTED, (f"it fails otherwise than on the base: {_described(base)}",)
    return GateClass.KNOWN, Blocks.NO, (f"it fails alike on the base: {_described(base)}",)


def _same_key(head: Verdict, inputs: GateInputs) -> str:
    return f"key {head.key[:12]} is the same on {inputs.base_name}: this change cannot have caused it"


def _words(verdict: Verdict) -> tuple[str, ...]:
    return tuple(sorted({normalised(reason) for reason in verdict.reasons}))


def _described(verdict: Verdict) -> str:
    run = f" in run {verdict.outcome.run_id}" if verdict.outcome and verdict.outcome.run_id else ""
    key = f", key {verdict.key[:12]}" if verdict.key else ""
    return f"{verdict.status.value}{run}{key}"
