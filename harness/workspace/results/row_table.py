"""The table of rows: what is known of each stack, with the evidence, cell and command of every square.

A square is answered by cells that have the row's own version of verl: the row's own cell, or cells on the
simulated device. Every square names the versions in which its cell differs from the row, so that no pass is
taken for one of the row's own versions when it is not.
"""

from __future__ import annotations

import functools
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import TypeAdapter, ValidationError

from harness.compat.knowledge.pack_at_hand import pack_at_hand
from harness.digest import digest_json
from harness.errors import InputError
from harness.ledger.store import Ledger
from harness.matrix.model.cell import Cell
from harness.matrix.model.definitions import Stack
from harness.matrix.version_matrix import Matrix
from harness.outcome import Evidence, State, Status
from harness.serialisation import JsonValue, json_object
from harness.settings import Settings
from harness.verdict.plan_verdicts import judge_plan
from harness.verdict.triage.catalogue import LOCAL_NAME, Catalogue, catalogue_with
from harness.verdict.verdict import Standing, Verdict
from harness.workspace.planning.open_plan import expectations, open_plan
from harness.workspace.planning.recipe_selection import cell_launch
from harness.workspace.results.stack_failures import TriagedFailure, triage_stack

OWN = "full"
"""The profile with the cells of all stacks."""
TWINS = "twins"
"""The profile with cells on the simulated device that have the recipes of the stacks."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "patches": ("patches",),
    "static": ("constraints", "npu-ops", "api", "lint"),
    "lock": ("resolve",),
    "numerics": ("loss", "update", "actor", "actor-bf16", "twin"),
    "twin": ("recipe-twin", "trainer-vllm-grpo", "trainer-vllm-gspo", "trainer-vllm-one-step-off"),
}
TRIAGE = "triage"
"""The column of failures that users see; no check of the plan answers it."""
SIMULATED = ("numerics", "twin")
"""The columns that a cell on the simulated device can answer for a row."""
NOT_RUN, KNOWN, NOT_APPLICABLE = "not run", "known failure", "not applicable"
NONE_KNOWN = "none known"
"""The triage square of a row of which no failure was found."""
REVISION_CHARACTERS = 10
_UNKNOWN = "unknown"
_ORDER = ("fail", "error", KNOWN, "inconclusive", "unsupported", NOT_RUN, "pass")
_STRENGTH = (Evidence.STATIC, Evidence.CPU, Evidence.SIMULATED, Evidence.HARDWARE)


@dataclass(frozen=True, kw_only=True)
class Square:
    """The answer to one question about a row.

    result: the worst of its checks, or "none" without a check for it. checks: each check with its result.
    cell: whose verdicts these are. differs: axis, the cell's version and the row's. evidence: the weakest of
    the checks that ran. date: when the oldest outcome was measured. command: how to get the verdicts again.
    revisions: those of this project whose runs measured it, with a `+` if files were changed; "" for a run
    without one. Empty in tables of older versions.
    """

    column: str
    result: str
    checks: Mapping[str, str]
    cell: str = ""
    differs: tuple[str, ...] = ()
    evidence: str = ""
    date: str = ""
    command: str = ""
    revisions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A stack: its squares, and what they do not say.

    render: why its recipe cannot start. known: expected failures of checks. failures: those that users see,
    as triage explains them. left_out: what its twin leaves out. no_failures: where failures were looked for,
    if none is known.
    """

    stack: str
    title: str
    squares: tuple[Square, ...]
    render: tuple[str, ...]
    known: tuple[str, ...]
    failures: tuple[TriagedFailure, ...]
    left_out: tuple[str, ...]
    no_failures: str = ""


def read_rows(settings: Settings, ledger: Ledger) -> tuple[Row, ...]:
    """The row of every stack, from stored outcomes; nothing is run."""
    own: dict[str, Cell] = {}
    simulated: list[Cell] = []

    def choose(matrix: Matrix) -> Sequence[Cell]:
        own.update({name: matrix.stack_cell(name) for name in matrix.stacks})
        simulated.extend(
            cell for name in (TWINS, OWN) if name in matrix.profiles for cell in matrix.cells(name).cells
        )
        every = {cell.id: cell for cell in (*own.values(), *simulated)}
        return list(every.values())

    # Named checks are planned whatever the profile leaves out, such as recipe-twin.
    named = tuple(check for checks in COLUMNS.values() for check in checks)
    context = open_plan(settings, checks=named, choose=choose)
    by_profile = [expectations(context.matrix, name) for name in (OWN, TWINS)]
    keys = {entry.key for entry in context.plan.entries if entry.key}
    verdicts = judge_plan(
        context.plan,
        ledger.latest(keys),
        (),
        lambda cell, check: next((one for found in by_profile if (one := found(cell, check))), None),
    )
    maker = _RowMaker(
        settings=settings,
        matrix=context.matrix,
        verdicts={(verdict.cell_id, verdict.check): verdict for verdict in verdicts},
        simulated={cell.id: cell for cell in simulated if cell.device == "sim"}.values(),
        catalogue=catalogue_with(settings.root / LOCAL_NAME),
        revision_of=functools.cache(partial(_revision_of, ledger)),
    )
    return tuple(maker.row(name, cell) for name, cell in own.items())


