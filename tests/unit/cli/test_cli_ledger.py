"""`ledger merge` from the command line."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from edit_ledger import edit_ledger
from make_outcome import make_outcome
from signing_keys import make_key

from harness import __version__
from harness.cli.app import main
from harness.digest import digest_json
from harness.errors import (
    EXIT_BAD_INPUT,
    EXIT_INCOMPLETE,
    EXIT_NOTHING_SELECTED,
    EXIT_OK,
    EXIT_UNEXPECTED,
)
from harness.ledger.attestation.statement import Attestation
from harness.ledger.plan_record import PlanRecord, TaskRecord
from harness.ledger.store import Ledger
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import ArtifactRef, Evidence, Failure, Origin, State, Tier


def shard(folder: Path, key: str) -> Path:
    with Ledger.open(folder) as ledger:
        ref = ledger.artifacts.put(f"lock of {key}".encode(), "lock.txt")
        ledger.record(make_outcome(key * 64, "resolve", measurements={"resolved": True}, artifacts=(ref,)))
    return folder


SECRET_OUTCOMES = {
    "UV_INDEX_TEAM_PASSWORD": {"environment": {"index": {"uv": {"UV_INDEX_TEAM_PASSWORD": "canary"}}}},
    "measurements.index": {"measurements": {"index": "https://me:canary@index.example/simple"}},
    "failure.message": {"failure": Failure(kind="x", message="Authorization: Basic Y2FuYXJ5Y2FuYXJ5")},
    "measurements.text": {"measurements": {"text": "the canary-of-this-machine"}},
    "measurements contains": {"measurements": {"https://me:canary@index.example/simple": True}},
    "lock.txt": {},
}


@pytest.mark.parametrize("where", SECRET_OUTCOMES)
def test_outcomes_with_credentials_are_left_out_and_named(tmp_path, capsys, monkeypatch, where):
    monkeypatch.setenv("TEAM_TOKEN", "canary-of-this-machine")
    monkeypatch.setenv("ORDINARY", "resolved-as-the-others")
    other = shard(tmp_path / "a", "a")
    with Ledger.open(other) as ledger:
        text = (
            "--index-url https://me:canary@index.example" if where == "lock.txt" else "resolved-as-the-others"
        )
        ref = ledger.artifacts.put(text.encode(), "lock.txt")
        intact = ledger.latest(["a" * 64])["a" * 64]
        changed = {"measurements": {"resolved": "resolved-as-the-others"}, **SECRET_OUTCOMES[where]}
        ledger.record(replace(intact, key="b" * 64, artifacts=(ref,), **changed))
    code, out, err = call(capsys, tmp_path, str(other))
    assert code == EXIT_INCOMPLETE
    assert "1 outcomes added, 0 were here before" in out
    assert "outcomes with credentials left out" in out
    assert where in out
    assert "canary" not in out + err
    stored = [path.read_bytes() for path in (tmp_path / ".npu-matrix").rglob("*") if path.is_file()]
    assert not [data for data in stored if b"canary" in data or b"Y2FuYXJ5" in data]


def test_runs_whose_plans_contain_credentials_are_left_out_and_named(tmp_path, capsys):
    other = shard(tmp_path / "a", "a")
    with Ledger.open(other) as ledger:
        good = ledger.begin_run(PlanRecord(profile="default"), [], {})
        bad = ledger.begin_run(PlanRecord(notices=("see https://me:canary@index.example/simple",)), [], {})
    code, out, err = call(capsys, tmp_path, str(other))
    assert code == EXIT_INCOMPLETE
    assert "1 outcomes added, 0 were here before" in out
    assert f"1 runs left out, because they contain credentials:\n    {bad}" in out
    with Ledger.open(tmp_path / ".npu-matrix") as ledger:
        assert [run.run_id for run in ledger.runs()] == [good]
    stored = [path.read_bytes() for path in (tmp_path / ".npu-matrix").rglob("*") if path.is_file()]
    assert not [data for data in (*stored, (out + err).encode()) if b"canary" in data]


JOBS_MATRIX = f"""\
format: 1
include: npu-matrix:{__version__}
profiles:
  default:
    title: two releases
    select: [{{stacks: [verl-0-9-0, verl-0-8-0]}}]
