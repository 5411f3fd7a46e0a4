from __future__ import annotations

import junitparser
from hypothesis import given
from hypothesis import strategies as st

from harness.ledger.junit.junit_writer import JUnitCase, junit_xml
from harness.outcome import Status

CASES = [
    JUnitCase(
        suite="cell-a", name="resolve", status=Status.PASS, seconds=1.5, properties={"evidence": "static"}
    ),
    JUnitCase(suite="cell-a", name="lint", status=Status.FAIL, reasons=("no NCCL on NPU", "set hccl")),
    JUnitCase(suite="cell-b", name="resolve", status=Status.ERROR, reasons=("no network",)),
    JUnitCase(suite="cell-b", name="loss", status=Status.NOT_RUN, reasons=("no NPU on this host",)),
    JUnitCase(suite="cell-b", name="grpo", status=Status.BLOCKED, reasons=("lint failed",)),
]


def test_other_programs_count_what_we_mean() -> None:
    document = junitparser.JUnitXml.fromstring(junit_xml(CASES, {"cell-b": {"torch": "2.7"}}))
    assert (document.tests, document.failures, document.errors, document.skipped) == (5, 1, 1, 2)
    suite_a, suite_b = list(document)
    assert (suite_a.name, suite_b.name) == ("cell-a", "cell-b")
    assert [(one.name, one.value) for one in suite_b.properties()] == [("torch", "2.7")]
    skipped = [case.result[0].message for case in suite_b if case.is_skipped]
    assert skipped == ["not-run: no NPU on this host", "blocked: lint failed"]


@given(
    st.lists(
        st.builds(
            JUnitCase,
            suite=st.text(),
            name=st.text(),
            status=st.sampled_from(Status),
            reasons=st.lists(st.text(), max_size=2).map(tuple),
            properties=st.dictionaries(st.text(), st.text(), max_size=2),
        ),
        max_size=4,
    )
)
def test_any_text_makes_a_file_that_can_be_read(cases: list[JUnitCase]) -> None:
    document = junitparser.JUnitXml.fromstring(junit_xml(cases, {}))
    assert document.tests == len(cases)
    passed = sum(case.is_passed for suite in document for case in suite)
    assert passed == sum(case.status is Status.PASS for case in cases)
