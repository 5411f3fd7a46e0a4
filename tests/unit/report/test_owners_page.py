"""Who owns which failure, with the states of issues as last seen, and drafts of reports without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import NOW, sample_inputs
from weeks_of_runs import inputs_after_weeks, weeks_of_runs

from harness.report.model.failure_owners import NOBODY, failures_by_owner
from harness.report.model.report_inputs import KnownFailure, ReportInputs
from harness.report.model.report_model import ReportModel, build_model
from harness.report.pages.owners_page import owners_page
from harness.report.pages.page_templates import PageWriter
from harness.report.pages.upstream_draft import LANGUAGES, upstream_draft
from harness.sources.issue_states import IssueState
from harness.verdict.verdict import Standing

TOKEN = "ghp_" + "a1B2" * 9


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportInputs]:
    ledger, last = weeks_of_runs(tmp_path_factory.mktemp("owned"))
    yield inputs_after_weeks(ledger, last)
    ledger.close()


def plain(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_failures_are_listed_by_owner_and_those_without_one_come_first(inputs: ReportInputs) -> None:
    found = failures_by_owner(inputs)
    assert list(found) == [NOBODY, "numerics-team", "patch-team"]
    (unowned,) = found[NOBODY]
    assert (unowned.check, unowned.reason, len(unowned.results)) == ("patches", "2 hunks do not apply", 2)
    (known,) = found["numerics-team"]
    assert known.known
    assert (known.check, len(known.results)) == ("loss", 2)
    (expired,) = found["patch-team"]
    assert not expired.results


def test_the_page_names_owner_source_state_and_end(inputs: ReportInputs, tmp_path: Path) -> None:
    page = plain(owners_page(build_model(inputs), PageWriter(tmp_path)))
    assert (
        "Failures without an owner: 1. Expected failures: 2, with 2 owners. Expired expectations: 1."
    ) in page
    assert "numerics-team 1" in page
    assert "2026-10-25 00:00 UTC" in page, "it has failed since the first run"
    assert "closed as last seen" in page
    assert "The entropy term is wrong" in page
    assert "expired 26 days ago" in page
    assert "npu-matrix expect refresh" in page


def test_an_issue_that_nobody_asked_for_has_no_state(inputs: ReportInputs, tmp_path: Path) -> None:
    never = tuple(
        replace(one, issues=tuple(IssueState(url=i.url) for i in one.issues)) for one in inputs.known
    )
    page = plain(owners_page(build_model(replace(inputs, known=never)), PageWriter(tmp_path)))
    assert "its state was never asked for" in page
    assert "as last seen 1970" not in page


def test_each_failure_has_a_draft_in_both_languages(inputs: ReportInputs, tmp_path: Path) -> None:
    page = owners_page(build_model(inputs), PageWriter(tmp_path))
    links = re.findall(r'href="(drafts/[^"]+)"', page)
    assert len(links) == 4
    english = (tmp_path / "drafts" / "gspo-async-patches.en.txt").read_text(encoding="utf-8")
    assert "# patches fails with" in english
    assert "| torch\\_npu | 2.9.0 |" in english
    assert "npu-matrix run --only gspo-async --check patches --fresh" in english
    assert "First failure: 2026-11-23 00:00 UTC" in english
    assert "verl\\_tree.commit" in english
    chinese = (tmp_path / "drafts" / "gspo-async-patches.zh.txt").read_text(encoding="utf-8")
    assert "最小复现步骤" in chinese


def failing(log: str, folder: Path) -> tuple[ReportModel, str]:
    file = folder / "log"
    file.write_text(log, encoding="utf-8", errors="surrogateescape")
    sample = sample_inputs()
    bad = next(one for one in sample.results if one.mark.value == "fail")
    results = tuple(replace(one, log=file) if one is bad else one for one in sample.results)
    return build_model(replace(sample, results=results)), bad.cell_id + " " + bad.check


def test_the_commands_of_a_draft_name_no_folder_of_this_host(inputs: ReportInputs) -> None:
    results = tuple(replace(one, reproduce="npu-matrix --state /home/me/s run") for one in inputs.results)
    model = build_model(replace(inputs, results=results))
    draft = upstream_draft(model, model.rows[0], model.rows[0].results["loss"])
    assert "/home/me" not in draft
    assert "npu-matrix run --only gspo-async --check loss --fresh" in draft


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_draft_has_no_secret_of_the_log(language: str, tmp_path: Path) -> None:
    log = f"fatal: cannot clone https://user:hunter2secret@example.org/x.git\nGITHUB_TOKEN={TOKEN}\nsee {TOKEN}\n"
    model, name = failing(log, tmp_path)
    cell, check = name.split()
    row = model.row(cell)
    assert row
    draft = upstream_draft(model, row, row.results[check], language)
    assert "cannot clone" in draft
    assert TOKEN not in draft
    assert "hunter2secret" not in draft


@pytest.mark.parametrize(
    "attack",
    ["```\n# owned", "<script>alert(1)</script>", "\u202egnp.exe", "@everyone see #1", "x" * 100_000],
)
def test_a_hostile_log_and_reason_stay_text_in_a_draft(attack: str, tmp_path: Path) -> None:
    model, name = failing(f"{attack}\n", tmp_path)
    cell, check = name.split()
    row = model.row(cell)
    assert row
    bad = row.results[check]
    draft = upstream_draft(model, row, replace(bad, verdict=replace(bad.verdict, reasons=(attack,))))
    outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", draft)
    assert "<script>" not in outside
    assert "@everyone" not in outside
    assert "\u202e" not in draft
    assert "# owned" not in outside.splitlines()
    assert len(draft) < 20_000


@pytest.mark.parametrize("attack", ["<img src=x onerror=alert(1)>", "\u202e\x00", "y" * 30_000, "9999-99-99"])
def test_hostile_owners_stay_text(attack: str, inputs: ReportInputs, tmp_path: Path) -> None:
    hostile = KnownFailure(
        id=attack,
        owner=attack,
        check=attack,
        state="fail",
        reason=attack,
        source=attack,
        until=attack,
        fault=attack,
    )
    page = owners_page(build_model(replace(inputs, known=(hostile,))), PageWriter(tmp_path))
    assert "<img src=x" not in page
    assert "\u202e" not in page
    assert len(page) < 100_000


def test_a_verdict_without_a_survey_is_owned_by_its_expectation() -> None:
    sample = sample_inputs()
    found = failures_by_owner(sample)
    known = [one for one in sample.results if one.verdict.standing is Standing.KNOWN]
    assert known
    listed = [one for failures in found.values() for failure in failures for one in failure.results]
    assert all(one in listed for one in known)
    assert NOW
