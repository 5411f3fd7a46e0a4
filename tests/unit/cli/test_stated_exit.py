"""The exit code that `run` prints is the one that the process returns."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import run_execution
from harness.cli.app import app, main
from harness.cli.stated_exit import StatedExit
from harness.workspace.planning.index_review import IndexReview


class _Ledger:
    def __init__(self) -> None:
        self.finished: list[int] = []

    def finish_run(self, _run_id: str, code: int) -> None:
        self.finished.append(code)

    def clock_notice(self, _run_id: str) -> None:
        """The clock was not set back."""


def conclude(
    monkeypatch: pytest.MonkeyPatch, write_report: Any, *, code: int = 0, interrupted: bool = False
) -> Any:
    """What `run` returns after a run with this code, and the codes that the ledger recorded."""
    summary = SimpleNamespace(exit_code=code, reasons=("because",))
    fakes = {
        "expectations": lambda *_any: (),
        "judge_plan": lambda *_any: (),
        "summarise_verdicts": lambda _verdicts: summary,
        "print_summary": lambda *_any: None,
        "finished_migrations": lambda *_any: (),
        "recorded_run": lambda *_any: None,
        "StoredRun": lambda **_any: None,
        "write_report": write_report,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(run_execution, name, fake)
    ledger = _Ledger()
    context = SimpleNamespace(matrix=None, settings={"profile": "default"}, plan=SimpleNamespace(notices=()))
    result = SimpleNamespace(
        interrupted=interrupted, run_id="r", outcomes={}, without_outcome={}, executed_keys=()
    )
    return run_execution._conclude(context, ledger, result, IndexReview()), ledger  # type: ignore[arg-type]


def full_disk(*_any: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "reports/index.html")


@pytest.mark.parametrize(("before", "after"), [(0, 4), (1, 1), (4, 4), (3, 3)])
def test_a_report_on_a_full_disk_changes_the_stated_and_recorded_code(
    before: int, after: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stated, ledger = conclude(monkeypatch, full_disk, code=before)
    assert stated == after == ledger.finished[-1]
    output = capsys.readouterr()
    assert "exit" not in output.out
    assert "the disk is full" in output.err
    assert stated.line.startswith(f"exit {after}: because; the report could not be written")


def test_an_interrupted_run_states_its_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    stated, ledger = conclude(monkeypatch, lambda *_any: tmp_path, interrupted=True)
    assert (stated, ledger.finished) == (130, [130])
    assert stated.line.startswith("exit 130: interrupted")


@pytest.mark.parametrize("code", [0, 1, 3, 4, 130])
def test_the_last_line_is_the_code_of_the_process(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "main", lambda **_any: StatedExit(code, ("a", "b")))
    with pytest.raises(SystemExit) as stop:
        main(["run"])
    assert stop.value.code == code
    assert capsys.readouterr().out.splitlines()[-1] == f"exit {code}: a; b"
