"""The formats: verdicts with their evidence, not run is never a pass, folders are replaced as a whole."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from report_samples import LOG, NOW, changed, log_file, result, sample_inputs

from harness.errors import InfrastructureError, InputError
from harness.ledger.plan_record import CellFacts
from harness.outcome import ArtifactRef, Evidence, Status
from harness.report.formats.badge import RED, badge_svg, badges
from harness.report.formats.json_export import SCHEMA_NAME, SCHEMA_VERSION, Report, report_json, report_schema
from harness.report.formats.markdown import summary, table
from harness.report.formats.terminal import plain_grid, rich_grid
from harness.report.model.gather import junit_cases
from harness.report.model.logs import INLINE_LINES, read_artifact, read_log
from harness.report.model.marks import Mark
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.report_model import ReportModel, build_model
from harness.report.model.visible_text import counted
from harness.report.pages.grid import grid_data
from harness.report.pages.html import render_overviews
from harness.report.pages.page_templates import PageWriter, environment
from harness.report.publish import publish
from harness.report.publish.cell_rows import RowsInBackground, render_rows
from harness.report.publish.publish import render_all
from harness.verdict.verdict import Standing


def model_of(
    status: Status, evidence: Evidence | None, standing: Standing = Standing.AS_EXPECTED
) -> ReportModel:
    return build_model(
        ReportInputs(
            generated=NOW,
            cells=(CellFacts(id="cell"),),
            planned={"cell": ("loss",)},
            results=(changed(result("cell", "loss", status, standing=standing), evidence=evidence),),
        )
    )


@pytest.fixture(scope="module")
def sample() -> ReportModel:
    return build_model(sample_inputs())


def pages_of(model: ReportModel, folder: Path) -> None:
    render_overviews(model, PageWriter(folder))
    render_rows(model, folder)


def grid_part(page: str) -> str:
    return page[page.index('id="rows"') : page.index("</tbody>", page.index('id="rows"'))]


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PASS])
def test_what_did_not_pass_is_never_shown_as_a_pass(status: Status, tmp_path: Path) -> None:
    model = model_of(status, Evidence.SIMULATED)
    pages_of(model, tmp_path)
    assert "m-pass" not in grid_part((tmp_path / "index.html").read_text())
    cell = (tmp_path / "cells" / "cell.html").read_text()
    assert "m-pass" not in cell[cell.index('class="strip"') :]
    assert not any(name.startswith("p") for name in [grid_data(model)["rows"][0][7]])
    assert "✓" not in table(model)
    assert "pass" not in plain_grid(model).splitlines()[1]
    for badge in badges(model).values():
        assert badge.colour != "#14713f"


@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.CPU, Evidence.STATIC])
def test_what_is_not_hardware_is_never_shown_as_hardware(evidence: Evidence, tmp_path: Path) -> None:
    model = model_of(Status.PASS, evidence)
    pages_of(model, tmp_path)
    assert "hardware" not in grid_part((tmp_path / "index.html").read_text())
    cell = (tmp_path / "cells" / "cell.html").read_text()
    assert "e-hardware" not in cell[cell.index("<main") :]
    assert grid_data(model)["rows"][0][7][1] != "h"
    assert "HW" not in table(model)
    assert "HW" not in plain_grid(model)
    assert badges(model)["hardware"].text == "not run"
    assert not any(badge.solid for badge in badges(model).values())
    assert "simulated" in badges(model)["status"].text or evidence is not Evidence.SIMULATED


def two_cells(first: tuple[Status, Evidence], second: tuple[Status, Evidence]) -> ReportModel:
    results = [
        changed(result(cell, "loss", status), evidence=evidence)
        for cell, (status, evidence) in zip(("one", "two"), (first, second), strict=True)
    ]
    return build_model(
        ReportInputs(
            generated=NOW,
            cells=(CellFacts(id="one"), CellFacts(id="two")),
            planned={"one": ("loss",), "two": ("loss",)},
            results=tuple(results),
        )
    )


def test_one_pass_on_hardware_makes_no_hardware_badge_of_simulated_passes() -> None:
    mixed = two_cells((Status.PASS, Evidence.HARDWARE), (Status.PASS, Evidence.SIMULATED))
    badge = badges(mixed)["status"]
    assert badge.text == "as expected: 1 hardware, 1 simulated"
    assert not badge.solid
    both = two_cells((Status.PASS, Evidence.HARDWARE), (Status.PASS, Evidence.HARDWARE))
    assert badges(both)["status"].solid


@pytest.mark.parametrize("status", [Status.NOT_RUN, Status.BLOCKED, Status.STALE])
def test_the_report_is_green_only_if_every_planned_check_has_a_verdict(
    status: Status, tmp_path: Path
) -> None:
    model = two_cells((Status.PASS, Evidence.SIMULATED), (status, Evidence.SIMULATED))
    pages_of(model, tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "s-ok" not in page
    assert "1 of 2 planned checks have no verdict" in page
    [reason] = model.unanswered
    assert (reason.results, reason.checks) == (1, ("loss",))
    for text in (page, summary(model), plain_grid(model)):
        assert str(reason.reason) in text
    assert json.loads(report_json(model))["unanswered"][0]["results"] == 1
    assert badges(model)["status"].text == "as expected: 1 simulated, 1 without a verdict"
    answered = two_cells((Status.PASS, Evidence.SIMULATED), (Status.PASS, Evidence.SIMULATED))
    pages_of(answered, tmp_path)
    assert "s-ok" in (tmp_path / "index.html").read_text()


def test_the_badge_of_simulated_passes_says_so() -> None:
    badge = badges(model_of(Status.PASS, Evidence.SIMULATED))["simulated"]
    assert (badge.label, badge.text) == ("simulated", "1/1")
    assert "simulated: 1/1" in badge_svg(badge)


def test_a_known_failure_looks_different_from_an_unexpected_one(tmp_path: Path) -> None:
    texts = []
    for standing in (Standing.KNOWN, Standing.UNEXPECTED):
        model = model_of(Status.FAIL, Evidence.STATIC, standing)
        folder = tmp_path / standing.value
        folder.mkdir()
        pages_of(model, folder)
        texts.append(grid_part((folder / "index.html").read_text()))
    known, unexpected = texts
    assert "g-known-fail" in known
    assert "g-fail" not in known
    assert "g-fail" in unexpected
    assert "known" not in unexpected


def test_verdicts_of_checks_that_did_not_run_carry_no_evidence() -> None:
    model = model_of(Status.NOT_RUN, Evidence.SIMULATED)
    assert grid_data(model)["rows"][0][7] == "n-"
    assert "(sim)" not in table(model)


def test_pages_show_everything_of_a_result(sample: ReportModel, tmp_path: Path) -> None:
    pages_of(sample, tmp_path)
    page = (tmp_path / "cells" / "verl-0.9.1-sim.html").read_text()
    failing = page[page.index('id="check-gspo"') :]
    for text in (
        "The reward stays at 0.31",
        "npu-matrix bisect --check gspo",
        'data-copy="npu-matrix run --only verl-0.9.1-sim --check gspo"',
        "whole log",
        'id="check-gspo-L262"',
        "20261119-0200",
        "broken",
        "matrix.yaml:40:7",
    ):
        assert text in page
    assert '<path class="curve reference"' in failing
    assert '<polygon class="band"' in failing
    assert "Content-Security-Policy" in page


def test_a_long_log_is_cut_at_its_start_and_stored_as_a_file() -> None:
    log = read_log(log_file(LOG))
    assert log.total == 262
    assert log.skipped == 262 - INLINE_LINES
    assert log.lines[-1].text == "exit code 1"
    assert log.lines[-2].bad
    assert log.whole == LOG


def test_a_log_or_artifact_that_no_longer_exists_is_reported(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert "gone" in read_log(gone).lines[0].text
    assert "gone" in read_artifact(ArtifactRef(name="lock.txt", digest="", size=1), gone).note
    assert read_artifact(ArtifactRef(name="lock.txt", digest="", size=1), None).note == "no longer stored"


def test_a_log_of_bytes_and_colours_becomes_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\x1b[31mred\x1b[0m\r\n10%\r50%\r100%\n\xff\xfe\n")
    assert [line.text for line in read_log(path).lines] == [
        "red",
        "100%",
        "\ufffd\ufffd",
    ]


def test_artifacts_are_copied_under_names_that_browsers_show_as_text(tmp_path: Path) -> None:
    for name in ("page.html", "script.js", "picture.svg", "lock.txt", "../../up.sh"):
        path = tmp_path / "file"
        path.write_text("<script>alert(1)</script>")
        stored = read_artifact(ArtifactRef(name=name, digest="", size=1), path).stored
        assert stored.endswith(".txt")
        assert "/" not in stored


def test_export_has_a_versioned_schema_and_every_result(sample: ReportModel) -> None:
    data = json.loads(report_json(sample))
    assert data["schema"] == {"name": SCHEMA_NAME, "version": SCHEMA_VERSION}
    assert sum(len(cell["results"]) for cell in data["cells"]) == sample.planned
    assert data["missing"] == [{"cell": "gspo-async", "check": "gspo"}]


def test_export_survives_numbers_json_cannot_hold() -> None:
    broken = changed(sample_inputs().results[0], measurements={"loss": float("nan"), "grad": [float("inf")]})
    inputs = ReportInputs(generated=NOW, cells=(CellFacts(id=broken.cell_id),), results=(broken,))
    data = json.loads(report_json(build_model(inputs)))
    assert data["cells"][0]["results"][0]["measurements"] == {"loss": "NaN", "grad": ["Infinity"]}


def test_markdown_says_what_the_grid_says(sample: ReportModel) -> None:
    text = summary(sample)
    assert "2 unexpected failures" in text
    assert "✓ pass (sim)" in text
    assert "✓ pass (HW)" in text
    assert "○ not run" in text
    assert table(sample, max_rows=3).endswith("9 more cells in the report.")


def with_reason_beside_a_pass(sample: ReportModel, reason: str) -> ReportModel:
    row = next(
        row for row in sample.rows if any(r.verdict.status is Status.PASS for r in row.results.values())
    )
    name, result = next((n, r) for n, r in row.results.items() if r.verdict.status is Status.PASS)
    changed = replace(result, verdict=replace(result.verdict, reasons=(reason,)))
    rows = tuple(
        replace(one, results={**one.results, name: changed}) if one is row else one for one in sample.rows
    )
    return replace(sample, rows=rows)


def test_permissive_calls_are_shown_beside_a_pass(sample: ReportModel) -> None:
    reason = "Permissive: it is unknown whether torch_npu refuses these calls: npu::x."
    text = summary(with_reason_beside_a_pass(sample, reason))
    assert "Passed, though an NPU may refuse the calls:" in text
    assert "it is unknown whether torch\\_npu refuses these calls: npu::x." in text
    assert "Passed, though" not in summary(sample)


def test_junit_has_permissive_calls_as_a_property_of_the_pass() -> None:
    one = next(one for one in sample_inputs().results if one.verdict.status is Status.PASS)
    reason = "Permissive: it is unknown whether torch_npu refuses these calls: npu::x."
    noted = replace(one, verdict=replace(one.verdict, reasons=(reason,)))
    inputs = replace(sample_inputs(), results=(one, noted))
    assert [case.properties.get("permissive") for case in junit_cases(inputs)] == [None, reason]


def test_unlisted_versions_are_shown_beside_a_pass(sample: ReportModel) -> None:
    reason = "Unlisted: cann 9.0.0 is in no row (table of a vendor)."
    text = summary(with_reason_beside_a_pass(sample, reason))
    assert "Passed with versions that a published table does not list" in text
    assert "cann 9.0.0 is in no row (table of a vendor)." in text
    assert "Passed with versions" not in summary(sample)


def test_terminal_grid_in_any_width(sample: ReportModel) -> None:
    import io

    from rich.console import Console

    for width in (60, 200):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        console.print(rich_grid(sample, width))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "✗" in text
        assert "✓" in text
    assert "FAIL sim" in plain_grid(sample)
    assert "XPASS sim" in plain_grid(sample)


def test_a_report_replaces_the_older_one_as_a_whole(sample: ReportModel, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    render_all(sample, folder, {"junit.xml": "<testsuites/>"})
    assert (folder / "junit.xml").is_file()
    render_all(model_of(Status.PASS, Evidence.STATIC), folder)
    assert not (folder / "junit.xml").exists()
    assert [path.name for path in (folder / "cells").iterdir()] == ["cell.html"]
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]


def test_a_folder_that_is_not_a_report_is_left_alone(sample: ReportModel, tmp_path: Path) -> None:
    precious = tmp_path / "reports" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("ten years")
    with pytest.raises(InputError) as caught:
        render_all(sample, precious.parent)
    assert "--reports" in str(caught.value)
    assert precious.read_text() == "ten years"


def test_a_reports_folder_that_is_a_mount_point_or_a_link_is_written_in_place(
    sample: ReportModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "reports").symlink_to(volume)
    render_all(sample, tmp_path / "reports")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == volume)
    written = render_all(model_of(Status.PASS, Evidence.STATIC), tmp_path / "reports", {"junit.xml": "<x/>"})
    assert [path.name for path in (volume / "cells").iterdir()] == ["cell.html"]
    assert not any(path.name.startswith(".") for path in volume.iterdir())
    assert all(path.is_file() for path in written)

    def refuse(self: Path, target: Path) -> Path:
        if self.parent.name.startswith(".volume.new-"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    rename = Path.rename
    before = sorted(volume.rglob("*"))
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(InfrastructureError):
        render_all(sample, volume)
    assert sorted(volume.rglob("*")) == before


def test_an_extra_file_cannot_leave_the_folder(sample: ReportModel, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        render_all(sample, tmp_path / "reports", {"../up.txt": "x"})


def test_a_full_disk_leaves_the_older_report(
    sample: ReportModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reports"
    render_all(sample, folder)
    before = (folder / "index.html").read_bytes()

    def full(*_: object) -> list[Path]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publish, "render_overviews", full)
    with pytest.raises(InfrastructureError) as caught:
        render_all(model_of(Status.PASS, Evidence.STATIC), folder)
    assert "No space left" in str(caught.value)
    assert (folder / "index.html").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]


@pytest.mark.skipif(os.geteuid() == 0, reason="not run: root can write everywhere")
def test_an_unwritable_folder_is_an_infrastructure_error(sample: ReportModel, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InfrastructureError):
        render_all(sample, tmp_path / "reports")
    tmp_path.chmod(0o700)


def test_a_report_lost_between_two_renames_comes_back(sample: ReportModel, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    render_all(sample, folder)
    folder.rename(tmp_path / ".reports.old")
    (tmp_path / ".reports.new-dead").mkdir()
    render_all(sample, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]


def test_marks_in_the_grid_data_are_the_models(sample: ReportModel) -> None:
    data = grid_data(sample)
    names = [check[0] for check in data["checks"]]
    for row, encoded in zip(sample.rows, data["rows"], strict=True):
        for place, name in enumerate(names):
            code = encoded[7][2 * place]
            expected = row.results[name].mark if name in row.results else None
            assert (Mark(data["marks"][code][0]) if code != "-" else None) is expected


def test_the_export_is_what_its_schema_says(sample: ReportModel, tmp_path: Path) -> None:
    render_all(sample, tmp_path / "reports")
    text = (tmp_path / "reports" / "report.json").read_text(encoding="utf-8")
    read = TypeAdapter(Report).validate_json(text)
    assert read.headline == sample.headline
    assert len(read.cells) == len(sample.rows)
    assert set(report_schema()["properties"]) == set(json.loads(text))


def test_the_schema_of_the_data_lies_beside_it(tmp_path: Path) -> None:
    render_all(build_model(sample_inputs()), tmp_path / "reports")
    schema = json.loads((tmp_path / "reports/report.schema.json").read_text("utf-8"))
    assert schema == report_schema()


def test_the_report_is_valid_by_its_json_schema(sample: ReportModel) -> None:
    schema = report_schema()
    report = json.loads(report_json(sample))
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed here")
    checker = jsonschema.Draft202012Validator
    checker.check_schema(schema)
    assert not list(checker(schema).iter_errors(report))
    report["cells"][0]["results"][0]["mark"] = "green"
    assert list(checker(schema).iter_errors(report))


def test_each_stack_has_a_badge_for_each_kind_of_evidence(sample: ReportModel) -> None:
    found = badges(sample)
    stacks = {row.cell.stack for row in sample.rows if row.cell.stack}
    assert {name.split("/")[1].rpartition("-")[0] for name in found if name.startswith("stacks/")} <= stacks
    for row in (row for row in sample.rows if row.cell.stack):
        for evidence in {one.shown_evidence for one in row.results.values()} - {None}:
            badge = found[f"stacks/{row.cell.stack}-{evidence.value}"]
            assert badge.solid == (evidence is Evidence.HARDWARE)
            ran = [one for one in row.results.values() if one.shown_evidence is evidence]
            assert badge.text.startswith(f"{sum(one.mark is Mark.PASS for one in ran)}/{len(ran)}")
            if any(one.mark is Mark.FAIL for one in ran):
                assert badge.colour == RED


def test_cells_in_parallel_are_the_cells(sample: ReportModel, tmp_path: Path) -> None:
    apart, together = tmp_path / "apart", tmp_path / "together"
    apart.mkdir()
    together.mkdir()
    one = render_rows(sample, apart)
    with RowsInBackground(sample, together, workers=2) as background:
        two = background.result()
    assert one.texts == two.texts
    assert set(one.names) == set(two.names)
    for name in one.names:
        assert (apart / name).read_bytes() == (together / name).read_bytes()


def test_a_row_names_its_page_where_that_is_not_called_as_the_cell(tmp_path: Path) -> None:
    inputs = sample_inputs()
    odd = replace(inputs.cells[0], id="a/b c")
    model = build_model(replace(inputs, cells=(odd, *inputs.cells[1:])))
    pages_of(model, tmp_path)
    rows = {row[0]: row[2] or row[0] for row in grid_data(model)["rows"]}
    assert rows["a/b c"] != "a/b c"
    for page in rows.values():
        assert (tmp_path / "cells" / f"{page}.html").is_file()


def test_commands_in_backticks_are_code_and_nothing_else_is_markup(tmp_path: Path) -> None:
    prose = environment(PageWriter(tmp_path), up="").filters["prose"]
    assert str(prose("Run `npu-matrix run <b>` & wait.")) == (
        '<span class="prose">Run <code>npu-matrix run &lt;b&gt;</code> &amp; wait.</span>'
    )
    assert prose("no command, <b>") == "no command, <b>", "the template escapes it"
    shortened = str(prose("`x` " + "y" * 99, 20))
    assert shortened.startswith('<span class="prose"><code>x</code> yyy')
    assert 'class="spill" href="text/' in shortened


def test_one_thing_is_not_many_things() -> None:
    assert [counted(count, "reason") for count in (0, 1, 1200)] == ["0 reasons", "1 reason", "1,200 reasons"]
    assert counted(2, "patch", "patches") == "2 patches"
