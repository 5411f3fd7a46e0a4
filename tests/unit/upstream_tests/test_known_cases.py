"""Known failures of upstreams' tests: what is new, what is repaired, and patterns that would hide failures."""

import datetime as dt
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.outcome import Case, Judgement, Status
from harness.verdict.known_cases import KnownCase, compare_cases
from harness.verdict.suite_known_failures import (
    KnownFailures,
    KnownFailuresDetails,
    expected_tests,
    read_known_failures,
    to_text,
    updated,
)
from harness.verdict.verdict import Standing, judge_against_expectation

MESSAGE = "AssertionError: N != N"


def failed(name: str, message: str = MESSAGE, kind: str = "wrong") -> Case:
    return Case(group="suite", id=name, failed=True, passed=False, kind=kind, message=message)


def passed(name: str) -> Case:
    return Case(group="suite", id=name, failed=False, passed=True)


def known(name: str, message: str = MESSAGE, kind: str = "wrong") -> KnownCase:
    return KnownCase(group="suite", id=name, kind=kind, message=message, reason="issue 7")


def file_of(*tests: KnownCase, until: dt.date = dt.date(2027, 1, 31)) -> KnownFailures:
    axes = {"torch_npu": "2.13.0", "device": "sim"}
    return KnownFailures(
        file="known_failures/suite/a.yaml",
        suite="suite",
        axes=axes,
        until=until,
        owner="me",
        source="issue 7",
        tests=tests,
    )


def standing(cases: list[Case], *tests: KnownCase) -> tuple[Standing, str]:
    expected = expected_tests(
        [file_of(*tests)], {"torch_npu": "2.13.0@abc", "device": "sim"}, dt.date(2026, 1, 1)
    )
    status = Status.FAIL if any(case.failed for case in cases) else Status.PASS
    judgement = Judgement(status=status, cases=tuple(cases))
    verdict = judge_against_expectation("cell", "upstream-tests", judgement, expected=expected)
    return verdict.standing, "\n".join(verdict.reasons)


def test_known_failures_are_known_and_others_are_new() -> None:
    assert standing([failed("t::a"), passed("t::b")], known("t::a"))[0] is Standing.KNOWN
    found, why = standing([failed("t::a"), failed("t::b")], known("t::a"))
    assert found is Standing.UNEXPECTED
    assert "new failure: suite: t::b" in why
    assert "1 known failures: 1 wrong" in why


def test_a_known_failure_that_passes_is_loud() -> None:
    found, why = standing([passed("t::a"), failed("t::b")], known("t::a"), known("t::b"))
    assert found is Standing.UNEXPECTED_PASS
    assert "does not fail any more (it passes): t::a" in why
    assert standing([passed("t::b")], known("t::gone"))[0] is Standing.UNEXPECTED_PASS


def test_a_failure_of_another_kind_is_new() -> None:
    found, why = standing([failed("t::a", "its process was ended by SIGSEGV", "crash")], known("t::a"))
    assert found is Standing.UNEXPECTED
    assert "fails in another way" in why


def test_a_pattern_may_not_cover_what_passes_or_fails_otherwise() -> None:
    every = known("t::*")
    assert standing([failed("t::a"), failed("t::b")], every)[0] is Standing.KNOWN
    for other in (passed("t::b"), failed("t::b", "KeyError: 'x'", "error")):
        found, why = standing([failed("t::a"), other], every)
        assert found is Standing.UNEXPECTED
        assert "The pattern t::* is refused: it also covers t::b" in why
    assert standing([passed("u::b")], every)[0] is Standing.UNEXPECTED


def test_classes_that_people_give_hold_for_the_same_message() -> None:
    assert standing([failed("t::a")], known("t::a", kind="not-simulatable"))[0] is Standing.KNOWN
    assert standing([failed("t::a", "other")], known("t::a", kind="upstream"))[0] is Standing.UNEXPECTED


def test_an_expired_file_does_not_count() -> None:
    old = file_of(known("t::a"), until=dt.date(2026, 1, 1))
    assert expected_tests([old], old.axes, dt.date(2026, 1, 2)) is None


def test_what_is_written_is_read_again_with_its_lines(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    text = to_text(file_of(known('t::a["x": {1}]', 'say "no": *'), known("t::b")))
    (tmp_path / "suite" / "a.yaml").write_text(text)
    (read,) = read_known_failures(tmp_path)
    assert [(one.id, one.message) for one in read.tests] == [
        ('t::a["x": {1}]', 'say "no": *'),
        ("t::b", MESSAGE),
    ]
    lines = text.splitlines()
    for one in read.tests:
        assert one.reason in lines[int(one.where.rpartition(":")[2]) - 1]
    (tmp_path / "suite" / "b.yaml").write_text("suite: other\ntests: {}\n")
    with pytest.raises(InputError, match="has the members"):
        read_known_failures(tmp_path)


def test_an_update_removes_what_is_repaired_and_adds_only_with_details() -> None:
    file = file_of(known("t::a"), known("t::b"), known("t::c"))
    cases = [passed("t::a"), failed("t::b"), failed("t::c", "other"), failed("t::d")]
    assert [one.id for one in updated(file, cases, None, reasons={}).tests] == ["t::b"]
    details = KnownFailuresDetails(owner="me", until=dt.date(2027, 5, 1), source="run 1")
    after = updated(file, cases, details, reasons={"t::d": "DTYPE: complex"})
    assert [(one.id, one.reason) for one in after.tests] == [
        ("t::b", "issue 7"),
        ("t::c", "wrong when this list was made"),
        ("t::d", "DTYPE: complex"),
    ]
    assert not compare_cases(cases, after.tests).new
