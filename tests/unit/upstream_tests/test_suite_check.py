"""When stored outcomes of test suites are measured again."""

from pathlib import Path

import pytest
from git_command import commit_all, git
from make_outcome import make_outcome

from harness.check import Check, why_altered, why_not_reusable
from harness.outcome import Outcome
from harness.sources.git.mirrors import MIRRORS
from harness.upstream_tests.suite_check import SUITE_CHECKS
from harness.upstream_tests.suite_measurements import SUITES_FORMAT, MeasuredSuite, SuitesMeasured, Tag

REPOSITORY = "https://example.org/some/tests"


def stored(check: Check, suite: MeasuredSuite) -> Outcome:
    measurements = SUITES_FORMAT.write(SuitesMeasured(suites=(suite,)))
    return make_outcome(check=check.name, measurements=measurements)


@pytest.mark.parametrize("check", SUITE_CHECKS, ids=lambda check: check.name)
def test_suites_whose_tests_were_not_here_are_tried_again(check: Check) -> None:
    outcome = stored(check, MeasuredSuite(name="own", not_run="no mirror has the tests"))
    judgement = check.judge(check.read(outcome), {})
    assert why_not_reusable(check, outcome, judgement) == "the tests of own were not here"


@pytest.mark.parametrize("check", SUITE_CHECKS, ids=lambda check: check.name)
def test_a_suite_is_stale_when_its_tag_names_another_commit(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "some" / "tests"
    clone.mkdir(parents=True)
    first = commit_all(clone)
    git(clone, "tag", "v1")
    outcome = stored(
        check, MeasuredSuite(name="own", tag=Tag(repository=REPOSITORY, name="v1", commit=first))
    )
    # Without a clone nothing is known against it.
    monkeypatch.setenv(MIRRORS, str(tmp_path / "nothing"))
    assert not why_altered(check, outcome)
    monkeypatch.setenv(MIRRORS, str(tmp_path))
    assert not why_altered(check, outcome)
    moved = commit_all(clone)
    assert not why_altered(check, outcome)
    git(clone, "tag", "--force", "v1")
    assert why_altered(check, outcome) == f"the tag v1 was moved from {first[:12]} to {moved[:12]}"