@dataclass(frozen=True, kw_only=True)
class _RowMaker:
    settings: Settings
    matrix: Matrix
    verdicts: Mapping[tuple[str, str], Verdict]
    simulated: Iterable[Cell]
    catalogue: Catalogue
    revision_of: Callable[[str], str]

    def row(self, name: str, cell: Cell) -> Row:
        launch = cell_launch(self.settings, self.matrix, cell)
        surfaces = pack_at_hand(self.settings.cache)
        stack = self.matrix.stacks[name]
        failures = tuple(triage_stack(stack, self.catalogue, surfaces))
        return Row(
            stack=name,
            title=cell.title,
            squares=(*(self._square(column, cell) for column in COLUMNS), _triage_square(stack, failures)),
            render=launch.problems if launch else (),
            known=tuple(self._known(cell)),
            failures=failures,
            left_out=tuple(part.sentence for part in launch.twin.left_out) if launch and launch.twin else (),
            no_failures=stack.no_failures,
        )

    def _known(self, cell: Cell) -> Iterator[str]:
        for checks in COLUMNS.values():
            for check in checks:
                verdict = self.verdicts.get((cell.id, check))
                expected = self.matrix.expectation_for(cell, check)
                if expected is not None and verdict is not None:
                    yield f"{check}: {expected.reason}"

    def _square(self, column: str, row: Cell) -> Square:
        """The square of the row's own cell if a check of it has run, else of the nearest simulated cell.

        If none has run, the command is that of a simulated cell, which needs no NPU.
        """
        squares = [self._square_of(column, row, cell) for cell in self._candidates(column, row)]
        usable = [square for square in squares[1:] if square.checks] or squares
        return next((square for square in squares if square.evidence), usable[0])

    def _candidates(self, column: str, row: Cell) -> list[Cell]:
        same_verl = [
            cell
            for cell in self.simulated
            if cell.axes.get("verl") == row.axes.get("verl") and cell.axes.get("verl")
        ]
        if column == "twin":
            same_verl = [cell for cell in self.simulated if cell.recipe and cell.recipe == row.recipe]
        ordered = sorted(same_verl, key=lambda cell: (len(_differences(cell, row)), cell.id))
        return [row, *ordered] if column in SIMULATED else [row]

    def _square_of(self, column: str, row: Cell, cell: Cell) -> Square:
        checks = COLUMNS[column]
        found = {
            check: self.verdicts[cell.id, check] for check in checks if (cell.id, check) in self.verdicts
        }
        results = {check: _result(verdict) for check, verdict in found.items()}
        answered = {check: result for check, result in results.items() if result != NOT_APPLICABLE}
        proofs = [
            (verdict.evidence, verdict.outcome)
            for verdict in found.values()
            if verdict.evidence is not None and verdict.status.has_evidence and verdict.outcome
        ]
        profile = TWINS if cell.id != row.id else self.settings["profile"]
        command = [
            "npu-matrix",
            "--profile",
            profile,
            "run",
            "--only",
            cell.id,
            "--check",
            ",".join(answered),
        ]
        return Square(
            column=column,
            result=min(answered.values(), key=_ORDER.index, default="none"),
            checks=answered,
            cell=cell.id,
            differs=tuple(_differences(cell, row)) if cell.id != row.id else (),
            evidence=min((proof for proof, _ in proofs), key=_STRENGTH.index).value if proofs else "",
            date=time.strftime("%Y-%m-%d", time.gmtime(min(one.finished for _, one in proofs)))
            if proofs
            else "",
            command=shlex.join(command) if answered else "",
            revisions=tuple(sorted({self.revision_of(one.run_id) for _, one in proofs})),
        )


def _revision_of(ledger: Ledger, run_id: str) -> str:
    """The revision of this project with which a run was made, "" if it is not known."""
    run = ledger.run(run_id)
    revision = str(run.host.get("revision", "")) if run else ""
    return revision[:REVISION_CHARACTERS] + ("+" if revision.endswith("+") else "")


def _triage_square(stack: Stack, failures: Sequence[TriagedFailure]) -> Square:
    """Whether triage explains the failures of the row; the weakest wording decides.

    Without a failure the result is "none known" if somebody looked for one, else "none".
    """
    none = NONE_KNOWN if stack.no_failures else "none"
    wrong = {failure.expected for failure in failures if not failure.agrees}
    checks = {one.expected: "fail" if one.expected in wrong else "pass" for one in failures}
    return Square(
        column=TRIAGE,
        result=none if not checks else "fail" if wrong else "pass",
        checks=checks,
        evidence=Evidence.STATIC.value if checks else "",
        command=shlex.join(["npu-matrix", "triage", "--stack", stack.name]) if checks else "",
    )