"""


def test_a_variable_with_the_jobs_of_the_plan_makes_no_run_a_secret(tmp_path, capsys, monkeypatch):
    (tmp_path / "matrix.yaml").write_text(JOBS_MATRIX, "utf-8")
    cells = [cell.id for cell in load_matrix(tmp_path / "matrix.yaml").cells("default").cells]
    runner = "ubuntu-24.04-arm runner of team 7"
    job = {"cells": " ".join(cells), "checks": "resolve", "label": runner}
    jobs = {"include": [job], "pw": "canary-in-json-7f3a"}
    monkeypatch.setenv("MATRIX", json.dumps(jobs))
    other = shard(tmp_path / "a", "a")
    with Ledger.open(other) as ledger:
        good = ledger.begin_run(PlanRecord(notices=(f"{cells[0]}: resolve",)), [], {"runner": runner})
        ledger.begin_run(PlanRecord(notices=(f"{cells[0]}: canary-in-json-7f3a",)), [], {})
    code, out, err = call(capsys, tmp_path, str(other))
    assert code == EXIT_INCOMPLETE
    assert "1 outcomes added, 0 were here before" in out
    with Ledger.open(tmp_path / ".npu-matrix") as ledger:
        assert [run.run_id for run in ledger.runs()] == [good]
    stored = [path.read_bytes() for path in (tmp_path / ".npu-matrix").rglob("*") if path.is_file()]
    assert not [data for data in (*stored, (out + err).encode()) if b"canary" in data]


def test_runs_whose_ids_contain_credentials_are_left_out(tmp_path, capsys):
    other = shard(tmp_path / "a", "a")
    with Ledger.open(other) as ledger:
        ledger.begin_run(PlanRecord(profile="default"), [], {})
    edit_ledger(ledger.path, "UPDATE runs SET run_id = 'https://me:canary@index.example/simple'")
    code, out, err = call(capsys, tmp_path, str(other))
    assert code == EXIT_INCOMPLETE
    assert "1 runs left out, because they contain credentials" in out
    stored = [path.read_bytes() for path in (tmp_path / ".npu-matrix").rglob("*") if path.is_file()]
    assert not [data for data in (*stored, (out + err).encode()) if b"canary" in data]


def test_outcomes_whose_signed_statements_contain_credentials_are_left_out(tmp_path, capsys):
    other = shard(tmp_path / "a", "a")
    with Ledger.open(other) as ledger:
        (outcome,) = ledger.history()
        ledger.attest(
            outcome, Attestation(statement='{"index": "https://me:canary@index.example"}', signature="x")
        )
    code, out, err = call(capsys, tmp_path, str(other))
    assert code == EXIT_INCOMPLETE
    assert "resolve (key aaaaaaaaaaaa): a signed statement contains a credential" in out
    stored = [path.read_bytes() for path in (tmp_path / ".npu-matrix").rglob("*") if path.is_file()]
    assert not [data for data in (*stored, (out + err).encode()) if b"canary" in data]


def test_outcomes_with_files_too_large_to_be_searched_are_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("harness.workspace.results.foreign_secrets.MAX_BYTES", 1 << 20)
    other = shard(tmp_path / "a", "a")
    with Ledger.open(other) as ledger:
        ref = ledger.artifacts.put(b"x" * (2 << 20), "big.bin")
        intact = ledger.latest(["a" * 64])["a" * 64]
        ledger.record(replace(intact, key="b" * 64, artifacts=(ref,)))
    code, out, _ = call(capsys, tmp_path, str(other))
    assert code == EXIT_INCOMPLETE
    assert "the file big.bin is not searched for credentials: it has more than 1 MiB" in out


def call(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> tuple[int, str, str]:
    return run(capsys, ["--root", str(root), "ledger", "merge", *arguments])


def run(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    seen = capsys.readouterr()
    return int(stopped.value.code or 0), seen.out, seen.err


def test_shards_come_together_by_key_with_their_files_and_twice_is_once(tmp_path, capsys):
    first, second = shard(tmp_path / "a", "a"), shard(tmp_path / "b", "b")
    code, out, _ = call(capsys, tmp_path, str(first), str(second / "ledger.sqlite3"))
    assert code == EXIT_OK
    assert out.count("1 outcomes added") == 2
    code, out, _ = call(capsys, tmp_path, str(first), "--json")
    assert json.loads(out)["added"] == {str(first): 0}
    with Ledger.open(tmp_path / ".npu-matrix") as ledger:
        outcome = ledger.get("b" * 64)
        assert ledger.artifacts.get(outcome.artifacts[0]).read_bytes() == b"lock of b"


def test_what_is_no_ledger_stops_before_anything_is_merged(tmp_path, capsys):
    good = shard(tmp_path / "a", "a")
    code, _, err = call(capsys, tmp_path, str(good), str(tmp_path / "nowhere"))
    assert code == EXIT_BAD_INPUT
    assert "there is no ledger here" in err
    assert not (tmp_path / ".npu-matrix").exists()


def test_merge_says_which_hardware_outcomes_it_does_not_believe_and_why(tmp_path, capsys):
    far = tmp_path / "a"
    with Ledger.open(far, host="f" * 64) as ledger:
        ledger.record(make_outcome("a" * 64, "loss", tier=Tier.NUMERICS, evidence=Evidence.HARDWARE))
    code, out, _ = call(capsys, tmp_path, str(far))
    assert code == EXIT_OK
    assert "1 hardware outcomes claimed, not believed" in out
    assert "loss (key aaaaaaaaaaaa) of host ffffffffffff: no runner signed it" in out
    code, out, _ = call(capsys, tmp_path, str(far), "--json")
    (report,) = json.loads(out)["ledgers"].values()
    assert (report["read"], report["added"], report["signed"]) == (1, 0, 0)
    assert report["claimed"] == [
        {"key": "a" * 64, "check": "loss", "host": "f" * 64, "runner": "", "why": "no runner signed it"}
    ]


def test_merge_does_not_believe_weaker_evidence_for_a_task_that_only_hardware_can_run(tmp_path, capsys):
    far = tmp_path / "a"
    task = TaskRecord(
        key="b" * 64, check="loss", tier=Tier.NUMERICS, facets={"device": {"kind": "npu"}}, facet_digests={},
        code_digest="c", params={},
    )  # fmt: skip
    with Ledger.open(far, host="f" * 64) as ledger:
        ledger.begin_run(PlanRecord(tasks=(task,)), ["run"], {})
        for key in (task.key, "c" * 64):
            ledger.record(make_outcome(key, "loss", tier=Tier.NUMERICS, evidence=Evidence.CPU))
    _, out, _ = call(capsys, tmp_path, str(far))
    assert "2 outcomes added" in out
    assert "1 hardware outcomes claimed, not believed" in out
    assert "loss (key bbbbbbbbbbbb) of host ffffffffffff: no runner signed it" in out


def test_what_another_machine_wrote_adds_no_line_and_no_escape_to_the_terminal(tmp_path, capsys):
    far = tmp_path / "a"
    with Ledger.open(far) as ledger:
        name = "\x1b[2Jloss\n  9 hardware outcomes believed\x07"
        origin = Origin(host="f" * 64, runner=name)
        log = ArtifactRef(name=name, digest="a" * 64, size=1)
        ledger.record(make_outcome("a" * 64, name, evidence=Evidence.HARDWARE, origin=origin, log=log))
    _, out, _ = call(capsys, tmp_path, str(far))
    assert len(out.splitlines()) == 5
    assert not set(out) & {"\x1b", "\x07"}


def test_merge_names_damaged_rows_and_ends_with_incomplete(tmp_path, capsys):
    far = shard(tmp_path / "a", "a")
    with sqlite3.connect(far / "ledger.sqlite3") as database:
        database.execute("UPDATE outcomes SET body = replace(body, 'true', 'false')")
    code, out, _ = call(capsys, tmp_path, str(far))
    assert code == EXIT_INCOMPLETE
    assert "1 damaged rows left out" in out
    assert "of resolve" in out


MATRIX = """\
format: 1
axes:
  soc: {{title: SoC, scheme: name, source: test, values: {{a2: {{title: A2, soc_name: Ascend910B3}}}}}}
