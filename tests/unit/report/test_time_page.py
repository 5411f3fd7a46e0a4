"""Weeks of runs from several machines: what broke and why, what is chance, when hardware last ran what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from weeks_of_runs import DAY, START, inputs_after_weeks, seeded_repository, weeks_of_runs

from harness.report.formats.json_export import Report, report_json, report_schema
from harness.report.model.commit_notes import CommitNote, CommitRange
from harness.report.model.marks import Mark
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.report_model import build_model
from harness.report.model.streak import Foreseen
from harness.report.model.turn_groups import hardware_lines, summarise_since, turn_groups
from harness.report.model.turning_points import TurnCause
from harness.report.pages.page_templates import PageWriter
from harness.report.pages.time_page import time_page
from harness.settings import load_settings
from harness.workspace.results.commits_of_turns import commits_of_turns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weeks")


@pytest.fixture(scope="module")
def commits(folder: Path) -> dict[str, str]:
    return seeded_repository(folder / "project")


@pytest.fixture(scope="module")
def inputs(folder: Path, commits: dict[str, str]) -> Iterator[ReportInputs]:
    ledger, last = weeks_of_runs(folder, commits)
    found = inputs_after_weeks(ledger, last)
    settings = load_settings({}, {}, folder / "project")
    turns = [turn for result in found.results for turn in result.turns]
    yield replace(found, commits=commits_of_turns(settings, turns))
    ledger.close()


def test_the_seeded_break_is_one_event_with_its_input_and_its_commit(
    inputs: ReportInputs, commits: dict[str, str]
) -> None:
    groups = [one for one in turn_groups(build_model(inputs)) if one.turn.cause is TurnCause.INPUTS]
    (broke,) = [one for one in groups if not one.turn.better]
    assert (broke.turn.check, len(broke.rows), broke.still) == ("patches", 2, 2)
    assert broke.turn.difference.changes == ("verl_tree.commit: '5a2e0b1c00…' -> '9f3d77aa00…'",)
    assert START + 30 * DAY <= broke.turn.after.time < START + 31 * DAY
    assert (broke.turn.before.revision, broke.turn.after.revision) == (commits["before"], commits["after"])
    own = next(one for one in broke.commits if not one.upstream and one.commits)
    assert [(one.author, one.subject) for one in own.commits] == [("A. Maintainer", "verl moves to 9f3d77aa")]
    upstream = next(one for one in broke.commits if one.missing)
    assert "no mirror has the commit 9f3d77aa0000" in upstream.missing


def test_chance_and_machines_are_apart_from_breaks(inputs: ReportInputs) -> None:
    groups = turn_groups(build_model(inputs))
    causes = {(one.turn.check, one.turn.cause) for one in groups}
    assert causes == {
        ("patches", TurnCause.INPUTS),
        ("lint", TurnCause.FLAKY),
        ("resolve", TurnCause.MACHINE),
    }
    week = summarise_since(groups, inputs.generated - 7 * DAY)
    assert (week.broke, week.fixed) == (2, 0)


def test_the_known_failure_was_unexpected_before_its_expectation(inputs: ReportInputs) -> None:
    result = next(one for one in inputs.results if one.check == "loss")
    assert {past.foreseen for past in result.history} == {Foreseen.NOW, Foreseen.THEN_AND_NOW}
    assert {past.mark for past in result.history if past.time < START + 20 * DAY} == {Mark.FAIL}
    assert {past.mark for past in result.history if past.time > START + 20 * DAY} == {Mark.KNOWN_FAIL}


def test_the_last_run_on_hardware_and_what_makes_it_stale(inputs: ReportInputs) -> None:
    lines = hardware_lines(build_model(inputs))
    assert {line.result.check for line in lines} == {"gspo-smoke"}
    (line, _) = lines
    assert START + 12 * DAY < line.run.time < START + 13 * DAY
    assert line.run.machine == "npu-1"
    assert line.run.stale
    assert line.run.changes == ("pins.torch_npu: '2.7.1' -> '2.9.0'",)


def test_the_page(inputs: ReportInputs, tmp_path: Path) -> None:
    page = re.sub(r"<[^>]+>|\s+", " ", time_page(build_model(inputs), PageWriter(tmp_path)))
    page = re.sub(r"\s+", " ", page)
    assert "In the last 7 days 2 checks of cells broke and 0 were fixed" in page
    assert "A. Maintainer" in page
    assert "verl moves to 9f3d77aa" in page
    assert "The machine: the same inputs pass on" in page
    assert "so it is flaky" in page
    assert "stale : an input has changed since" in page


@pytest.mark.parametrize(
    "attack", ["<script>alert(1)</script>", "\u202egnp.exe", "x" * 50_000, "\x00\x1b[31m"]
)
def test_hostile_commits_and_machines_stay_text(inputs: ReportInputs, tmp_path: Path, attack: str) -> None:
    note = CommitNote(id="f" * 40, author=attack, date=attack, subject=attack)
    range_ = CommitRange(commits=(note,), upstream=attack, missing=attack)
    results = []
    for result in inputs.results:
        turns = tuple(
            replace(turn, after=replace(turn.after, machine=attack, time=9e18), reason=attack)
            for turn in result.turns
        )
        results.append(replace(result, turns=turns))
    own = dict.fromkeys(inputs.commits.own, range_)
    upstream = dict.fromkeys(inputs.commits.upstream, range_)
    notes = replace(inputs.commits, own=own, upstream=upstream)
    page = time_page(
        build_model(replace(inputs, results=tuple(results), commits=notes)), PageWriter(tmp_path)
    )
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "a clock is wrong" in page
    assert len(page) < 400_000


def test_report_json_has_the_turns_and_the_last_runs_on_hardware(inputs: ReportInputs) -> None:
    report = TypeAdapter(Report).validate_json(report_json(build_model(inputs)))
    results = {one.check: one for one in report.cells[0].results}
    assert results["patches"].turns[-1].difference.changes
    assert results["resolve"].turns == ()
    assert results["gspo-smoke"].hardware
    assert results["gspo-smoke"].hardware.stale
    assert {one.owner for one in report.known} == {"numerics-team", "patch-team"}
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed here")
    checker = jsonschema.Draft202012Validator(report_schema())
    assert not list(checker.iter_errors(json.loads(report_json(build_model(inputs)))))
