"""`expect` over a checkout with a stored run."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from patched_checkout import added_line, write_patch

from harness.cli.app import main
from harness.cli.expect_command import command
from harness.errors import InputError
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Outcome, State
from harness.patchstack.apply.patch_verdict import MeasuredPatch, PatchVerdict
from harness.patchstack.patch_measurements import PATCHES_FORMAT, PatchesMeasured
from harness.settings import load_settings
from harness.workspace.planning.open_plan import open_plan

MATRIX = """\
# kept
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, source: a test, repository: "https://example.org/verl"}
  python: {title: Python, scheme: python, source: a test}
  device: {title: device, scheme: name, source: a test, values: {sim: {title: simulated}}}
profiles:
  default:
    title: a test
    select:
      - product: {verl: [0.6.1, 0.9.1]}
        with: {python: host, device: sim}
expectations:
  known: {cells: "verl-0-9-1*", check: patches, state: fail, reason: moved, source: "https://example.org/1",
    owner: tests, until: 2099-01-01}
"""
CLEAN = MeasuredPatch(patch="verl/b", verdict=PatchVerdict.CLEAN)
GOOD = PATCHES_FORMAT.write(PatchesMeasured(tree="t", selected=("verl/b",), applies=True, verdicts=(CLEAN,)))
BAD = PATCHES_FORMAT.write(PatchesMeasured(tree="t", selected=("x",), relations=("conflict",), applies=False))


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    write_patch(tmp_path / "patches" / "verl" / "b", added_line("a.py", "a = 1", "b = 2"))
    settings = load_settings({}, {}, tmp_path)

    def expect(*arguments, code=0):
        result = CliRunner().invoke(command, list(arguments), obj=settings, standalone_mode=False)
        if result.exception:
            raise result.exception
        assert result.return_value == code, result.output
        return result.output

    expect.settings, expect.file = settings, tmp_path / "matrix.yaml"
    return expect


def run(settings, answers):
    plan = open_plan(settings, checks=["patches"]).plan
    with Ledger.open(settings.path("state")) as ledger:
        run_id = ledger.begin_run(plan.record(), [], {})
        for entry in plan.entries:
            task = plan.tasks[entry.key]
            ledger.record(
                Outcome(
                    key=entry.key,
                    check="patches",
                    tier=task.check.tier,
                    state=State.COMPLETED,
                    evidence=Evidence.STATIC,
                    facets=task.facet_digests,
                    measurements=answers[entry.cell_id[:10]],
                    run_id=run_id,
                )
            )
        ledger.finish_run(run_id, 0)


def test_the_list_names_cells_and_is_red_when_something_is_to_be_mended(checkout):
    assert "cell: verl-0-9-1" in checkout("list")
    checkout.file.write_text(MATRIX.replace("2099", "2020"))
    assert "error: expired" in checkout("list", code=1)
    found = json.loads(checkout("list", "--json", code=1))
    assert found["schema"]["name"] == "npu-matrix.expectations"


def test_an_update_prints_the_edit_and_writes_it_and_a_dry_run_only_prints(checkout):
    run(checkout.settings, {"verl-0-6-1": BAD, "verl-0-9-1": GOOD})
    assert "-  known:" in checkout("update", "--dry-run")
    assert checkout.file.read_text() == MATRIX
    output = checkout("update")
    assert "1 unexpected failures were not added" in output
    assert "known" not in checkout.file.read_text()


SAID = ("--owner", "me", "--until", "2099-01-01", "--reason", "r", "--source", "https://example.org")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_byte_order_mark_and_mode_of_the_file_stay(checkout, mark):
    whole = mark + MATRIX.replace("\n", "\r\n").encode()
    checkout.file.write_bytes(whole)
    checkout.file.chmod(0o640)
    run(checkout.settings, {"verl-0-6-1": BAD, "verl-0-9-1": BAD})
    checkout("update", *SAID)
    written = checkout.file.read_bytes()
    assert written.startswith(whole)
    assert written.count(b"\n") == written.count(b"\r\n") > whole.count(b"\n")
    assert checkout.file.stat().st_mode & 0o777 == 0o640
    assert "nothing to change" in checkout("update")


def test_two_kinds_of_line_ends_are_left_alone(checkout):
    whole = MATRIX.replace("\n", "\r\n", 1).encode()
    checkout.file.write_bytes(whole)
    run(checkout.settings, {"verl-0-6-1": BAD, "verl-0-9-1": BAD})
    with pytest.raises(InputError, match="mixes LF and CRLF"):
        checkout("update", *SAID)
    assert checkout.file.read_bytes() == whole


def test_a_link_stays_a_link_and_nothing_half_written_stays(checkout, monkeypatch):
    real = checkout.file.with_name("real.yaml")
    checkout.file.rename(real)
    checkout.file.symlink_to(real.name)
    run(checkout.settings, {"verl-0-6-1": BAD, "verl-0-9-1": BAD})
    before = sorted(checkout.file.parent.iterdir())

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("harness.matrix.editing.yaml_edit.os.fsync", full)
        with pytest.raises(InputError, match="cannot be written"):
            checkout("update", *SAID)
    assert real.read_text() == MATRIX
    assert sorted(checkout.file.parent.iterdir()) == before
    checkout("update", *SAID)
    assert checkout.file.is_symlink()
    assert "owner: me" in real.read_text()


def test_what_newly_fails_is_added_with_owner_until_reason_and_source(checkout):
    run(checkout.settings, {"verl-0-6-1": BAD, "verl-0-9-1": BAD})
    checkout(
        "update", "--owner", "me", "--until", "2099-01-01", "--reason", "r", "--source", "https://example.org"
    )
    text = checkout.file.read_text()
    assert text.startswith("# kept")
    assert "owner: me" in text
    assert "nothing to change" in checkout("update")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["update", "--owner", "me"], 2, "--until"),
        (["update"], 3, "nothing has been run"),
        (["update", "--run", "nosuch"], 2, "no run"),
    ],
)
def test_bad_use_has_its_code_and_says_what_is_missing(checkout, arguments, code, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--root", str(checkout.file.parent), "expect", *arguments])
    assert stop.value.code == code
    assert says in capsys.readouterr().err


def test_refresh_without_issues_asks_nobody(checkout, monkeypatch):
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1")
    assert checkout("refresh") == "0 issues, 0 without an answer\n"
    assert not (checkout.file.parent / "upstream-issues.json").exists()


def test_refresh_says_which_issue_has_no_answer(checkout, monkeypatch):
    url = "https://github.com/verl-project/verl/issues/1"
    checkout.file.write_text(MATRIX.replace("https://example.org/1", url))
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1")
    output = checkout("refresh", code=4)
    assert f"{url}: unknown: not asked: " in output
    assert "1 issues, 1 without an answer" in output


def test_a_draft_of_a_failure_and_none_of_a_pass(checkout, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value-of-host")
    run(checkout.settings, {"verl-0-6-1": GOOD, "verl-0-9-1": BAD})
    cells = [entry.cell_id for entry in open_plan(checkout.settings, checks=["patches"]).plan.entries]
    bad, good = (next(cell for cell in cells if version in cell) for version in ("0-9-1", "0-6-1"))
    text = checkout("draft", bad, "patches", "--bisected", "abc1234 s3cr3t-value-of-host", code=None)
    assert text.startswith("# patches fails with")
    assert f"npu-matrix run --only {bad} --check patches --fresh" in text
    assert "abc1234" in text
    assert "s3cr3t" not in text
    assert "最小复现步骤" in checkout("draft", bad, "patches", "--language", "zh", code=None)
    with pytest.raises(InputError, match="did not fail"):
        checkout("draft", good, "patches")
    with pytest.raises(InputError, match="has no check 'loss'"):
        checkout("draft", bad, "loss")
