"""Runs of the base of a gate by the code of the base, without starting it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from make_outcome import make_outcome

from harness.ledger.plan_record import PlanRecord
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Tier
from harness.plan.change.revision import Revision
from harness.settings import load_settings
from harness.workspace.execution import base_run
from harness.workspace.results.foreign_secrets import ForeignSecrets


def run_base(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: Callable[[Ledger], object] = lambda _ledger: None,
    *,
    same_code: bool = False,
) -> Ledger:
    """The ledger after a run of the user and a run of a base, whose program does `record` in its ledger."""

    def run(argv: Sequence[str], *, env: Mapping[str, str], **_options: object) -> object:
        with Ledger.open(Path(env["NPU_MATRIX_STATE"])) as theirs:
            theirs.begin_run(PlanRecord(), argv[4:], {})
            record(theirs)
        return subprocess.CompletedProcess(argv, 0, stderr=b"")

    root = folder / "checkout"
    root.mkdir()
    monkeypatch.setattr(base_run, "PACKAGE_ROOT", root / "harness")
    monkeypatch.setattr(base_run, "has_same_code", lambda *_: same_code)
    monkeypatch.setattr(base_run.subprocess, "run", run)
    settings = load_settings({}, {"HOME": os.environ["HOME"]}, root)
    monkeypatch.setattr(base_run, "settings_of_revision", lambda *_: settings)
    revision = Revision(name="base", commit="c" * 40)
    ledger = Ledger.open(root / ".npu-matrix")
    ledger.begin_run(PlanRecord(), ["run", "--only", "mine"], {})
    assert not base_run.run_base(settings, ledger, revision, [("cell", "probe")], ForeignSecrets())
    return ledger


def test_credentials_that_the_code_of_the_base_did_not_mask_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(theirs: Ledger) -> None:
        theirs.record(make_outcome(key="a" * 64))
        address = {"index": "https://me:canary@index.example/simple"}
        theirs.record(make_outcome(key="b" * 64, measurements=address))

    with run_base(tmp_path, monkeypatch, record) as ledger:
        assert set(ledger.latest(["a" * 64, "b" * 64])) == {"a" * 64}
        state = ledger.path.parent
    stored = [path.read_bytes() for path in state.rglob("*") if path.is_file()]
    assert not [data for data in stored if b"canary" in data]


@pytest.mark.parametrize(("host", "claimed"), [("", ""), ("f" * 64, "no runner signed it")])
def test_hardware_outcomes_of_the_base_are_those_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, claimed: str
) -> None:
    def record(theirs: Ledger) -> None:
        theirs.host = host or theirs.host
        theirs.record(make_outcome(key="a" * 64, tier=Tier.NUMERICS, evidence=Evidence.HARDWARE))

    with run_base(tmp_path, monkeypatch, record) as ledger:
        (outcome,) = ledger.history()
        assert outcome.trust.claimed == claimed
        assert outcome.trust.foreign, "it does not replace an outcome that a run of the user recorded"
        assert (outcome.evidence is Evidence.HARDWARE) is not bool(claimed)


@pytest.mark.parametrize("same_code", [False, True])
def test_the_last_run_of_the_user_stays_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_code: bool
) -> None:
    with run_base(tmp_path, monkeypatch, same_code=same_code) as ledger:
        assert len(ledger.runs()) == 2
        last = ledger.latest_run()
        assert last is not None
        assert last.argv == ("run", "--only", "mine")
