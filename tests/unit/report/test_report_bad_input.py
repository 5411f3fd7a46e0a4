"""Ledgers and files that are old, odd, half-written or of a wrong clock: shown as what they are, never a traceback."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path

import pytest
from edit_ledger import NEW_PLAN_DIGESTS, edit_ledger
from git_command import git
from test_report_command import Bench

from harness.errors import HarnessError
from harness.ledger.ledger_schema import APPLICATION_ID, MIGRATIONS
from harness.ledger.run_record import Disposition
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Status
from harness.report.publish.publish import ensure_writable

COLUMNS = "uid, key, check_name, state, attempt, run_id, merged, started, finished, body"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def report(bench: Bench) -> dict:
    return json.loads((bench.root / "reports" / "report.json").read_text(encoding="utf-8"))


def ledger_file(bench: Bench) -> Path:
    return bench.settings.path("state") / FILE_NAME


def at_first_schema(file: Path) -> None:
    """Write the ledger as the first release would have: plans stood in the runs."""
    new = file.with_suffix(".new")
    file.rename(new)
    old = sqlite3.connect(file, isolation_level=None)
    for statement in MIGRATIONS[0]:
        old.execute(statement)
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    old.execute("PRAGMA user_version = 1")
    old.execute("ATTACH DATABASE ? AS new", (str(new),))
    old.execute(f"INSERT INTO outcomes ({COLUMNS}) SELECT {COLUMNS} FROM new.outcomes")
    old.execute(
        "INSERT INTO runs SELECT run_id, started, finished, exit_code, argv, host, p.body "
        "FROM new.runs JOIN new.plans p ON p.digest = plan"
    )
    old.close()


def test_a_ledger_of_the_first_schema_is_reported(bench: Bench) -> None:
    bench.go(True, False)
    at_first_schema(ledger_file(bench))
    assert bench.ask("report") == 0
    assert report(bench)["counts"]["pass"] == 1
    assert report(bench)["counts"]["fail"] == 1


def test_without_a_ledger_there_is_nothing_to_report(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.ask("report") == 3
    assert "nothing has been run here yet" in capsys.readouterr().err
    assert not (bench.root / "reports").exists()


def test_a_file_that_is_no_ledger_is_moved_aside_and_reported(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.go(True, True)
    ledger_file(bench).write_bytes(b"not a database" * 100)
    assert bench.ask("report") == 3
    said = capsys.readouterr()
    assert "nothing has been run here yet" in said.err + said.out
    assert "Traceback" not in said.err


def test_what_a_stopped_run_was_to_make_again_is_not_shown_as_known(bench: Bench) -> None:
    bench.go(True, True)
    assert bench.ask("status") == 0
    with Ledger.open(bench.settings.path("state")) as ledger:
        fresh = ledger.begin_run(bench.plan.record(), ["run", "--fresh"], {}, now=bench.clock + 100)
        entry = bench.plan.entries[0]
        stopped = Disposition(
            cell_id=entry.cell_id,
            check=entry.check,
            key=entry.key,
            status=Status.ERROR,
            reason="the run was stopped before this",
        )
        ledger.record_dispositions(fresh, [stopped])
        ledger.finish_run(fresh, 130, now=bench.clock + 101)
    assert bench.ask("status") == 4
    assert bench.ask("report") == 0
    assert report(bench)["counts"]["pass"] == 1


def test_outcomes_of_a_check_that_is_gone_are_named(bench: Bench) -> None:
    bench.go(True, True)
    edit_ledger(
        ledger_file(bench),
        'UPDATE plans SET body = replace(body, \'"check":"resolve"\', \'"check":"bygone"\')',
        *NEW_PLAN_DIGESTS,
    )
    assert bench.ask("report") == 0
    data = report(bench)
    assert any("bygone" in note for note in data["notes"])
    assert data["counts"]["pass"] == 0, "a check nobody can judge any more proves nothing"
    assert {result["check"] for cell in data["cells"] for result in cell["results"]} == {"bygone"}


@pytest.mark.parametrize("body", ['{"profile": "p"}', '{"entries": [1]}', "[]"])
def test_a_plan_of_another_version_is_reported_and_later_runs_are_shown(
    bench: Bench, capsys: pytest.CaptureFixture[str], body: str
) -> None:
    run_id = bench.go(True, True)
    edit_ledger(ledger_file(bench), "UPDATE plans SET body = ?", *NEW_PLAN_DIGESTS, values=(body,))
    assert bench.ask("report") == 2
    assert "the plan that is stored with this run cannot be read" in capsys.readouterr().err
    assert bench.ask("gate", "--base", run_id) == 2
    assert "the plan that is stored with this run cannot be read" in capsys.readouterr().err
    bench.clock += 1000.0
    bench.go(True, True)
    assert bench.ask("report") == 0


def test_an_incomplete_artifact_makes_the_check_stale_and_is_named(bench: Bench) -> None:
    run_id = bench.go(True, True)
    with Ledger.open(bench.settings.path("state")) as ledger:
        log = ledger.artifacts.put(b"all of the log\n", "log.txt")
        file = ledger.artifacts.put(b"all of the file", "patched.json")
        first = ledger.history(run_id=run_id)[-1]
        ledger.record(dataclasses.replace(first, log=log, artifacts=(file,)))
        for ref in (log, file):
            path = ledger.artifacts.path(ref.digest)
            path.chmod(0o600)
            path.write_bytes(b"all of")
    assert bench.ask("report") == 0
    page = next((bench.root / "reports" / "cells").glob("first-*.html")).read_text(encoding="utf-8")
    assert "patched.json" in page
    assert "its stored file patched.json was altered" in page
    assert "all of" not in page


def test_an_outcome_dated_after_the_report_is_noted(bench: Bench) -> None:
    bench.clock = 4_000_000_000.0
    bench.go(True, True)
    assert bench.ask("report") == 0
    page = next((bench.root / "reports" / "cells").glob("first-*.html")).read_text(encoding="utf-8")
    assert "the clocks of the machines disagree" in page


def test_a_run_that_seems_to_have_ended_before_it_began_is_reported(bench: Bench) -> None:
    bench.go(True, True)
    edit_ledger(ledger_file(bench), "UPDATE runs SET finished = started - 86400")
    assert bench.ask("report") == 0
    page = (bench.root / "reports" / "index.html").read_text(encoding="utf-8")
    assert '<b>took</b> <span translate="no">—</span>' in page


def test_a_report_whose_writing_was_cut_off_is_not_mistaken_for_one(bench: Bench, capsys) -> None:
    bench.go(True, True)
    folder = bench.root / "reports"
    folder.mkdir()
    (folder / "report.json").write_text('{"schema": {"na', encoding="utf-8")
    assert bench.ask("report") == 2
    assert "something that is not a report" in capsys.readouterr().err
    assert (folder / "report.json").read_text(encoding="utf-8") == '{"schema": {"na'


def test_a_reports_folder_that_cannot_be_written_stops_a_run_before_it_starts(bench: Bench, capsys) -> None:
    (bench.root / "reports").write_text("a file", encoding="utf-8")
    assert bench.ask("run", "--check", "patches") == 2
    assert "is not a folder" in capsys.readouterr().err
    assert not ledger_file(bench).exists()
    (bench.root / "reports").unlink()
    assert bench.ask("run", "--check", "patches", "--reports", "/proc/nowhere/reports") == 4
    assert "no report can be written here" in capsys.readouterr().err


def test_a_reports_folder_that_links_to_itself_is_refused(tmp_path: Path) -> None:
    circle = tmp_path / "reports"
    circle.symlink_to(circle)
    with pytest.raises(HarnessError):
        ensure_writable(circle)


def test_runs_are_compared_by_the_commits_they_were_made_of(bench: Bench, capsys) -> None:
    git(bench.root, "init", "-q")
    git(bench.root, "add", "matrix.yaml")
    git(bench.root, "commit", "-qm", "one")
    first = git(bench.root, "rev-parse", "HEAD")
    old = bench.go(True, True, revision=first)
    git(bench.root, "commit", "-qm", "two", "--allow-empty")
    second = git(bench.root, "rev-parse", "HEAD")
    bench.go(True, True, revision=f"{first}+")
    bench.go(False, True, revision=second)
    assert bench.ask("report", "--run", "HEAD", "--since", first[:10]) == 0
    data = report(bench)
    assert data["run"]["revision"] == second
    assert (data["since"]["run"], data["since"]["revision"]) == (old, first)
    assert [change["turn"] for change in data["changes"]] == ["newly broken"]
    git(bench.root, "commit", "-qm", "three", "--allow-empty")
    assert bench.ask("report", "--since", "HEAD") == 2
    said = capsys.readouterr().err
    assert "no run was made of commit" in said
    assert first[:12] in said


def test_an_earlier_report_is_left_when_the_new_one_has_bad_patch_facts(bench: Bench, capsys) -> None:
    bench.go(True, True)
    assert bench.ask("report") == 0
    before = (bench.root / "reports" / "index.html").read_bytes()
    wrong = bench.root / "wrong.json"
    wrong.write_text("{}", encoding="utf-8")
    assert bench.ask("report", "--patches", str(wrong)) == 2
    assert "wrong.json" in capsys.readouterr().err
    assert (bench.root / "reports" / "index.html").read_bytes() == before
