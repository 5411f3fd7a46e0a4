"""The table of rows: no square is green without an outcome, and other versions than the row's are named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Evidence, Outcome, State, Status, Tier
from harness.settings import load_settings
from harness.verdict.triage.catalogue import shipped_catalogue
from harness.verdict.verdict import Standing, Verdict
from harness.workspace.results import row_table
from harness.workspace.results.row_table import COLUMNS, TRIAGE, _RowMaker, row_lines

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    shutil.copytree(ROOT / "patches", tmp_path / "patches")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(checkout: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    with pytest.raises(SystemExit) as stopped:
        main(["--root", str(checkout), "--cache", str(checkout / "cache"), "matrix", "rows", "--json"])
    assert not stopped.value.code
    return {row["stack"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


def test_without_outcomes_no_square_is_green(checkout, capsys, monkeypatch):
    planned: set[str] = set()
    judge = row_table.judge_plan

    def judge_and_note(plan, *others):
        planned.update(entry.check for entry in plan.entries if entry.key)
        return judge(plan, *others)

    monkeypatch.setattr(row_table, "judge_plan", judge_and_note)
    found = rows(checkout, capsys)

    assert set(found) >= {"gptoss-20b-grpo", "verl-npu-plugin", "one-step-off-2card", "gspo-qwen3-30b-a3b"}
    squares = [square for row in found.values() for square in row["squares"] if square["column"] != TRIAGE]
    assert {square["result"] for square in squares} <= {"not run", "none"}
    assert all(square["command"].startswith("npu-matrix ") for square in squares if square["checks"])
    assert any("4 x 8" in text for text in found["gspo-qwen3-30b-a3b"]["render"])
    assert any("Megatron" in text for text in found["gspo-qwen3-30b-a3b"]["left_out"])
    assert any("CRLF" in text for text in found["gptoss-20b-grpo"]["known"])
    # Checks that the profile leaves out can fill a square: without a clone of their commits, the cells of
    # releases have keys.
    assert {"recipe-twin", "actor-bf16", "twin"} <= planned


def verdict(cell: str, check: str, status: Status, standing: Standing) -> Verdict:
    outcome = Outcome(
        key="k",
        check=check,
        tier=Tier.NUMERICS,
        state=State.COMPLETED,
        evidence=Evidence.SIMULATED,
        facets={},
    )
    return Verdict(
        cell_id=cell,
        check=check,
        status=status,
        standing=standing,
        evidence=Evidence.SIMULATED,
        outcome=outcome,
    )


def maker(verdicts: list[Verdict]) -> tuple[_RowMaker, object, object]:
    matrix = load_matrix(ROOT / "matrix.yaml")
    row = matrix.stack_cell("verl-npu-plugin")
    twin = next(cell for cell in matrix.cells("twins").cells if cell.axes["verl"] == row.axes["verl"])
    made = _RowMaker(
        settings=load_settings({}, {}, ROOT),
        matrix=matrix,
        verdicts={(one.cell_id, one.check): one for one in verdicts},
        simulated=[twin],
        catalogue=shipped_catalogue(),
        revision_of=lambda _key: "",
    )
    return made, row, twin


def test_what_was_interrupted_is_not_run():
    _, _, twin = maker([])
    stopped = verdict(twin.id, "loss", Status.ERROR, Standing.INCOMPLETE)
    stopped = replace(stopped, outcome=replace(stopped.outcome, state=State.INTERRUPTED))
    made, row, _ = maker([stopped])
    squares = {square.column: square for square in made.row("verl-npu-plugin", row).squares}
    assert squares["numerics"].result == "not run"


def test_a_row_whose_failures_nobody_knows_says_so():
    made, row, _ = maker([])
    searched = replace(
        made.matrix.stacks["verl-npu-plugin"], failures=(), no_failures="none in the issues of 2026"
    )
    made = replace(made, matrix=replace(made.matrix, stacks={"verl-npu-plugin": searched}))
    found = made.row("verl-npu-plugin", row)
    assert next(square.result for square in found.squares if square.column == TRIAGE) == "none known"
    assert "- no failure is known: none in the issues of 2026" in row_lines([found])
    # Without such a statement nobody looked.
    made = replace(
        made, matrix=replace(made.matrix, stacks={"verl-npu-plugin": replace(searched, no_failures="")})
    )
    found = made.row("verl-npu-plugin", row)
    assert next(square.result for square in found.squares if square.column == TRIAGE) == "none"


def square_of(results: dict[str, tuple[Status, Standing]]):
    _, _, twin = maker([])
    made, row, _ = maker([verdict(twin.id, check, *result) for check, result in results.items()])
    return next(square for square in made.row("verl-npu-plugin", row).squares if square.column == "numerics")


PASSED = (Status.PASS, Standing.AS_EXPECTED)


def test_a_square_of_another_cell_names_the_versions_that_differ():
    square = square_of(dict.fromkeys(COLUMNS["numerics"], PASSED))

    assert (square.result, square.evidence) == ("pass", "simulated")
    assert any(text.startswith("transformers: 4.54.1 (row: 4.56.0") for text in square.differs)
    _, _, twin = maker([])
    made, row, _ = maker([verdict(twin.id, check, *PASSED) for check in COLUMNS["numerics"]])
    assert "other versions)" in row_lines([made.row("verl-npu-plugin", row)])[2]


def test_the_worst_check_decides():
    failed = (Status.FAIL, Standing.UNEXPECTED)
    passed = dict.fromkeys(COLUMNS["numerics"], PASSED)
    assert square_of({**passed, "loss": failed}).result == "fail"
    assert square_of({**passed, "loss": (Status.FAIL, Standing.KNOWN)}).result == "known failure"
    assert square_of({**passed, "loss": (Status.ERROR, Standing.INCOMPLETE)}).result == "error"


@pytest.mark.parametrize("status", [Status.NOT_RUN, Status.BLOCKED, Status.CLAIMED, Status.STALE])
def test_an_outcome_without_an_answer_is_neither_red_nor_green(status):
    passed = dict.fromkeys(COLUMNS["numerics"], PASSED)
    assert square_of({**passed, "loss": (status, Standing.INCOMPLETE)}).result == "not run"
    # Its evidence does not count either.
    assert square_of({"loss": (status, Standing.INCOMPLETE)}).evidence == ""
