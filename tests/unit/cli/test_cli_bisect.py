"""`bisect` within our own patch series: on a small loss that really is patched and computed, with one bad patch."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from memory_tree import MemoryTree

from harness.check import Check
from harness.cli.app import main
from harness.errors import (
    EXIT_BAD_INPUT,
    EXIT_INCOMPLETE,
    EXIT_NOTHING_SELECTED,
    EXIT_OK,
    InfrastructureError,
)
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.apply.stack_apply import apply_stack
from harness.sources.tree import TreeFile

MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, source: made up}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  steady: {title: a row, source: made up, axes: {verl: 0.9.1, device: sim}}
  bare: {title: a row, source: made up, axes: {verl: 0.1.0, device: sim}}
profiles:
  default: {title: all, select: [{stacks: all}]}
"""
LOSS = "def loss(log_prob, advantage):\n    ratio = exp(log_prob)\n    return -ratio * advantage\n"
GUILTY = 5
HEADER = """\
Subject: patch {number}
Why: A test.
Owner: a test
Upstream-Status: Inappropriate
Upstream-Url: none (a test)
Applies-To: >=0.5.0
Guarded-By: small-loss
Review-By: 2099-01-01
Body: body.patch >=0.5.0
"""


def body(number: int) -> str:
    """A patch that adds a file; the guilty one also turns the sign of the loss."""
    added = f"--- /dev/null\n+++ b/verl/note{number}.py\n@@ -0,0 +1 @@\n+NOTE = {number}\n"
    if number != GUILTY:
        return added
    return added + (
        "--- a/verl/loss.py\n+++ b/verl/loss.py\n@@ -1,3 +1,3 @@\n def loss(log_prob, advantage):\n"
        "     ratio = exp(log_prob)\n-    return -ratio * advantage\n+    return ratio * advantage\n"
    )


def measured_on(upstream: str):
    """A check that applies the cell's own patches to the small upstream and calls the loss that comes out."""

    def measure(context):
        patches = context.facets["patches[verl]"]
        loaded = [read_patch(one["id"], (context.root / one["file"]).read_bytes()) for one in patches]
        tree = MemoryTree(files={"verl/loss.py": TreeFile(data=upstream.encode())})
        changed = apply_stack(tree, loaded).files.get("verl/loss.py")
        names = {"exp": math.exp}
        exec(changed.data.decode() if changed else upstream, names)
        return Measured(measurements={"value": names["loss"](0.0, 1.0)}, evidence=Evidence.STATIC)

    return measure


def judge(measurements, _params):
    """At ratio 1 and advantage 1 the policy gradient loss is -1."""
    return Judgement(status=Status.PASS if measurements["value"] == -1.0 else Status.FAIL)


def small_loss(run=None, tier=Tier.STATIC) -> Check:
    return Check(
        name="small-loss",
        tier=tier,
        question="Is the loss of the patched tree right?",
        facets=("verl_tree", "patches[verl]"),
        run=run or measured_on(LOSS),
        judge=judge,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    stack = folder / "patches" / "verl"
    stack.mkdir(parents=True)
    (folder / "matrix.yaml").write_text(MATRIX)
    (stack / "series").write_text("".join(f"p{number}\n" for number in range(1, 9)))
    for number in range(1, 9):
        (stack / f"p{number}").mkdir()
        (stack / f"p{number}" / "PATCH").write_text(HEADER.format(number=number))
        (stack / f"p{number}" / "body.patch").write_text(body(number))
    return folder


@pytest.fixture
def bisect(checkout, capsys, monkeypatch):
    def call(*arguments: str, check: Check | None = None) -> tuple[int, str, str]:
        # Check packages are imported by name, so that one of the test can take their place.
        monkeypatch.setitem(
            sys.modules, "harness.sample.checks", SimpleNamespace(CHECKS=[check or small_loss()])
        )
        monkeypatch.setattr("harness.plan.tasks.check_registry.CHECK_PACKAGES", ("sample",))
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(checkout), "bisect", *arguments])
        seen = capsys.readouterr()
        return int(stopped.value.code or 0), seen.out, seen.err

    return call


