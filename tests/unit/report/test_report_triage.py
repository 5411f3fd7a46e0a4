from pathlib import Path

from harness.outcome import Status
from harness.report.gather import _diagnosed
from harness.verdict.verdict import Expectation, Verdict


def verdict(status: Status) -> Verdict:
    return Verdict(cell_id="cell", check="grpo", status=status, standing=Expectation.UNEXPECTED)


def test_a_known_error_in_the_log_of_a_failure_adds_its_cause_and_remedy(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("starting\nHunk #1 FAILED at 22 (different line endings).\n")
    reasons, remedies = _diagnosed(verdict(Status.FAIL), log)
    assert reasons[0].startswith("patch-crlf: ")
    assert remedies


def test_a_log_of_a_pass_or_without_a_known_error_adds_nothing(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("Hunk #1 FAILED at 22 (different line endings).\n")
    assert _diagnosed(verdict(Status.PASS), log) == ((), ())
    log.write_text("step:1 - reward:0.5\n")
    assert _diagnosed(verdict(Status.FAIL), log) == ((), ())
    assert _diagnosed(verdict(Status.FAIL), None) == ((), ())
