"""What a run prints at its end."""

from __future__ import annotations

import json

from gate_checkout import GateCheckout

from harness.cli import run_execution
from harness.cli.plan_command import command as plan_command
from harness.cli.run_command import command as run_command
from harness.cli.run_output import print_not_run, print_permissive, print_unexpected, print_unlisted
from harness.cli.status_command import command as status_command
from harness.outcome import Status
from harness.verdict.verdict import Standing, Verdict
from harness.workspace.planning.index_review import IndexReview


def test_an_index_that_does_not_respond_is_said_and_stored(tmp_path, monkeypatch):
    checkout = GateCheckout(tmp_path)
    for review, said in ((IndexReview(asked=6, unreached=6), True), (IndexReview(asked=6), False)):
        monkeypatch.setattr(run_execution, "review_index", lambda _plan, _ledger, found=review: found)
        text = checkout.invoke(run_command, []).stdout
        assert ("no response for 6 archives" in text) is said
        status = json.loads(checkout.invoke(status_command, ["--json"]).stdout)
        assert status["package_index"] == str(review)
        assert str(review) in checkout.invoke(plan_command, []).stdout
        assert str(review) in checkout.invoke(status_command, []).stdout


def not_run(reason: str, *remedies: str) -> Verdict:
    return Verdict(
        cell_id="cell",
        check="api",
        status=Status.NOT_RUN,
        standing=Standing.AS_EXPECTED,
        reasons=(reason,),
        remedies=remedies,
    )


def test_what_one_remedy_ends_stands_together_under_it(capsys):
    no_npu = not_run("no NPU on this host")
    absent = [not_run(f"commit {name} is not at hand", "Set a folder of clones.") for name in "aab"]
    print_not_run([absent[0], no_npu, *absent[1:], no_npu])
    assert capsys.readouterr().out.splitlines() == [
        "not run: 3 x commit a is not at hand (and 1 more such reason)",
        "  do: Set a folder of clones.",
        "not run: 2 x no NPU on this host",
    ]


def test_reasons_without_a_remedy_keep_their_own_lines(capsys):
    print_not_run([not_run("takes a minute"), not_run("takes an hour"), not_run("takes a minute")])
    assert capsys.readouterr().out.splitlines() == [
        "not run: 2 x takes a minute",
        "not run: 1 x takes an hour",
    ]


def unexpected(check: str, status: Status, reason: str, *, standing: Standing) -> Verdict:
    return Verdict(cell_id="cell", check=check, status=status, standing=standing, reasons=(reason,))


def test_what_one_failure_blocks_is_told_once(capsys):
    incomplete, failure = Standing.INCOMPLETE, Standing.UNEXPECTED
    blocked = [
        unexpected(check, Status.BLOCKED, "resolve failed", standing=incomplete) for check in ("loss", "grpo")
    ]
    known = unexpected("lint", Status.FAIL, "as it was", standing=Standing.KNOWN)
    failed = [unexpected(check, Status.FAIL, "no such wheel", standing=failure) for check in ("a", "b")]
    print_unexpected([failed[0], blocked[0], known, failed[1], blocked[1]], profile="mine")
    assert capsys.readouterr().out.splitlines() == [
        "",
        "fail: cell a (unexpected)",
        "  no such wheel",
        "  reproduce: npu-matrix --profile mine run --only cell --check a --fresh",
        "",
        "blocked: cell loss,grpo (incomplete)",
        "  resolve failed",
        "  reproduce: npu-matrix --profile mine run --only cell --check loss,grpo --fresh",
        "",
        "fail: cell b (unexpected)",
        "  no such wheel",
        "  reproduce: npu-matrix --profile mine run --only cell --check b --fresh",
    ]


def test_unlisted_versions_are_told_beside_a_pass(capsys):
    reasons = ("Overridden: a.", "Unlisted: cann 9 is not in the table (s).")
    for status in (Status.PASS, Status.FAIL):
        standing = Standing.AS_EXPECTED
        print_unlisted(
            [Verdict(cell_id="cell", check="constraints", status=status, standing=standing, reasons=reasons)]
        )
    assert capsys.readouterr().out == "cell: unlisted: cann 9 is not in the table (s).\n"


def test_passes_with_permissive_calls_are_counted_by_reason(capsys):
    def verdict(status, name):
        reasons = (f"Permissive: it is unknown whether torch_npu refuses these calls: {name}.",)
        standing = Standing.AS_EXPECTED
        return Verdict(cell_id="cell", check="loss", status=status, standing=standing, reasons=reasons)

    print_permissive([verdict(Status.PASS, name) for name in "aabcde"] + [verdict(Status.FAIL, "z")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 passed: permissive: it is unknown whether torch_npu refuses these calls: a."
    assert lines[-1] == "2 more passed with other such calls; see the report"
    assert len(lines) == 4
    print_permissive([])
    assert capsys.readouterr().out == ""
