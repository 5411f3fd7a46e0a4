"""A report is committed to a branch beside earlier ones; files that are equal in both are stored once."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import sample_inputs
from weeks_of_runs import seeded_repository

from harness.errors import InputError
from harness.report.model.report_model import build_model
from harness.report.publish.branch import HISTORY, KEPT, publish_to_branch
from harness.report.publish.publish import render_all


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    seeded_repository(tmp_path / "project")
    return tmp_path / "project"


def report(folder: Path, run_id: str) -> Path:
    sample = sample_inputs()
    render_all(build_model(replace(sample, run=replace(sample.run, run_id=run_id))), folder)
    return folder


def test_earlier_reports_stay_and_the_work_tree_is_untouched(project: Path, tmp_path: Path) -> None:
    before = (git(project, "rev-parse", "HEAD"), git(project, "status", "--porcelain"))
    for run_id in ("run-1", "run-2", "run-3"):
        found = publish_to_branch(project, "status-page", report(tmp_path / "r", run_id), run_id)
    assert found.earlier == 2
    assert (git(project, "rev-parse", "HEAD"), git(project, "status", "--porcelain")) == before
    names = git(project, "ls-tree", "--name-only", "status-page").split()
    assert {"index.html", "report.json", ".nojekyll", HISTORY} <= set(names)
    assert git(project, "ls-tree", "--name-only", f"status-page:{HISTORY}").split() == [
        "index.html",
        "run-1",
        "run-2",
    ]
    assert 'href="run-2/index.html"' in git(project, "show", f"status-page:{HISTORY}/index.html")
    assert '"run-1"' in git(project, "show", f"status-page:{HISTORY}/run-1/report.json")
    assert git(project, "rev-list", "--count", "status-page").strip() == "3"
    assert git(project, "fsck", "--strict") == ""


def test_equal_files_are_stored_once(project: Path, tmp_path: Path) -> None:
    for run_id in ("run-1", "run-2"):
        publish_to_branch(project, "status-page", report(tmp_path / "r", run_id), run_id)
    now = git(project, "rev-parse", "status-page:assets/report.css")
    assert now == git(project, "rev-parse", f"status-page:{HISTORY}/run-1/assets/report.css")


def test_the_same_report_again_is_no_new_commit_and_no_history(project: Path, tmp_path: Path) -> None:
    folder = report(tmp_path / "r", "run-1")
    first = publish_to_branch(project, "status-page", folder, "run-1")
    again = publish_to_branch(project, "status-page", folder, "run-1")
    assert again.unchanged
    assert again.commit == first.commit
    assert again.earlier == 0


def test_a_branch_of_the_project_is_never_replaced(project: Path, tmp_path: Path) -> None:
    folder = report(tmp_path / "r", "run-1")
    git(project, "branch", "other")
    with pytest.raises(InputError, match="not a report"):
        publish_to_branch(project, "other", folder, "run-1")
    with pytest.raises(InputError, match="checked out"):
        publish_to_branch(project, "main", folder, "run-1")
    for bad in ("", "-f", "a..b", "refs/../x", "x y"):
        with pytest.raises(InputError):
            publish_to_branch(project, bad, folder, "run-1")
    with pytest.raises(InputError, match="no checkout"):
        publish_to_branch(tmp_path, "status-page", folder, "run-1")


def test_no_more_reports_than_a_reader_can_look_at(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    for number in range(KEPT + 5):
        text = f'{{"schema":{{"name":"npu-matrix.report"}},"run":{{"run_id":"run-{number:03}"}}}}'
        (folder / "report.json").write_text(text)
        found = publish_to_branch(project, "status-page", folder, f"run-{number:03}")
    assert found.earlier == KEPT
    kept = git(project, "ls-tree", "--name-only", f"status-page:{HISTORY}").split()
    assert f"run-{KEPT + 3:03}" in kept
    assert "run-000" not in kept


@pytest.mark.parametrize("run_id", ["../../etc", "<script>", "\u202e", "a/b", ".git"])
def test_a_hostile_run_is_a_safe_name(run_id: str, project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    for name in (run_id, "last"):
        report = {"schema": {"name": "npu-matrix.report"}, "run": {"run_id": name}}
        (folder / "report.json").write_text(json.dumps(report))
        publish_to_branch(project, "status-page", folder, name)
    (kept,) = (
        one
        for one in git(project, "ls-tree", "--name-only", f"status-page:{HISTORY}").split()
        if one != "index.html"
    )
    assert "/" not in kept
    assert not kept.startswith(".")
    assert git(project, "fsck", "--strict") == ""
