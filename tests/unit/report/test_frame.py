"""The frame of the report: no green unless every planned check is decided, and as expected."""

from __future__ import annotations

import pytest

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.report.model.frame import DECIDED, frame_of
from harness.report.model.marks import Mark

GREEN = {Mark.PASS, Mark.KNOWN_FAIL, Mark.UNSUPPORTED}


@pytest.mark.parametrize("mark", Mark)
def test_one_verdict_of_each_kind_next_to_a_hundred_passes(mark: Mark) -> None:
    frame = frame_of({Mark.PASS: 100, mark: 101}, exit_code=EXIT_OK, selection="")
    assert (frame.kind == "ok") is (mark in GREEN)
    assert (frame.word == "as expected") is (mark in GREEN)


def test_an_expected_error_decides_nothing() -> None:
    assert Mark.ERROR not in DECIDED
    frame = frame_of({Mark.PASS: 9, Mark.ERROR: 1}, exit_code=EXIT_OK, selection="")
    assert (frame.kind, frame.word) == ("open", "not all decided")
    assert "1 of 10" in frame.meaning


@pytest.mark.parametrize(
    ("code", "kind"), [(EXIT_UNEXPECTED, "bad"), (EXIT_NOTHING_SELECTED, "open"), (EXIT_INCOMPLETE, "open")]
)
def test_an_exit_code_outranks_passes(code: int, kind: str) -> None:
    assert frame_of({Mark.PASS: 5}, exit_code=code, selection="").kind == kind


def test_a_failure_is_red_whatever_the_exit_code_says() -> None:
    assert frame_of({Mark.FAIL: 1, Mark.PASS: 5}, exit_code=EXIT_OK, selection="").kind == "bad"


def test_a_part_of_a_profile_and_an_empty_plan_are_not_green() -> None:
    assert frame_of({Mark.PASS: 5}, exit_code=EXIT_OK, selection="--check loss").word == "a part only"
    assert frame_of({}, exit_code=EXIT_OK, selection="").word == "nothing planned"
