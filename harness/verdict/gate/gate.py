"""The gate: compares the verdicts of a change with those of its base, and classifies each with evidence."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from harness.outcome import UNANSWERED, UNDECIDED, UNRUN, Evidence, State, Status
from harness.plan.tasks.task import reproduce_command
from harness.settings import DEFAULT_PROFILE
from harness.verdict.gate.changed_parts import ChangedParts
from harness.verdict.gate.flake import FlakeDecision, Stability
from harness.verdict.gate.gate_report import (
    Blocks,
    CellCheck,
    GateClass,
    GateItem,
    GateReport,
    GateScope,
    Place,
)
from harness.verdict.triage.stack_trace import normalised
from harness.verdict.verdict import NOT_FAILURES, Standing, Verdict

#: Patterns for all tasks that need a device which this host does not have, and for all that the user did not
#: select.
NPU, UNSELECTED = "npu", "unselected"
#: The folder of mirrors in commands for users who have none.
#: Another attempt with the same key may change these decisions.
_UNDECIDED_STABILITY = frozenset({None, Stability.FAILS, Stability.UNPROVEN})


@dataclass(frozen=True, kw_only=True)
class GateInputs:
    """All inputs of the gate. Mappings are by (cell, check).

    head: the verdicts on all entries of the change. head_keys: their keys, also those of tasks that this host
    cannot run; default: the keys of the verdicts. base: the verdicts of the base that decide something.
    base_keys: the keys of all entries of the base, with or without an outcome; "" if the entry has no task.
    base_statuses: why entries of the base decide nothing. base_expected: where the base declares an expected
    failure; None if that is unknown. expected_otherwise: entries whose expected failure the change modifies;
    they need an outcome like those whose key differs. evidence_changes: entries that can have other evidence
    than on the base, with the strongest on the base and here.
    selected: the entries that the user selected; others are judged only if their key changed. None: all.
    hardware: entries that need a device which this host does not have. awaiting: entries whose outcomes
    another job provides; see `matches`. accept_removed: entries that the change may remove.
    flakes: decisions for entries with several attempts with the same key. changes, places: the inputs of an
    entry that the change modified, and the line that sets them. logs: (reasons, remedies) that triage found
    in the log of an entry. impacted_only: leave out entries without an outcome whose key is the same on the
    base. options: command-line options to reproduce a check. base_command: the command that runs the base;
    "" if it cannot be run. base_cells: cell id -> its id on the base, where they differ.
    mirrors: (cell, check) -> the repositories to clone, for entries whose commits are in no mirror.
    parts: the parts of entries that have no verdict, or none on the base, as a whole.
    """

    base_name: str
    head: Mapping[CellCheck, Verdict]
    head_keys: Mapping[CellCheck, str] = field(default_factory=dict)
    base: Mapping[CellCheck, Verdict] = field(default_factory=dict)
    base_keys: Mapping[CellCheck, str] = field(default_factory=dict)
    base_statuses: Mapping[CellCheck, Status] = field(default_factory=dict)
    base_expected: Mapping[CellCheck, str] | None = None
    expected_otherwise: Collection[CellCheck] = ()
    evidence_changes: Mapping[CellCheck, tuple[Evidence, Evidence]] = field(default_factory=dict)
    selected: Collection[CellCheck] | None = None
    hardware: Collection[CellCheck] = ()
    awaiting: tuple[str, ...] = ()
    accept_removed: tuple[str, ...] = ()
    flakes: Mapping[CellCheck, FlakeDecision] = field(default_factory=dict)
    changes: Mapping[CellCheck, Sequence[str]] = field(default_factory=dict)
    places: Mapping[CellCheck, Place] = field(default_factory=dict)
    logs: Mapping[CellCheck, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    scope: GateScope = field(default_factory=GateScope)
    impacted_only: bool = False
    profile: str = DEFAULT_PROFILE
    options: tuple[str, ...] = ()
    base_command: str = ""
    base_cells: Mapping[str, str] = field(default_factory=dict)
    mirrors: Mapping[CellCheck, str] = field(default_factory=dict)
    parts: Mapping[CellCheck, ChangedParts] = field(default_factory=dict)

    def key(self, name: CellCheck) -> str:
        """The key of an entry of the change; "" if it has no task."""
        verdict = self.head.get(name)
        return self.head_keys.get(name, "") or (verdict.key if verdict else "")

    def declares(self, name: CellCheck) -> bool:
        """Whether the change itself declares this failure as expected; the base does not, or another one."""
        verdict = self.head.get(name)
        if verdict is None or verdict.expected is None or self.base_expected is None:
            return False
        return name not in self.base_expected or name in self.expected_otherwise

    def weakened(self, name: CellCheck) -> str:
        """Why the change has, or can have, only weaker evidence for the entry than the base; else ""."""
        before, after = self.evidence_changes.get(name, (Evidence.STATIC, Evidence.STATIC))
        if after.rank < before.rank:
            return f"the base can give {before.value} evidence for it, the change only {after.value}"
        base, head = self.base.get(name), self.head.get(name)
        if not base or not head or not self.changed(name) or {base.status, head.status} != {Status.PASS}:
            return ""
        if base.evidence is None or (head.evidence and head.evidence.rank >= base.evidence.rank):
            return ""
        weaker = head.evidence.value if head.evidence else "no"
        return f"it passed on {base.evidence.value} evidence on the base, and on {weaker} evidence here"

    def needs_outcome(self, name: CellCheck) -> bool:
        """Whether the change can alter the verdict on an entry, so that it needs an outcome."""
        return self.changed(name) or name in self.expected_otherwise

    def changed(self, name: CellCheck) -> bool:
        """Whether the key of an entry differs from that of the base, or the base has no such key."""
        key = self.key(name)
        return bool(key) and key != self.base_keys.get(name)


def matches(pattern: str, name: CellCheck, inputs: GateInputs) -> bool:
    """Whether a pattern `CELL:CHECK`, `CHECK` (both with globs), `npu` or `unselected` covers an entry."""
    if pattern == NPU:
        return name in inputs.hardware
    if pattern == UNSELECTED:
        return inputs.selected is not None and name not in inputs.selected
    cell, colon, check = pattern.rpartition(":")
    return fnmatchcase(name[1], check) and (not colon or fnmatchcase(name[0], cell))


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


def unknown_on_base(report: GateReport, inputs: GateInputs) -> tuple[CellCheck, ...]:
    """(cell id on the base, check) of the failures that an outcome of the base can decide."""
    return tuple(
        (inputs.base_cells.get(item.cell_id, item.cell_id), item.check)
        for item in report.items
        if item.gate_class is GateClass.UNKNOWN and (item.cell_id, item.check) not in inputs.hardware
    )


def judge_gate(inputs: GateInputs) -> GateReport:
    """Classify every planned entry of the change, and those that only the base plans.

    A key that differs from the base and has no outcome blocks the change, for whatever reason.
    """
    head = {name: verdict for name, verdict in inputs.head.items() if _in_scope(name, inputs)}
    removed = [name for name, key in inputs.base_keys.items() if key and not inputs.key(name)]
    judged = {
        name: verdict
        for name, verdict in head.items()
        if name not in removed and not _left_out(name, verdict, inputs)
    }
    items = [_item(name, verdict, inputs) for name, verdict in judged.items()]
    weakened = [name for name in {**inputs.evidence_changes, **judged} if inputs.weakened(name)]
    return GateReport(
        base=inputs.base_name,
        items=(*items, *(_removed_item(name, inputs) for name in (*removed, *weakened))),
        untouched=len(head) - len(items) - sum(name in head for name in removed),
        problems=inputs.problems,
        unverified=inputs.unverified,
        notices=inputs.notices,
        scope=inputs.scope,
        awaiting=inputs.awaiting,
        accept_removed=inputs.accept_removed,
    )


def _in_scope(name: CellCheck, inputs: GateInputs) -> bool:
    return inputs.selected is None or name in inputs.selected or inputs.needs_outcome(name)


def _left_out(name: CellCheck, head: Verdict, inputs: GateInputs) -> bool:
    """Whether an entry has no verdict, and the change cannot alter it."""
    unanswered = head.status in UNANSWERED
    return inputs.impacted_only and unanswered and bool(inputs.key(name)) and not inputs.needs_outcome(name)


def _item(name: CellCheck, head: Verdict, inputs: GateInputs) -> GateItem:
    gate_class, blocks, evidence = _classify(name, head, inputs)
    reasons, remedies = inputs.logs.get(name, ((), ()))
    how: tuple[str, ...] = ()
    if blocks is Blocks.INCOMPLETE:
        awaited = next((one for one in inputs.awaiting if _is_awaited(one, name, head, inputs)), "")
        if awaited:
            gate_class, blocks, evidence = GateClass.AWAITED, Blocks.NO, (f"awaited: {awaited}", *evidence)
        else:
            how = _how_to_get(name, gate_class, head, inputs)
    return GateItem(
        cell_id=name[0],
        check=name[1],
        gate_class=gate_class,
        blocks=blocks,
        status=head.status,
        key=inputs.key(name),
        changed=inputs.changed(name),
        reproduce=_run_command(name, inputs),
        obtained=head.evidence,
        reasons=(*head.reasons, *reasons),
        # The remedies of an entry that was never run are about the run that should have run it.
        remedies=(*(head.remedies if head.outcome or not how else ()), *remedies, *how),
        evidence=evidence,
        changes=tuple(inputs.changes.get(name, ())),
        place=inputs.places.get(name),
        declared=gate_class is GateClass.KNOWN and inputs.declares(name),
    )


def _removed_item(name: CellCheck, inputs: GateInputs) -> GateItem:
    """An entry that the base runs and the change does not, or only with weaker evidence."""
    head = inputs.head.get(name)
    accepted = _is_accepted(name, inputs)
    reasons = head.reasons if head else ("only the base plans this check of this cell",)
    if weaker := inputs.weakened(name):
        reasons = (weaker,)
    option = shlex.quote(f"{name[0]}:{name[1]}")
    return GateItem(
        cell_id=name[0],
        check=name[1],
        gate_class=GateClass.REMOVED,
        blocks=Blocks.NO if accepted else Blocks.INCOMPLETE,
        status=head.status if head else Status.NOT_RUN,
        reasons=reasons,
        remedies=() if accepted else (f"plan it again, or accept it: gate --accept-removed {option}",),
        evidence=(f"the base plans it with key {inputs.base_keys.get(name, '')[:12]}",),
        place=inputs.places.get(name),
    )


def _is_accepted(name: CellCheck, inputs: GateInputs) -> bool:
    return any(matches(pattern, name, inputs) for pattern in inputs.accept_removed)


def _is_awaited(pattern: str, name: CellCheck, head: Verdict, inputs: GateInputs) -> bool:
    """Only a missing outcome can be awaited, not one that is here and decides nothing.

    A change must not evade a check by moving it to a device that only another job has.
    """
    if pattern == NPU and name in inputs.evidence_changes and not _is_accepted(name, inputs):
        return False
    missing = head.outcome is None or head.status in UNRUN | {Status.BLOCKED}
    return missing and head.status in UNANSWERED and matches(pattern, name, inputs)


def _how_to_get(name: CellCheck, gate_class: GateClass, head: Verdict, inputs: GateInputs) -> tuple[str, ...]:
    """How to get the missing outcome, here or from another machine."""
    if gate_class is GateClass.UNKNOWN:
        command = inputs.base_command
        return (f"run the base: {command}" if command else "run this check in the checkout of the base",)
    command = _run_command(name, inputs)
    option = shlex.quote(f"{name[0]}:{name[1]}")
    if name in inputs.hardware:
        merge = "run it on a host with this device, and merge its ledger with `gate --merge FOLDER`"
        awaiting = f"gate --awaiting {option} (--awaiting {NPU}: everything that needs an NPU)"
        return (
            f"{merge}: {command}",
            f"if another job runs it and decides on its own, say so: {awaiting}",
        )
    if name in inputs.mirrors:
        url = inputs.mirrors[name]
        fetch = f"get the sources from {url} and run it: npu-matrix mirrors update && {command}"
        return (f"{fetch}; or name a folder of clones with --mirrors",)
    if head.status is Status.BLOCKED:
        return (f"repair what did not pass in this cell, then run it: {command}",)
    return (f"run it: {command}",)


def _run_command(name: CellCheck, inputs: GateInputs) -> str:
    return reproduce_command(*name, profile=inputs.profile, options=inputs.options)


_Class = tuple[GateClass, Blocks, tuple[str, ...]]


def _classify(name: CellCheck, head: Verdict, inputs: GateInputs) -> _Class:
    if head.standing is Standing.UNEXPECTED_PASS:
        where = f" ({head.expected.where})" if head.expected else ""
        return (
            GateClass.FIXED,
            Blocks.UNEXPECTED,
            (f"expected to fail{where}, but it passes: run `npu-matrix expect update`",),
        )
    if head.status in UNRUN:
        return _not_run(name, inputs)
    if head.status is Status.BLOCKED:
        return _blocked(name, inputs)
    verifies_nothing = head.status in {*UNDECIDED, Status.UNSUPPORTED}
    if head.standing is Standing.KNOWN and not (verifies_nothing and inputs.declares(name)):
        return GateClass.KNOWN, Blocks.NO, _known(name, head, inputs)
    earlier = (inputs.base_expected or {}).get(name) if head.expected is None else None
    if head.standing is Standing.UNEXPECTED and earlier:
        return _new(f"the change removes its expectation ({earlier}), and it still fails")
    if head.status is Status.INCONCLUSIVE and head.key == inputs.base_keys.get(name):
        return GateClass.KNOWN, Blocks.NO, (f"inconclusive; {_same_key(head, inputs)}",)
    if head.status in UNDECIDED:
        return GateClass.INFRA, Blocks.INCOMPLETE, _undecided(name, head, inputs)
    flake = inputs.flakes.get(name)
    if flake and flake.stability not in {Stability.PASSES, Stability.FAILS}:
        if flake.stability is Stability.FLAKY:
            return GateClass.FLAKY, Blocks.NO, (flake.reason,)
        return _new(flake.reason) if name in inputs.base else _without_base(name, inputs, flake.reason)
    if head.standing is Standing.AS_EXPECTED:
        return _passed(name, head, inputs)
    gate_class, blocks, evidence = _failed(name, head, inputs)
    return gate_class, blocks, (*evidence, flake.reason) if flake else evidence


def _undecided(name: CellCheck, head: Verdict, inputs: GateInputs) -> tuple[str, ...]:
    if head.outcome is None:
        return (_changed_without_outcome(name, inputs),) if inputs.needs_outcome(name) else ()
    if head.status is Status.INCONCLUSIVE:
        return ("inconclusive: the measurements do not decide the verdict",)
    return ("the check is planned but has no outcome",)


def _known(name: CellCheck, head: Verdict, inputs: GateInputs) -> tuple[str, ...]:
    known = head.expected
    if known is None:
        return ("expected failure",)
    why = f"expected failure: {known.reason} ({known.where}, until {known.until})"
    if not inputs.declares(name):
        return (why,)
    base = inputs.base.get(name)
    on_base = f"verdict of the base: {_described(base)}" if base else _no_base(name, inputs)
    return (why, "this change declares it as expected, the base does not, or in another way", on_base)


def _not_run(name: CellCheck, inputs: GateInputs) -> _Class:
    base = inputs.base.get(name)
    evidence = (f"not run, but the base has an outcome: {_described(base)}",) if base else ()
    parts = inputs.parts.get(name)
    if parts and parts.verified and name not in inputs.expected_otherwise:
        return GateClass.NOT_RUN, Blocks.NO, (parts.verified, *evidence)
    if inputs.needs_outcome(name):
        return GateClass.NOT_RUN, Blocks.INCOMPLETE, (_changed_without_outcome(name, inputs), *evidence)
    return GateClass.NOT_RUN, Blocks.NO, evidence


def _blocked(name: CellCheck, inputs: GateInputs) -> _Class:
    why = "a check that it depends on did not pass in this cell"
    if inputs.changed(name):
        return GateClass.NOT_RUN, Blocks.INCOMPLETE, (why, _changed_without_outcome(name, inputs))
    # The failed check of the cell is an item of its own. Without one, the outcome is missing.
    has_cause = any(
        verdict.status not in NOT_FAILURES | {Status.BLOCKED}
        for (cell_id, _check), verdict in inputs.head.items()
        if cell_id == name[0]
    )
    return GateClass.NOT_RUN, Blocks.NO if has_cause else Blocks.INCOMPLETE, (why,)


def _changed_without_outcome(name: CellCheck, inputs: GateInputs) -> str:
    if not inputs.changed(name):
        return "this change modifies its expected failure, and it has no outcome"
    if name not in inputs.base_keys:
        return f"this change adds key {inputs.key(name)[:12]}, and it has no outcome"
    return f"this change modifies its key to {inputs.key(name)[:12]}, and that key has no outcome"


def _passed(name: CellCheck, head: Verdict, inputs: GateInputs) -> _Class:
    base = inputs.base.get(name)
    if head.status is Status.UNSUPPORTED:
        return _unsupported(name, base, inputs)
    if base and base.status is Status.FAIL:
        return GateClass.FIXED, Blocks.NO, (f"it failed on the base: {_described(base)}",)
    return GateClass.PASSED, Blocks.NO, ()


def _unsupported(name: CellCheck, base: Verdict | None, inputs: GateInputs) -> _Class:
    if base and base.status is Status.PASS:
        return _new(f"no longer supported; verdict of the base: {_described(base)}")
    nothing = "unsupported in this cell, so nothing was verified"
    if inputs.changed(name) and (base is None or base.status is not Status.UNSUPPORTED):
        on_base = f"verdict of the base: {_described(base)}" if base else _no_base(name, inputs)
        return GateClass.NOT_RUN, Blocks.INCOMPLETE, (nothing, on_base)
    return GateClass.NOT_RUN, Blocks.NO, (nothing,)


def _failed(name: CellCheck, head: Verdict, inputs: GateInputs) -> _Class:
    if not inputs.changed(name) and head.key:
        return GateClass.KNOWN, Blocks.NO, (_same_key(head, inputs),)
    base = inputs.base.get(name)
    if base is None:
        return _without_base(name, inputs)
    if base.status is not head.status:
        return _new(f"verdict of the base: {_described(base)}")
    if head.state == base.state == State.TIMEOUT.value:
        both = f"it timed out here and on the base, so neither shows whether it works: {_described(base)}"
        return GateClass.INFRA, Blocks.INCOMPLETE, (both,)
    if _normalised_reasons(base) != _normalised_reasons(head):
        return _new(f"it fails for other reasons than on the base: {_described(base)}")
    return GateClass.KNOWN, Blocks.NO, (f"it fails for the same reasons on the base: {_described(base)}",)


def _without_base(name: CellCheck, inputs: GateInputs, *evidence: str) -> _Class:
    """A failure that cannot be compared: new if only the change plans the check, otherwise unknown."""
    parts = inputs.parts.get(name)
    if parts and parts.broken:
        return _new(parts.broken)
    missing = (*evidence, _no_base(name, inputs))
    if name not in inputs.base_keys:
        return GateClass.NEW, Blocks.UNEXPECTED, missing
    return GateClass.UNKNOWN, Blocks.INCOMPLETE, missing


def _no_base(name: CellCheck, inputs: GateInputs) -> str:
    if name not in inputs.base_keys:
        return "no verdict to compare with: the check is not planned on the base"
    status = inputs.base_statuses.get(name)
    why = f"ended there as {status.value}" if status else "was never run on the base"
    return f"no verdict to compare with: the check {why}, so whether this change broke it is unknown"


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
