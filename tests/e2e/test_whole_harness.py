"""End-to-end tests of the command with static checks of tiny packages: plan, run, reuse, resume, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest


def statuses(report: dict) -> dict[tuple[str, str], str]:
    return {
        (verdict["cell"].rsplit("-", 1)[0], verdict["check"]): verdict["status"]
        for verdict in report["verdicts"]
    }


def test_a_clean_checkout_passes_and_writes_every_report(checkout):
    output = checkout.static()
    assert "4 executed, 0 reused" in output
    assert "4 pass; evidence of what passed: 4 static" in output
    names = {file.name for file in (checkout.root / "reports").iterdir()}
    assert {"index.html", "report.json", "summary.md", "junit.xml"} <= names
    assert set(statuses(checkout.status()).values()) == {"pass"}


def test_nothing_changed_means_nothing_runs(checkout):
    checkout.static()
    assert "0 executed, 4 reused" in checkout.static()


def test_touching_one_patch_runs_only_what_reads_it_and_why_rerun_says_so(checkout):
    checkout.static()
    cell = checkout.status()["verdicts"][0]["cell"]
    text = (checkout.root / "patches/verl/empty-mean/all.patch").read_text()
    checkout.patch(text.replace("return 0", "return 0.0"))
    why = json.loads(checkout.run("why-rerun", cell, "--json"))
    changed = {check["check"]: [change["part"] for change in check["changes"]] for check in why["checks"]}
    assert changed["patches"] == ["facets.patches[verl].verl/empty-mean.digest"]
    assert changed["resolve"] == []
    output = checkout.static()
    assert "2 executed, 2 reused" in output
    assert not re.search(r"start +static +resolve", output)


def test_cells_that_differ_elsewhere_share_what_is_the_same(checkout):
    plan = json.loads(checkout.run("plan", "--json"))
    assert len(plan["cells"]) == 2
    assert {task["check"] for task in plan["tasks"]} >= {
        "resolve",
        "patches",
        "environment",
        "loss",
        "grpo",
        "gspo",
    }


def test_a_patch_that_no_longer_applies_is_red_at_the_static_tier_with_its_cause(checkout):
    checkout.release("0.9.1", source="def mean(values):\n    return fsum(values) / len(values)\n")
    output = checkout.static(code=1)
    assert re.search(r"fail: verl-0-9-1\S* patches \(unexpected\)", output)
    assert "conflict" in output
    assert re.search(r"reproduce: npu-matrix (--cache \S+ )?run --only verl-0-9-1", output)
    status = statuses(checkout.status(code=1))
    assert status["verl-0-9-1-sim", "patches"] == "fail"
    assert status["verl-0-6-1-sim", "patches"] == "pass"


def test_the_reproduce_command_names_the_profile_it_is_of(checkout):
    checkout.release("0.9.1", source="nothing = 1\n")
    file = checkout.root / "matrix.yaml"
    file.write_text(file.read_text().replace("  default:\n", "  nightly:\n"))
    output = checkout.run("--profile", "nightly", "run", "--check", "patches", code=1)
    [command] = re.findall(r"reproduce: npu-matrix (.*)", output)
    assert "--profile nightly run --only verl-0-9-1" in command
    assert "1 executed, 1 reused" in checkout.run(*command.split(), code=1)


def test_pins_that_contradict_each_other_are_red_with_the_chain_of_causes(checkout):
    checkout.release("0.9.1", "tool>=2", "other")
    checkout.wheels.add("tool", "1.0")
    checkout.wheels.add("tool", "2.0")
    checkout.wheels.add("other", "1.0", "tool<2")
    output = checkout.static(code=1)
    assert re.search(r"fail: verl-0-9-1\S* resolve", output)
    assert "tool" in output


def test_what_an_infrastructure_error_blocks_has_no_answer_and_is_no_failure(checkout):
    cache = checkout.root / "damaged-cache"
    cache.mkdir()
    for name in ("sources", "bundle", "sim", "cells", "pairs"):
        (cache / name).write_text("a file where a folder belongs")
    output = checkout.run("run", "--only", "verl-0-9-1*", code=4, NPU_MATRIX_CACHE=str(cache))
    assert "blocked: " in output
    assert "exit 4" in output


def test_a_failed_static_tier_blocks_the_dearer_ones(checkout):
    checkout.release("0.9.1", source="nothing = 1\n")
    checkout.run("run", "--only", "verl-0-9-1*", code=1)
    status = statuses(checkout.status(code=1))
    assert status["verl-0-9-1-sim", "environment"] == "blocked"
    assert status["verl-0-9-1-sim", "loss"] == "blocked"


EXPECTATION = """
expectations:
  known: {cells: "verl-0-9-1*", check: patches, state: fail, reason: moved upstream,
    source: "https://example.org/1", owner: tests, until: %s}
