"""The view suites x cells, and each suite below it."""

from __future__ import annotations

import re
from pathlib import Path

from report_samples import sample_inputs, suite_inputs

from harness.report.model.report_model import build_model
from harness.report.publish.publish import render_all


def test_each_suite_in_each_cell_is_an_entry_that_leads_to_its_failures(tmp_path: Path) -> None:
    render_all(build_model(suite_inputs()), tmp_path / "reports")
    page = (tmp_path / "reports" / "suites.html").read_text()
    grid = page[page.index("suitegrid") : page.index("</table>")]
    text = [re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", row)).strip() for row in grid.split("<tr>")[2:]]
    assert text == ["torch-npu-nn 101 of 106 5 new 106 of 106", "vllm-ascend-ops 12 of 12 not run"]
    assert re.findall(r"tile m-([a-z-]+)", grid) == ["fail", "pass", "pass", "not-run"]
    for anchor in re.findall(r'href="#([^"]+)"', grid):
        assert f'id="{anchor}"' in page
    assert "The tests of vllm-ascend are not here." in page
    assert "not simulated: aclnnRoll" in page


def test_the_overview_offers_the_view_if_there_are_suites(tmp_path: Path) -> None:
    for inputs, offered in ((suite_inputs(), True), (sample_inputs(), False)):
        render_all(build_model(inputs), tmp_path / "reports")
        index = (tmp_path / "reports" / "index.html").read_text()
        assert ('<option value="suites.html#cells">' in index) is offered
