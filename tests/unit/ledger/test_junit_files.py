from __future__ import annotations

import tempfile
from pathlib import Path

import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InfrastructureError, InputError
from harness.ledger.junit.junit_files import JUnitCase, read_junit, write_junit
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


def test_other_programs_count_what_we_mean(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "junit.xml"
    write_junit(path, CASES)
    document = junitparser.JUnitXml.fromfile(str(path))
    assert (document.tests, document.failures, document.errors, document.skipped) == (5, 1, 1, 2)
    suite_a, suite_b = list(document)
    assert (suite_a.name, suite_b.name) == ("cell-a", "cell-b")
    skipped = [case.result[0].message for case in suite_b if case.is_skipped]
    assert skipped == ["not-run: no NPU on this host", "blocked: lint failed"]


def test_our_own_statuses_come_back(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    write_junit(path, [JUnitCase(suite="c", name=status.value, status=status) for status in Status])
    back = read_junit(path)
    assert back.complete
    assert {case.name: case.status.value for case in back.cases} == {s.value: s.value for s in Status}
    assert back.cases[0].properties["status"] == "pass"


@given(
    st.lists(
        st.builds(
            JUnitCase,
            suite=st.text(),
            name=st.text(),
            status=st.sampled_from(Status),
            reasons=st.lists(st.text(), max_size=2).map(tuple),
            properties=st.dictionaries(st.text(), st.text(), max_size=2),
            log=st.text(),
        ),
        max_size=4,
    )
)
def test_any_text_makes_a_file_that_can_be_read(cases: list[JUnitCase]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junit.xml"
        write_junit(path, cases)
        back = read_junit(path)
    assert back.complete
    assert len(back.cases) == len(cases)
    green = [case for case in back.cases if case.status is Status.PASS]
    assert len(green) <= sum(case.status is Status.PASS for case in cases), (
        "nothing turns green by a round trip"
    )


def test_a_cut_off_file_gives_its_whole_cases_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    write_junit(path, CASES)
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        back = read_junit(path)
        assert not back.complete
        assert [case.name for case in back.cases] == [case.name for case in CASES][: len(back.cases)]


@given(st.binary(max_size=200))
def test_rubbish_is_incomplete_never_a_traceback(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junit.xml"
        path.write_bytes(data)
        back = read_junit(path)
    assert back.cases == ()
    assert not back.complete


def test_other_producers(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(
        """<testsuite name="" tests="3">
        <testcase classname="tests.test_x" name="a" time="1,234.5"/>
        <testcase classname="tests.test_x" name="b" time="?"><failure message="boom">Trace boom</failure>
          <error message="teardown"/></testcase>
        <testcase classname="tests.test_x" name="c"><skipped/></testcase>
        </testsuite>"""
    )
    a, b, c = read_junit(path).cases
    assert (a.suite, a.seconds, a.status) == ("tests.test_x", 1234.5, Status.PASS)
    assert (b.status, b.reasons, b.seconds) == (Status.ERROR, ("Trace boom", "teardown"), 0.0)
    assert c.status is Status.NOT_RUN


def test_a_forged_status_property_turns_nothing_green(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(
        '<testsuite name="s"><testcase name="a"><failure/><properties>'
        '<property name="status" value="pass"/></properties></testcase></testsuite>'
    )
    assert read_junit(path).cases[0].status is Status.FAIL


def test_entities_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text('<!DOCTYPE x [<!ENTITY a "aaaa">]><testsuite name="&a;"/>')
    back = read_junit(path)
    assert "document type" in back.problem


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_junit(tmp_path / "absent.xml")
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError):
        write_junit(tmp_path / "file" / "junit.xml", CASES)
