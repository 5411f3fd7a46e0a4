"""What to install on each kind of host (SoC and CANN): the newest stack, and how far it is proven."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from harness.outcome import Evidence, Tier
from harness.report.model.failure_patterns import natural
from harness.report.model.marks import RAN, SEVERITY, Mark
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportRow

HOST_AXES = ("soc", "cann")
NPU = "npu"
ABSENT = "—"


class Stage(str, enum.Enum):
    """How a stack was proven, each stage stronger than those before it."""

    STATIC = "static"
    BUILT = "built"
    CPU = "cpu"
    SIMULATED = "simulated"
    HARDWARE = "hardware"


#: The stages that programs of a built stack prove, by their evidence.
_EXECUTED = {
    Evidence.CPU: Stage.CPU,
    Evidence.SIMULATED: Stage.SIMULATED,
    Evidence.HARDWARE: Stage.HARDWARE,
}
#: The stage at which a check that was not run is missing, by the device of the cell.
_DUE = {"sim": Stage.SIMULATED, "cpu": Stage.CPU}


@dataclass(frozen=True, kw_only=True)
class StageProof:
    """The checks of one stage of a stack. since, until: when the oldest and newest pass ran, Unix seconds.

    check: the check that a reader should look at first, "" without any.
    """

    stage: Stage
    passed: int = 0
    known: int = 0
    failed: int = 0
    open: int = 0
    since: float = 0.0
    until: float = 0.0
    check: str = ""

    @property
    def planned(self) -> int:
        """How many checks of this stage apply to the stack."""
        return self.passed + self.known + self.failed + self.open

    @property
    def mark(self) -> Mark:
        """Pass only if every check of the stage passed; not run if none has a verdict."""
        if self.failed:
            return Mark.FAIL
        if self.known:
            return Mark.KNOWN_FAIL
        if not self.passed:
            return Mark.NOT_RUN
        return Mark.INCONCLUSIVE if self.open else Mark.PASS

    @property
    def look(self) -> str:
        """How the stage is drawn: `partly` if some checks passed and the others have no verdict."""
        return "partly" if self.mark is Mark.INCONCLUSIVE else self.mark.value


@dataclass(frozen=True, kw_only=True)
class Objection:
    """Something known against a stack. check: whose verdict it is, "" for what matrix.yaml notes."""

    mark: Mark
    text: str
    check: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class StackAdvice:
    """A stack, how far it is proven, and what is known against it, most urgent first."""

    row: ReportRow
    stages: tuple[StageProof, ...]
    against: tuple[Objection, ...]

    @property
    def proven(self) -> Stage | None:
        """The strongest stage all of whose checks passed, as did those of every weaker stage."""
        found = None
        for proof in self.stages:
            if proof.mark is Mark.PASS:
                found = proof.stage
            elif proof.planned:
                break
        return found

    @property
    def failing(self) -> bool:
        """Whether a check of the stack fails, expected or not."""
        return any(proof.failed or proof.known for proof in self.stages)


@dataclass(frozen=True, kw_only=True)
class HostKind:
    """A kind of host and the newest stack for it.

    simulated: its cells run on no NPU. sound: the newest stack of which no check fails, if the newest one has
    a failure; None if there is none. others: how many more stacks there are for such hosts.
    """

    soc: str
    cann: str
    simulated: bool
    newest: StackAdvice
    sound: StackAdvice | None
    others: int


def find_host_kinds(rows: Sequence[ReportRow]) -> tuple[HostKind, ...]:
    """The kinds of hosts of these cells: NPU hosts first, the newest CANN first. Empty without such axes."""
    groups: dict[tuple[bool, str, str], list[ReportRow]] = defaultdict(list)
    for row in rows:
        axes = row.cell.axes
        if any(axis in axes for axis in HOST_AXES):
            soc, cann = (axes.get(axis, ABSENT) for axis in HOST_AXES)
            # Nothing says of a cell without a device that it is simulated.
            groups[row.cell.device not in {NPU, ""}, soc, cann].append(row)
    kinds = [
        _host_kind(soc, cann, simulated=simulated, rows=group)
        for (simulated, soc, cann), group in groups.items()
    ]
    kinds.sort(key=lambda kind: natural(kind.soc))
    kinds.sort(key=lambda kind: natural(kind.cann), reverse=True)
    return tuple(sorted(kinds, key=lambda kind: kind.simulated))


def _host_kind(soc: str, cann: str, *, simulated: bool, rows: Sequence[ReportRow]) -> HostKind:
    newest = advice_on(max(rows, key=attrgetter("age")))
    others = (row for row in rows if row.sound) if newest.failing else ()
    sound = max(others, key=attrgetter("age"), default=None)
    return HostKind(
        soc=soc,
        cann=cann,
        simulated=simulated,
        newest=newest,
        sound=advice_on(sound) if sound else None,
        others=len(rows) - 1 - (sound is not None),
    )


def advice_on(row: ReportRow) -> StackAdvice:
    """How far the stack of a cell is proven, and what is known against it."""
    by_stage: dict[Stage, list[ReportResult]] = defaultdict(list)
    for result in row.results.values():
        if result.mark is not Mark.UNSUPPORTED:
            by_stage[_stage(row, result)].append(result)
    shown = [stage for stage in Stage if stage is not Stage.CPU or by_stage[stage]]
    return StackAdvice(
        row=row,
        stages=tuple(_proof(stage, by_stage[stage]) for stage in shown),
        against=tuple(_against(row)),
    )


def _stage(row: ReportRow, result: ReportResult) -> Stage:
    if result.entry.tier is Tier.STATIC:
        return Stage.STATIC
    if result.entry.tier is Tier.BUILD:
        return Stage.BUILT
    evidence = result.verdict.evidence if result.mark in RAN else None
    if evidence:
        return _EXECUTED.get(evidence, Stage.STATIC)
    return _DUE.get(row.cell.device, Stage.HARDWARE)


def _proof(stage: Stage, results: Sequence[ReportResult]) -> StageProof:
    marks = [result.mark for result in results]
    times = [
        result.verdict.outcome.started
        for result in results
        if result.mark is Mark.PASS and result.verdict.outcome
    ]
    first = min(results, key=lambda result: SEVERITY[result.mark], default=None)
    passed, known, failed = (marks.count(mark) for mark in (Mark.PASS, Mark.KNOWN_FAIL, Mark.FAIL))
    return StageProof(
        stage=stage,
        passed=passed,
        known=known,
        failed=failed,
        open=len(marks) - passed - known - failed,
        since=min(times, default=0.0),
        until=max(times, default=0.0),
        check=first.check if first else "",
    )


def _against(row: ReportRow) -> Iterable[Objection]:
    failing = [result for result in row.results.values() if result.mark in {Mark.FAIL, Mark.KNOWN_FAIL}]
    for result in sorted(failing, key=lambda result: SEVERITY[result.mark]):
        expected = result.verdict.expected if result.mark is Mark.KNOWN_FAIL else None
        yield Objection(
            mark=result.mark,
            check=result.check,
            text=expected.reason if expected else result.reason,
            source=expected.source if expected else "",
        )
    for finding in row.cell.findings:
        yield Objection(mark=Mark.INCONCLUSIVE, text=finding.what, source=finding.source)
