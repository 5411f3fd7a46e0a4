"""JUnit and code quality of a gate: what blocks is a failure, what is known or awaited is skipped."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from harness.outcome import Status
from harness.verdict.gate.gate_ci_reports import as_code_quality, as_junit
from harness.verdict.gate.gate_report import Blocks, GateClass, GateItem, GateReport, Place


def item(gate_class: GateClass, blocks: Blocks, status: Status, check: str = "patches") -> GateItem:
    return GateItem(
        cell_id="cell",
        check=check,
        gate_class=gate_class,
        blocks=blocks,
        status=status,
        changed=True,
        key="k",
        reasons=("it is <broken> & new",),
        place=Place(file="patches/verl/a/all.patch", line=3),
    )


@pytest.mark.parametrize(
    ("one", "element"),
    [
        (item(GateClass.NEW, Blocks.UNEXPECTED, Status.FAIL), "failure"),
        (item(GateClass.INFRA, Blocks.INCOMPLETE, Status.NOT_RUN), "error"),
        (item(GateClass.KNOWN, Blocks.NO, Status.FAIL), "skipped"),
        (item(GateClass.AWAITED, Blocks.NO, Status.NOT_RUN), "skipped"),
        (item(GateClass.PASSED, Blocks.NO, Status.PASS), None),
    ],
)
def test_a_junit_case_fails_if_the_item_blocks(one: GateItem, element: str | None) -> None:
    root = ET.fromstring(as_junit(GateReport(base="main", items=(one,))))
    (case,) = root.findall(".//testcase[@name='patches']")
    assert [child.tag for child in case if child.tag != "properties"] == ([element] if element else [])


def test_problems_and_the_verdict_are_cases() -> None:
    report = GateReport(base="main", items=(), problems=("a ledger came along",), unverified=("no base",))
    root = ET.fromstring(as_junit(report))
    assert len(root.findall(".//failure")) == 2
    assert len(root.findall(".//error")) == 1


def test_code_quality_has_an_entry_for_each_item_that_blocks() -> None:
    blocking = item(GateClass.NEW, Blocks.UNEXPECTED, Status.FAIL)
    awaited = item(GateClass.AWAITED, Blocks.NO, Status.NOT_RUN, "loss")
    report = GateReport(base="main", items=(blocking, awaited), unverified=("no base",))
    first, second = json.loads(as_code_quality(report))
    assert first["location"] == {"path": "patches/verl/a/all.patch", "lines": {"begin": 3}}
    assert first["severity"] == second["severity"] == "blocker"
    assert first["fingerprint"] != second["fingerprint"]
    assert set(first) == {"description", "check_name", "fingerprint", "severity", "location"}
    assert json.loads(as_code_quality(GateReport(base="main", items=()))) == []