def _differences(cell: Cell, row: Cell) -> list[str]:
    """The versions in which a cell differs from the row, without the device itself."""
    names = [name for name in {**row.axes, **cell.axes} if name != "device"]
    return [
        f"{name}: {cell.axes.get(name, 'none')} (row: {row.axes.get(name, 'none')})"
        for name in names
        if cell.axes.get(name) != row.axes.get(name)
    ]


def _result(verdict: Verdict) -> str:
    if verdict.status is Status.UNSUPPORTED and verdict.outcome is None:
        return NOT_APPLICABLE
    if verdict.outcome is None or verdict.outcome.state is State.INTERRUPTED:
        return NOT_RUN
    if verdict.standing is Standing.KNOWN:
        return KNOWN
    if verdict.status.has_evidence or verdict.status is Status.ERROR:
        return verdict.status.value
    return NOT_RUN


def rows_document(rows: Sequence[Row], revision: str) -> dict[str, JsonValue]:
    """The table as JSON. revision: of the checkout that made it."""
    stored = json_object({"rows": rows})["rows"]
    return {
        "schema": {"name": "npu-matrix.rows", "version": 1},
        "revision": revision,
        "digest": digest_json(stored),
        "rows": stored,
    }


def rows_of(document: Mapping[str, JsonValue]) -> tuple[Row, ...]:
    """The rows of a document that `matrix rows --json` printed.

    InputError if it is none, or if its rows are not those that one command printed. A document without a
    digest is of an older version.
    """
    if "digest" in document and document["digest"] != digest_json(document.get("rows")):
        raise InputError(
            "this table of rows was edited, or joined from several tables",
            why="its digest is not that of its rows",
            fix="merge the ledgers (`npu-matrix ledger merge`), and run `npu-matrix matrix rows --json`",
        )
    try:
        return TypeAdapter(tuple[Row, ...]).validate_python(document["rows"])
    except (KeyError, ValidationError) as error:
        raise InputError(
            "this is no table of rows", why=str(error), fix="npu-matrix matrix rows --json"
        ) from error


def row_lines(rows: Sequence[Row]) -> list[str]:
    """The rows as Markdown: a table, and below it what each square rests on."""
    columns = [*COLUMNS, TRIAGE, "render"]
    lines = [
        f"| row | {' | '.join(columns)} | known failures | left out |",
        "|---" * (len(columns) + 3) + "|",
    ]
    lines += [_table_line(row) for row in rows]
    lines += ["", _revisions_line(rows)]
    for row in rows:
        lines += ["", f"## {row.stack}", "", f"{row.title}.", ""]
        lines += [_square_line(square) for square in row.squares]
        lines += [f"- render: {problem}" for problem in row.render]
        lines += [f"- known failure: {known}" for known in row.known]
        lines += [
            f"- {one.expected} is not what triage says of: {one.log.strip()}"
            for one in row.failures
            if not one.agrees
        ]
        lines += [f"- no failure is known: {row.no_failures}"] if row.no_failures else []
        lines += [f"- not in the twin: {part}" for part in row.left_out]
    return lines


def _revisions_line(rows: Sequence[Row]) -> str:
    """Which revisions of this project measured the squares."""
    measured = [one for row in rows for one in row.squares if one.date]
    counts = Counter(revision or _UNKNOWN for one in measured for revision in one.revisions or ("",))
    if not counts:
        return "No square has been measured."
    shown = ", ".join(f"{revision} ({count} squares)" for revision, count in counts.most_common())
    if len(counts) == 1:
        return f"Measured with revision {shown} of this project."
    return (
        f"Measured with {len(counts)} revisions of this project: {shown}. Each square lists its own; an "
        "outcome counts for a later revision while the code and the inputs of its check are the same."
    )


def _table_line(row: Row) -> str:
    squares = [_short(square) for square in row.squares]
    counts = [str(len(row.known)) if row.known else "-", str(len(row.left_out)) if row.left_out else "-"]
    return f"| {' | '.join([row.stack, *squares, 'would fail' if row.render else 'ok', *counts])} |"


def _short(square: Square) -> str:
    other = f", {len(square.differs)} other versions" if square.differs else ""
    shown = square.evidence and square.result not in {NOT_RUN, "none"}
    return f"{square.result} ({square.evidence}{other})" if shown else square.result


def _square_line(square: Square) -> str:
    revisions = " and ".join(one or _UNKNOWN for one in square.revisions or ("",))
    date = f" ({square.evidence}, {square.date}, revision {revisions})" if square.date else ""
    checks = ", ".join(f"{check} {result}" for check, result in square.checks.items()) or "no check"
    differs = f"; other versions than the row: {'; '.join(square.differs)}" if square.differs else ""
    command = f"; `{square.command}`" if square.command else ""
    return f"- {square.column}: {checks}{date}{differs}{command}"