profiles:
  default: {{title: all, select: [{{product: {{soc: [a2]}}}}]}}
runners:
  a2-host: {{title: host, kind: local, devices: [npu], soc: [a2], keys: ["{public}"]}}
"""


def test_a_host_signs_its_hardware_outcomes_and_another_machine_believes_them(tmp_path, capsys, monkeypatch):
    key, public = make_key(tmp_path, "runner-key")
    here, there = tmp_path / "here", tmp_path / "npu-host"
    for root in (here, there):
        root.mkdir()
        (root / "matrix.yaml").write_text(MATRIX.format(public=public))
    device = {"kind": "npu", "soc": "Ascend910B3"}
    facets = {"device": digest_json(device)}
    task = TaskRecord(
        key="a" * 64, check="loss", tier=Tier.NUMERICS, facets={"device": device}, facet_digests=facets,
        code_digest="c", params={},
    )  # fmt: skip
    sign = ["--root", str(there), "--runner", "a2-host", "ledger", "sign", str(key)]
    assert run(capsys, sign)[0] == EXIT_NOTHING_SELECTED
    with Ledger.open(there / ".npu-matrix") as ledger:
        run_id = ledger.begin_run(PlanRecord(tasks=(task,)), ["run"], {})
        for name in "ab":
            ledger.record(
                make_outcome(
                    name * 64,
                    "loss",
                    tier=Tier.NUMERICS,
                    evidence=Evidence.HARDWARE,
                    facets=facets,
                    run_id=run_id,
                )
            )
    code, out, _ = run(capsys, sign)
    assert code == EXIT_UNEXPECTED
    assert "1 outcomes signed, 0 were signed before" in out
    assert "loss (key bbbbbbbbbbbb): the plan of its run is not in this ledger" in out
    code, out, _ = run(capsys, [*sign, "--json"])
    assert json.loads(out)["signed_before"] == ["a" * 64]
    with Ledger.open(there / ".npu-matrix") as ledger:
        (hardware,) = ledger.history(key="a" * 64)
        ledger.record(replace(hardware, evidence=Evidence.CPU, state=State.TIMEOUT))
    assert "1 outcomes signed, 1 were signed before" in run(capsys, sign)[1]
    # Here, the same state folder is that of another machine.
    monkeypatch.setattr("harness.ledger.store.host_fingerprint", lambda: "e" * 64)
    code, out, _ = call(capsys, here, str(there / ".npu-matrix"), "--json")
    assert code == EXIT_OK
    (report,) = json.loads(out)["ledgers"].values()
    assert report["signed"] == 2
    assert [one["why"] for one in report["claimed"]] == ["no runner signed it"]


def test_only_a_runner_with_a_key_in_the_matrix_can_sign(tmp_path, capsys):
    key, public = make_key(tmp_path, "runner-key")
    (tmp_path / "matrix.yaml").write_text(MATRIX.format(public=public))
    code, _, err = run(capsys, ["--root", str(tmp_path), "--runner", "a2-hots", "ledger", "sign", str(key)])
    assert code == EXIT_BAD_INPUT
    assert "names no key of the runner 'a2-hots'" in err
    assert "a2-host" in err