def test_the_guilty_patch_of_eight_is_found_and_nothing_is_run_twice(bisect):
    code, out, _ = bisect("steady", "--check", "small-loss")
    assert code == EXIT_OK
    assert f"found: patch verl/p{GUILTY} (" in out
    ran = [line for line in out.splitlines() if line.startswith("  ran ")]
    assert 3 <= len(ran) <= 5, "eight patches and both ends are at most five questions"
    report = json.loads(bisect("steady", "--check", "small-loss", "--json")[1])
    assert report["leading"]["culprits"] == [f"patch verl/p{GUILTY}"]
    assert {one["how"] for one in report["observations"]} == {"known"}


@pytest.mark.parametrize(
    ("good", "bad", "found"),
    [
        ("steady+none", "steady", f"patch verl/p{GUILTY}"),
        ("steady+3", "steady+6", f"patch verl/p{GUILTY}"),
        ("steady+verl/p1,verl/p8", "steady", f"patch verl/p{GUILTY}"),
        ("steady+4", "steady+5", f"patch verl/p{GUILTY}"),
    ],
)
def test_ends_are_prefixes_or_subsets_of_the_series(bisect, good, bad, found):
    code, out, _ = bisect(good, bad, "--check", "small-loss")
    assert code == EXIT_OK
    assert f"found: {found} (" in out


def test_taking_a_patch_off_can_be_what_breaks_it(bisect, checkout):
    """Here upstream is wrong, and one patch mends it."""
    mends = body(GUILTY).replace("-ratio", "RATIO").replace("+    return ratio", "+    return -ratio")
    (checkout / "patches" / "verl" / f"p{GUILTY}" / "body.patch").write_text(mends.replace("RATIO", "ratio"))
    check = small_loss(measured_on(LOSS.replace("-ratio", "ratio")))
    code, out, _ = bisect("steady", "steady+2", "--check", "small-loss", check=check)
    assert code == EXIT_OK
    assert f"found: without verl/p{GUILTY} (" in out


def test_a_dry_run_tells_the_expected_cost_and_runs_nothing(bisect, checkout):
    code, out, _ = bisect("steady", "--check", "small-loss", "--dry-run")
    assert code == EXIT_OK
    assert "first: patches=" in out
    assert "expected: " in out
    assert "of work" in out
    assert not (checkout / ".npu-matrix").exists()


def test_a_flaky_check_is_asked_again_until_it_is_sure(bisect):
    chance = random.Random(0)

    def flaky(context):
        measured = measured_on(LOSS)(context)
        wrong = chance.random() < 0.2 and measured.measurements["value"] == -1.0
        return Measured(
            measurements={"value": 1.0} if wrong else measured.measurements, evidence=Evidence.CPU
        )

    options = ("--check", "small-loss", "--false-fail", "0.2", "--false-pass", "0")
    code, out, _ = bisect("steady", *options, check=small_loss(flaky, Tier.NUMERICS))
    assert code == EXIT_OK
    assert f"found: patch verl/p{GUILTY} (" in out


def test_a_probe_without_an_answer_says_why_and_is_not_asked_again(bisect):
    def broken(_context):
        raise InfrastructureError("the disk is full")

    code, out, _ = bisect("steady+4", "steady+5", "--check", "small-loss", check=small_loss(broken))
    assert code == EXIT_INCOMPLETE
    assert out.count("no verdict") == 2
    assert "the disk is full" in out
    assert "not sure yet" in out


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (("steady+9",), EXIT_BAD_INPUT, "has 8 patches, not 9"),
        (("steady+verl/p10", "steady"), EXIT_BAD_INPUT, "did you mean"),
        (("bare",), EXIT_BAD_INPUT, "no patch for the versions of bare"),
        (("steady", "steady"), EXIT_BAD_INPUT, "the same versions, recipe and patches"),
        (("stedy",), EXIT_BAD_INPUT, "steady"),
    ],
)
def test_ends_that_cannot_be(bisect, ends, code, said):
    found, _, err = bisect(*ends, "--check", "small-loss")
    assert found == code
    assert said in err


def test_nothing_can_be_asked_on_this_host(bisect):
    from dataclasses import replace

    asks_nothing = replace(small_loss(), applies=lambda _facets: "there is nothing to ask about")
    code, _, err = bisect("steady", "--check", "small-loss", check=asks_nothing)
    assert code == EXIT_NOTHING_SELECTED
    assert "there is nothing to ask about" in err
