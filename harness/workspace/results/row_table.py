"""The table of rows: what is known of each stack, with the evidence, cell and command of every square.

A square is answered by cells that have the row's own version of verl: the row's own cell, or cells on the
simulated device. Every square names the versions in which its cell differs from the row, so that no pass is
taken for one of the row's own versions when it is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.convergence.recipes.recipe_launch import Launch, render
from harness.ledger.store import Ledger
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.outcome import Evidence, Status
from harness.plan.keys.facets import facet_values
from harness.settings import Settings
from harness.verdict.plan_verdicts import judge_plan
from harness.verdict.verdict import Standing, Verdict
from harness.workspace.planning.open_plan import expectations, facet_inputs, open_plan
from harness.workspace.planning.recipe_selection import known_errors

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
SIMULATED = ("numerics", "twin")
"""The columns that a cell on the simulated device can answer for a row."""
NOT_RUN, KNOWN, NOT_APPLICABLE = "not run", "known failure", "not applicable"
_ORDER = ("fail", "error", KNOWN, "inconclusive", "unsupported", NOT_RUN, "pass")
_STRENGTH = (Evidence.STATIC, Evidence.CPU, Evidence.SIMULATED, Evidence.HARDWARE)


@dataclass(frozen=True, kw_only=True)
class Square:
    """The answer to one question about a row.

    result: the worst of its checks, or "none" without a check for it. checks: each check with its result.
    cell: whose verdicts these are. differs: axis, the cell's version and the row's. evidence: the weakest of
    the checks that ran. command: how to get the verdicts again.
    """

    column: str
    result: str
    checks: Mapping[str, str]
    cell: str = ""
    differs: tuple[str, ...] = ()
    evidence: str = ""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A stack: its squares, why its recipe cannot start, its known failures, and what its twin leaves out."""

    stack: str
    title: str
    squares: tuple[Square, ...]
    render: tuple[str, ...]
    known: tuple[str, ...]
    left_out: tuple[str, ...]


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

    context = open_plan(settings, choose=choose)
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
    )
    return tuple(maker.row(name, cell) for name, cell in own.items())


@dataclass(frozen=True, kw_only=True)
class _RowMaker:
    settings: Settings
    matrix: Matrix
    verdicts: Mapping[tuple[str, str], Verdict]
    simulated: Iterable[Cell]

    def row(self, name: str, cell: Cell) -> Row:
        launch = self._launch(cell)
        return Row(
            stack=name,
            title=cell.title,
            squares=tuple(self._square(column, cell) for column in COLUMNS),
            render=launch.problems if launch else (),
            known=tuple(self._known(cell)),
            left_out=tuple(part.sentence for part in launch.twin.left_out) if launch and launch.twin else (),
        )

    def _launch(self, cell: Cell) -> Launch | None:
        facet = facet_values(cell, ("recipe",), facet_inputs(self.settings, self.matrix))["recipe"]
        if facet is None:
            return None
        return render(facet, locations={}, known_problems=known_errors(facet, cell.axes))

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
        evidence = [
            verdict.evidence
            for verdict in found.values()
            if verdict.evidence is not None and verdict.status.has_evidence
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
            evidence=min(evidence, key=_STRENGTH.index).value if evidence else "",
            command=shlex.join(command) if answered else "",
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
    if verdict.outcome is None:
        return NOT_RUN
    if verdict.standing is Standing.KNOWN:
        return KNOWN
    if verdict.status.has_evidence or verdict.status is Status.ERROR:
        return verdict.status.value
    return NOT_RUN


def row_lines(rows: Sequence[Row]) -> list[str]:
    """The rows as Markdown: a table, and below it what each square rests on."""
    columns = [*COLUMNS, "render"]
    lines = [
        f"| row | {' | '.join(columns)} | known failures | left out |",
        "|---" * (len(columns) + 3) + "|",
    ]
    lines += [_table_line(row) for row in rows]
    for row in rows:
        lines += ["", f"## {row.stack}", "", f"{row.title}.", ""]
        lines += [_square_line(square) for square in row.squares]
        lines += [f"- render: {problem}" for problem in row.render]
        lines += [f"- known failure: {known}" for known in row.known]
        lines += [f"- not in the twin: {part}" for part in row.left_out]
    return lines


def _table_line(row: Row) -> str:
    squares = [_short(square) for square in row.squares]
    counts = [str(len(row.known)) if row.known else "-", str(len(row.left_out)) if row.left_out else "-"]
    return f"| {' | '.join([row.stack, *squares, 'would fail' if row.render else 'ok', *counts])} |"


def _short(square: Square) -> str:
    other = f", {len(square.differs)} other versions" if square.differs else ""
    return f"{square.result} ({square.evidence}{other})" if square.evidence else square.result


def _square_line(square: Square) -> str:
    checks = ", ".join(f"{check} {result}" for check, result in square.checks.items()) or "no check"
    differs = f"; other versions than the row: {'; '.join(square.differs)}" if square.differs else ""
    command = f"; `{square.command}`" if square.command else ""
    return f"- {square.column}: {checks}{differs}{command}"
