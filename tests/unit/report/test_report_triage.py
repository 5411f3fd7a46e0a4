from pathlib import Path

from harness.outcome import Status
from harness.report.model.triage_card import card_of, diagnosed
from harness.verdict.verdict import Standing, Verdict


def verdict(status: Status) -> Verdict:
    return Verdict(cell_id="cell", check="grpo", status=status, standing=Standing.UNEXPECTED)


def test_a_known_error_in_the_log_of_a_failure_becomes_a_card(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("starting\nHunk #1 FAILED at 22 (different line endings).\n")
    found = diagnosed(verdict(Status.FAIL), log)
    assert found
    card = card_of(found)
    assert card
    assert (card.id, card.known, card.line) == ("patch-crlf", True, 2)
    assert card.cause
    assert card.remedy
    assert card.sources


def test_an_error_without_a_signature_is_shown_as_unknown(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text(
        'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    f()\n'
        "BrokenWidgetError: the widget is upside down\n"
    )
    found = diagnosed(verdict(Status.FAIL), log)
    assert found
    card = card_of(found)
    assert card
    assert not card.known
    assert "upside down" in card.excerpt
    assert card.cause == ""


def test_a_log_of_a_pass_or_without_an_error_makes_no_card(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("Hunk #1 FAILED at 22 (different line endings).\n")
    assert diagnosed(verdict(Status.PASS), log) is None
    log.write_text("step:1 - reward:0.5\n")
    found = diagnosed(verdict(Status.FAIL), log)
    assert found is None or card_of(found) is None
    assert diagnosed(verdict(Status.FAIL), None) is None
