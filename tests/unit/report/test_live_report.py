"""A report that follows its run equals the report that is written afterwards."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from report_samples import changed, sample_inputs

from harness.outcome import Evidence, Status
from harness.report.model.report_inputs import ReportInputs, ReportResult
from harness.report.model.report_model import build_model
from harness.report.publish.live_report import LiveReport
from harness.report.publish.publish import render_all

CELL, CHECK = "gspo-async", "lint"


def changed_result(inputs: ReportInputs, **verdict: object) -> ReportResult:
    found = next(one for one in inputs.results if (one.cell_id, one.check) == (CELL, CHECK))
    return changed(found, **verdict)


def with_result(inputs: ReportInputs, result: ReportResult) -> ReportInputs:
    results = tuple(
        result if (one.cell_id, one.check) == (result.cell_id, result.check) else one
        for one in inputs.results
    )
    return dataclasses.replace(inputs, results=results)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name not in {"text", "logs", "files"}
    }


def test_an_updated_report_equals_a_new_report(tmp_path: Path) -> None:
    inputs = sample_inputs()
    live = LiveReport(inputs, tmp_path / "live")
    broken = changed_result(inputs, status=Status.FAIL, evidence=Evidence.STATIC, reasons=("it is broken",))
    later = dataclasses.replace(with_result(inputs, broken), generated=inputs.generated + 5)
    written = live.take(later)
    render_all(build_model(later), tmp_path / "whole")
    mine, whole = content(tmp_path / "live"), content(tmp_path / "whole")
    # Pages of other cells keep the time at which they were written.
    other = {name for name in whole if name.startswith("cells/") and not name.startswith(f"cells/{CELL}")}
    assert {name: mine[name] for name in whole if name not in other} == {
        name: whole[name] for name in whole if name not in other
    }
    assert {path.name for path in written if path.parent.name == "cells"} == {f"{CELL}.html"}


def test_a_page_with_equal_results_is_not_written_again(tmp_path: Path) -> None:
    inputs = sample_inputs()
    live = LiveReport(inputs, tmp_path / "live")
    again = dataclasses.replace(sample_inputs(), generated=inputs.generated + 60)
    assert not [path for path in live.take(again) if path.parent.name == "cells"]
    assert build_model(again).headline == live.model.headline


def test_files_that_stay_equal_are_not_written_again_unless_they_are_gone(tmp_path: Path) -> None:
    inputs = sample_inputs()
    live = LiveReport(inputs, tmp_path / "live")
    live.take(dataclasses.replace(inputs, generated=inputs.generated + 60))
    written = live.take(dataclasses.replace(inputs, generated=inputs.generated + 120))
    names = {path.relative_to(live._folder).as_posix() for path in written}
    assert "report.json" in names
    assert not {name for name in names if name.startswith(("badges/", "assets/"))}
    (tmp_path / "live" / "badges" / "status.svg").unlink()
    written = live.take(dataclasses.replace(inputs, generated=inputs.generated + 180))
    assert tmp_path / "live" / "badges" / "status.svg" in written


@pytest.mark.parametrize("status", list(Status))
def test_models_made_of_an_earlier_one_are_the_models(status: Status) -> None:
    inputs = sample_inputs()
    before = build_model(inputs)
    after = with_result(inputs, changed_result(inputs, status=status))
    assert build_model(after, before) == build_model(after)


# Stands still where the new files are written and the report has none of them.
STOPS = """
import sys, time
from pathlib import Path
from report_samples import sample_inputs
from harness.report.publish import live_report

report = live_report.LiveReport(sample_inputs(), Path(sys.argv[1]))
render = live_report.render_overviews

def render_and_stop(model, writer):
    render(model, writer)
    print("written", flush=True)
    time.sleep(600)

live_report.render_overviews = render_and_stop
report.take(sample_inputs())
"""


def names_next_to(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir())


def test_the_next_report_removes_the_temporary_folder_of_a_killed_watcher(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    watcher = subprocess.Popen(
        [sys.executable, "-c", STOPS, str(folder)], env=given, stdout=subprocess.PIPE, text=True
    )
    with watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "written\n"
        left, shown = names_next_to(folder), content(folder)
        assert [name.startswith(".reports.live-") for name in left] == [True, False]
        # Of a living one it stays.
        model = build_model(sample_inputs())
        render_all(model, folder)
        assert names_next_to(folder) == left
        assert content(folder) == shown
        watcher.send_signal(signal.SIGKILL)
    assert names_next_to(folder) == left
    render_all(model, folder)
    assert names_next_to(folder) == ["reports"]