"""


def test_a_known_failure_is_as_expected_until_it_passes(checkout):
    checkout.release("0.9.1", source="nothing = 1\n")
    checkout.matrix("0.6.1", "0.9.1", expectation=EXPECTATION % "2099-01-01")
    assert "1 known failure" in checkout.static()
    checkout.release("0.9.1")
    output = checkout.static("--fresh", code=1, NPU_MATRIX_CACHE=str(checkout.root / "other-cache"))
    assert "unexpected-pass" in output


def test_an_expectation_that_has_expired_no_longer_excuses(checkout):
    checkout.release("0.9.1", source="nothing = 1\n")
    checkout.matrix("0.6.1", "0.9.1", expectation=EXPECTATION % "2020-01-01")
    output = checkout.static(code=1)
    assert "expired" in output


def read_until(process, words: str) -> list[str]:
    """The lines of the output up to the first one that contains `words`, or all lines."""
    lines = []
    for line in iter(process.stdout.readline, ""):
        lines.append(line)
        if words in line:
            break
    return lines


def recorded_keys(ledger: Path) -> set[str]:
    """Keys of the completed outcomes; none if the ledger has no tables yet."""
    if not ledger.exists():
        return set()
    with contextlib.closing(sqlite3.connect(ledger)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'outcomes'").fetchone():
            return set()
        return {row[0] for row in database.execute("SELECT key FROM outcomes WHERE state = 'completed'")}


def test_kill_9_at_any_point_loses_nothing_that_was_recorded(checkout):
    for number in range(10, 22):
        checkout.release(f"0.7.{number}")
    checkout.matrix(*(f"0.7.{number}" for number in range(10, 22)))
    chance = random.Random(7)
    recorded: set[str] = set()
    for _ in range(6):
        process = checkout.start("run", "--check", "resolve", "--check", "patches")
        time.sleep(chance.uniform(0.3, 1.6))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
        now = recorded_keys(checkout.root / ".npu-matrix" / "ledger.sqlite3")
        assert recorded <= now
        recorded = now
    output = checkout.static()
    assert f"{24 - len(recorded)} executed, {len(recorded)} reused" in output
    assert "0 executed, 24 reused" in checkout.static()


def test_ctrl_c_is_130_and_resumes(checkout, index):
    resolve = ("run", "--check", "resolve", "--jobs", "2")
    with checkout.start(*resolve, **index.environ) as process:
        passed = [line for line in read_until(process, "pass") if line.startswith("pass")]
        assert passed
        assert index.requested.wait(300)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    index.release()
    assert re.search(r"[12] executed, [12] reused", checkout.run(*resolve, **index.environ))


def test_a_second_run_says_who_holds_the_checkout(checkout, index):
    resolve = ("run", "--check", "resolve", "--jobs", "2")
    with checkout.start(*resolve, **index.environ) as first:
        assert index.requested.wait(300)
        refused = checkout.run(*resolve, "--no-wait", code=4, **index.environ)
        assert f"process {first.pid}" in refused
        with checkout.start(*resolve, **index.environ) as second:
            assert f"process {first.pid}" in "".join(read_until(second, f"process {first.pid}"))
            index.release()
            waited, _ = second.communicate(timeout=300)
        assert "0 executed, 3 reused" in waited
        first.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, 0)


def test_a_corrupt_ledger_is_kept_aside_and_said(checkout):
    checkout.static()
    ledger = checkout.root / ".npu-matrix" / "ledger.sqlite3"
    for file in ledger.parent.glob("ledger.sqlite3*"):
        file.unlink()
    ledger.write_bytes(b"this is no database" * 100)
    output = checkout.static()
    assert "4 executed, 0 reused" in output
    assert "corrupt" in output
    assert list(ledger.parent.glob("ledger.sqlite3.corrupt-*"))


@pytest.mark.parametrize(
    ("command", "code"), [(["status"], 3), (["report"], 3), (["plan"], 0), (["why-rerun", "verl-0-9-1"], 0)]
)
def test_whichever_command_comes_upon_a_corrupt_ledger_says_so(checkout, command, code):
    checkout.static()
    ledger = checkout.root / ".npu-matrix" / "ledger.sqlite3"
    ledger.write_bytes(b"this is no database" * 100)
    output = checkout.run(*command, code=code)
    [copy] = ledger.parent.glob("ledger.sqlite3.corrupt-*Z")
    assert copy.name in output


@pytest.mark.skipif(
    os.geteuid() == 0, reason="root writes anywhere; the next test covers a reports path that is taken"
)
def test_reports_that_cannot_be_written_do_not_lose_outcomes(checkout):
    (checkout.root / "reports").mkdir()
    (checkout.root / "reports").chmod(0o500)
    checkout.static(code=4)
    (checkout.root / "reports").chmod(0o700)
    assert "0 executed, 4 reused" in checkout.static()


def test_a_reports_path_that_is_something_else_is_refused_before_anything_runs(checkout):
    (checkout.root / "reports").mkdir()
    (checkout.root / "reports" / "thesis.txt").write_text("three years of work")
    output = checkout.static(code=2)
    assert "reports" in output
    assert "executed" not in output
    assert (checkout.root / "reports" / "thesis.txt").read_text() == "three years of work"
    assert "4 executed, 0 reused" in checkout.static("--reports", "elsewhere")


def test_a_state_folder_that_cannot_be_made_is_an_infrastructure_error(checkout):
    target = checkout.root / "state-file"
    target.write_text("")
    output = checkout.run("--state", str(target), "run", "--check", "resolve", code=4)
    assert "do:" in output


def test_checks_named_with_a_comma_are_run_afresh(checkout):
    checkout.static()
    assert "0 executed" in checkout.run("run", "--check", "resolve,patches")
    assert "4 executed, 0 reused" in checkout.run("run", "--check", "resolve,patches", "--fresh")


def test_no_index_is_named_and_what_was_reached_is_kept(checkout):
    checkout.static("--check", "resolve")
    output = checkout.run(
        "run",
        "--check",
        "resolve",
        "--fresh",
        code=4,
        PIP_NO_INDEX="",
        PIP_FIND_LINKS="",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        UV_HTTP_RETRIES="0",
    )
    assert "127.0.0.1:9" in output
    assert "2 executed, 2 reused" in checkout.static(), "the locks, because the last attempt failed"
    assert "0 executed" in checkout.static()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace("product:", "produkt:"), r"matrix\.yaml:\d+:\d+.*produkt"),
        (lambda text: text.replace("[0.6.1, 0.9.1]", "[0.6.1, x.y]"), r"matrix\.yaml:\d+:\d+"),
        (lambda text: text + "\naxes: {}\n", r"matrix\.yaml:\d+:\d+.*axes"),
        (lambda text: text + "\n\tbad", r"matrix\.yaml:\d+:\d+"),
        (lambda text: "", r"matrix\.yaml"),
    ],
)
def test_a_bad_matrix_is_code_2_with_its_place(checkout, edit, message):
    file = checkout.root / "matrix.yaml"
    file.write_text(edit(file.read_text()))
    output = checkout.run("plan", code=2)
    assert re.search(message, output)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "--only", "verl-0-9-2*"], 3, "nearest: verl-0-9-1-sim"),
        (["run", "--check", "patchs"], 2, "nearest: patches"),
        (["pln"], 2, "Did you mean 'plan'"),
        (["--profile", "defualt", "plan"], 2, "default"),
        (["explain", "verl-0"], 2, "2 cells begin with"),
        (["status"], 3, "nothing has been run here yet"),
        (["report", "--run", "nope"], 2, "there is no run and no commit 'nope'"),
        (["status", "--run", "nope"], 2, "there is no run 'nope'"),
        (["why-rerun", "verl-0-9-1", "--run", "nope"], 2, "there is no run 'nope'"),
        (["--matrix", "missing.yaml", "plan"], 2, "missing.yaml"),
    ],
)
def test_bad_usage_has_its_code_and_says_what_to_do(checkout, arguments, code, message):
    assert message in checkout.run(*arguments, code=code)


def test_the_doctor_looks_at_the_disk_of_the_environments_too(checkout):
    # /proc has no free space. The command only queries it and writes nothing there.
    assert "0.0 GiB free" in checkout.run("--cache", "/proc", "doctor", code=4)


@pytest.mark.parametrize("options", [[], ["--cache", "/proc"]])
def test_the_exit_code_of_the_doctor_agrees_with_what_it_found(checkout, options):
    # The findings depend on this machine, whose disk may be full.
    process = checkout.start(*options, "doctor", "--json")
    output, _ = process.communicate(timeout=300)
    report = json.loads(output)
    assert report["schema"] == {"name": "npu-matrix.doctor", "version": 1}
    broken = any(finding["health"] == "broken" for finding in report["findings"])
    assert process.returncode == (4 if broken else 0), output
    assert broken or not options


def test_explain_says_where_each_value_comes_from(checkout):
    report = json.loads(checkout.run("explain", "verl-0-9-1", "--json"))
    assert report["axes"]["verl"]["value"] == "0.9.1"
    assert re.search(r"matrix\.yaml:\d+:\d+$", report["axes"]["verl"]["from"])


def test_every_json_has_a_schema_with_a_version(checkout):
    checkout.static()
    for arguments in (
        ["plan", "--json"],
        ["status", "--json"],
        ["matrix", "validate", "--json"],
    ):
        schema = json.loads(checkout.run(*arguments))["schema"]
        assert schema["name"].startswith("npu-matrix.")
        assert schema["version"] >= 1
