"""What changed, as a page, a feed and a sheet; patches over cells and over upstream's history."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import Runs
from report_samples import NOW, poisoned_inputs, result, sample_inputs, sample_survival

from harness.errors import InputError
from harness.ledger.plan_record import CellFacts
from harness.outcome import Evidence, Status
from harness.patchstack.apply.patch_verdict import MeasuredPatch, PatchVerdict
from harness.patchstack.patch_measurements import PATCHES_FORMAT, TREE_UNAVAILABLE, PatchesMeasured
from harness.report.formats.csv_export import results_csv
from harness.report.formats.feed import atom
from harness.report.model.changes import compare
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.report_model import ReportModel, build_model
from harness.report.model.streak import EarlierVerdict
from harness.report.model.survival_facts import read_survival
from harness.report.pages.changes_page import change_summary
from harness.report.publish.publish import render_all
from harness.verdict.verdict import Standing

ATOM = "{http://www.w3.org/2005/Atom}"


def pages(model: ReportModel, folder: Path) -> dict[str, str]:
    render_all(model, folder / "reports")
    return {path.name: path.read_text() for path in (folder / "reports").glob("*.html")}


def test_the_page_says_what_turned_and_why(tmp_path: Path) -> None:
    page = pages(build_model(sample_inputs()), tmp_path)["changes.html"]
    broken = page[page.index('id="newly-broken"') : page.index('id="newly-not-run"')]
    assert "outside its band from step 9" in broken
    assert "verl_tree.version" in broken
    assert "It failed because: entropy collapsed" in page[page.index('id="fixed"') :]


def test_the_first_run_has_no_earlier_run_to_compare_with(tmp_path: Path) -> None:
    page = pages(build_model(replace(sample_inputs(), earlier=None)), tmp_path)
    assert "There is no earlier run to compare with." in page["changes.html"]
    assert 'class="turns"' not in page["index.html"]


def summary_of(model: ReportModel) -> str:
    found = change_summary(model)
    assert found
    return found.counts


def test_of_the_failures_those_that_are_expected_are_counted() -> None:
    def verdict(standing: Standing) -> EarlierVerdict:
        return EarlierVerdict(status=Status.FAIL, standing=standing)

    known, unforeseen = verdict(Standing.KNOWN), verdict(Standing.UNEXPECTED)
    before = {("a", "loss"): known, ("b", "loss"): known, ("c", "loss"): known}
    after = {("a", "loss"): known, ("b", "loss"): unforeseen, ("c", "loss"): known}
    model = replace(build_model(sample_inputs()), changes=compare(before, after))
    assert summary_of(model) == "3 still broken (2 expected)"
    none = replace(model, changes=compare(before, {("b", "loss"): unforeseen, ("a", "loss"): unforeseen}))
    assert summary_of(none) == "2 still broken"


def test_the_feed_has_one_entry_per_run_with_a_change(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.go({"a": "a1", "b": "b1"}, {"a": True, "b": True})
    second = runs.go({"a": "a2", "b": "b1"}, {"a": False})
    runs.go({"a": "a2", "b": "b1"})
    last = runs.go({"a": "a3", "b": "b2"}, {"a": True}, left={"b": (Status.NOT_RUN, "no NPU")})
    feed = ET.fromstring(atom(build_model(runs.inputs({"a": "a3", "b": "b2"}, last))))
    runs.ledger.close()
    entries = feed.findall(f"{ATOM}entry")
    titles = [entry.findtext(f"{ATOM}title") for entry in entries]
    assert titles == [f"1 newly not run, 1 fixed (run {last})", f"1 newly broken (run {second})"]
    assert "probe of b: no NPU" in (entries[0].findtext(f"{ATOM}content") or "")
    again = ET.fromstring(atom(build_model(replace(sample_inputs(), results=()))))
    assert again.findall(f"{ATOM}entry") == []


@pytest.mark.parametrize("attack", ["<script>alert(1)</script>", "\x00\ud800\uffff\x0b", "]]>&amp;"])
def test_the_feed_stays_well_formed(attack: str) -> None:
    feed = ET.fromstring(atom(build_model(poisoned_inputs(attack))).encode("utf-8"))
    assert all(entry.findtext(f"{ATOM}id") for entry in feed.findall(f"{ATOM}entry"))


def test_the_csv_has_a_row_for_every_result() -> None:
    model = build_model(sample_inputs())
    rows = list(csv.DictReader(io.StringIO(results_csv(model).decode())))
    assert len(rows) == model.planned
    found = next(row for row in rows if (row["cell"], row["check"]) == ("verl-0.9.1-sim", "gspo"))
    assert (found["verdict"], found["evidence"], found["change"]) == ("fail", "simulated", "broken")
    assert found["axis:torch_npu"] == "2.13.0"
    assert {row["evidence"] for row in rows if row["verdict"] == "not-run"} == {""}


def test_a_spreadsheet_executes_no_text_of_the_csv() -> None:
    hostile = result("cell", "loss", Status.FAIL, reasons=('=HYPERLINK("http://x")',), remedies=("@SUM(1)",))
    model = build_model(ReportInputs(generated=NOW, cells=(CellFacts(id="cell"),), results=(hostile,)))
    row = next(csv.DictReader(io.StringIO(results_csv(model).decode())))
    assert row["reason"] == '\'=HYPERLINK("http://x")'
    assert row["remedy"] == "'@SUM(1)"


def patches_of(measurements: PatchesMeasured | dict, status: Status = Status.PASS) -> ReportModel:
    stored = measurements if isinstance(measurements, dict) else PATCHES_FORMAT.write(measurements)
    found = result("cell", "patches", status, evidence=Evidence.STATIC, measurements=stored)
    return build_model(ReportInputs(generated=NOW, cells=(CellFacts(id="cell"),), results=(found,)))


def test_every_patch_of_every_cell_is_shown(tmp_path: Path) -> None:
    verdicts = (
        MeasuredPatch(patch="verl/a", verdict=PatchVerdict.OFFSET, offset=-3),
        MeasuredPatch(
            patch="verl/b",
            verdict=PatchVerdict.CONFLICT,
            reasons=("upstream rewrote it",),
            remedies=("rebase it",),
        ),
    )
    measured = PatchesMeasured(
        selected=("verl/a", "verl/b"), tree="verl 0.9", applies=False, verdicts=verdicts
    )
    page = pages(patches_of(measured, Status.FAIL), tmp_path)["patches.html"]
    assert "offset -3" in page
    assert "upstream rewrote it" in page
    assert "rebase it" in page
    assert page.count("1 of 1") == 1


def test_a_patch_without_a_tree_is_not_shown_as_applying(tmp_path: Path) -> None:
    measured = PatchesMeasured(
        selected=("verl/a",), tree=TREE_UNAVAILABLE, applies=False, reason="no local clone has it"
    )
    page = pages(patches_of(measured, Status.NOT_RUN), tmp_path)["patches.html"]
    table = page[page.index("patchgrid") : page.index("verdicts-title")]
    assert "not checked" in table
    assert "m-pass" not in table
    assert "0 of 0" in table


@pytest.mark.parametrize(
    "measured",
    [
        {},
        {"verdicts": "none"},
        {"verdicts": [1, {"patch": 2}], "selected": 3},
        {"selected": [], "tree": "", "applies": True, "verdicts": [{"patch": "a", "verdict": "unheard of"}]},
    ],
)
def test_other_shapes_are_no_error(measured: dict, tmp_path: Path) -> None:
    assert "No patches were checked." in pages(patches_of(measured), tmp_path)["patches.html"]


def test_survival_is_read_from_what_the_command_prints(tmp_path: Path) -> None:
    file = tmp_path / "survival.json"
    file.write_text(sample_survival().model_dump_json(by_alias=True))
    survival = read_survival(file)
    assert survival == sample_survival()
    page = pages(build_model(replace(sample_inputs(), survival=survival)), tmp_path)["patches.html"]
    assert "v-conflict" in page
    assert "[trainer] change 12" in page
    without = pages(build_model(replace(sample_inputs(), survival=None)), tmp_path)["patches.html"]
    assert "Not measured, because no clone of an upstream" in without


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": {"name": "npu-matrix.report", "version": 1}}, "its schema is npu-matrix.report 1"),
        ({"commits": []}, "commits"),
        ({"legend": ["clean"]}, "not in the legend"),
    ],
)
def test_another_file_is_refused_with_a_reason(change: dict, why: str, tmp_path: Path) -> None:
    file = tmp_path / "survival.json"
    data = json.loads(sample_survival().model_dump_json(by_alias=True))
    file.write_text(json.dumps({**data, **change}))
    with pytest.raises(InputError) as found:
        read_survival(file)
    assert why in str(found.value.problems[0])
    with pytest.raises(InputError):
        read_survival(tmp_path / "nothing.json")


def test_the_feed_has_what_rfc_4287_requires() -> None:
    feed = ET.fromstring(atom(build_model(sample_inputs())))
    assert feed.tag == "{http://www.w3.org/2005/Atom}feed"
    entries = feed.findall("{*}entry")
    assert entries
    for element in (feed, *entries):
        for name in ("id", "title", "updated"):
            (one,) = element.findall(f"{{*}}{name}")
            assert one.text
        when = element.findtext("{*}updated") or ""
        assert dt.datetime.fromisoformat(when).tzinfo, "a date of RFC 3339 with its zone"
        assert (element.findtext("{*}id") or "").startswith("urn:uuid:")
    assert len({entry.findtext("{*}id") for entry in entries}) == len(entries)
    assert feed.find("{*}author/{*}name") is not None
    assert all(entry.find("{*}content") is not None for entry in entries)
