"""Reading and comparing the results of tests/npu with two engines; tests/containers uses real engines."""

from __future__ import annotations

from npu_tests import differences, results

JUNIT = """<testsuites><testsuite>
<testcase classname="test_loss" name="test_a[grpo]" time="0.1"/>
<testcase classname="test_loss" name="test_b"><failure message="no">trace</failure></testcase>
<testcase classname="test_loss" name="test_c"><skipped message="no device"/></testcase>
<testcase classname="test_loss" name="test_d"/>
<testcase classname="test_loss" name="test_d"><error message="at its end"/></testcase>
</testsuite></testsuites>"""
FOUND = {
    "test_loss::test_a[grpo]": "passed",
    "test_loss::test_b": "failed",
    "test_loss::test_c": "skipped",
    "test_loss::test_d": "error",
}


def test_each_test_is_read_with_what_became_of_it() -> None:
    assert results(JUNIT) == FOUND


def test_the_same_answers_are_no_difference() -> None:
    assert differences("venv", FOUND, "docker", dict(reversed(FOUND.items()))) == []


def test_every_difference_names_its_test_and_both_answers() -> None:
    other = {**FOUND, "test_loss::test_b": "passed", "test_more::test_e": "passed"}
    del other["test_loss::test_c"]
    assert differences("venv", FOUND, "docker", other) == [
        "test_loss::test_b: failed with venv, passed with docker",
        "test_loss::test_c: skipped with venv, not run with docker",
        "test_more::test_e: not run with venv, passed with docker",
    ]
