"""Runs of the base of a gate by the code of the base, without starting it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from make_outcome import make_outcome

from harness.ledger.store import Ledger
from harness.plan.change.revision import Revision
from harness.settings import load_settings
from harness.workspace.execution import base_run
from harness.workspace.results.foreign_secrets import ForeignSecrets


def test_credentials_that_the_code_of_the_base_did_not_mask_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: Sequence[str], *, env: Mapping[str, str], **_options: object) -> object:
        with Ledger.open(Path(env["NPU_MATRIX_STATE"])) as theirs:
            theirs.record(make_outcome(key="a" * 64))
            address = {"index": "https://me:canary@index.example/simple"}
            theirs.record(make_outcome(key="b" * 64, measurements=address))
        return subprocess.CompletedProcess(argv, 0, stderr=b"")

    root = tmp_path / "checkout"
    root.mkdir()
    monkeypatch.setattr(base_run, "PACKAGE_ROOT", root / "harness")
    monkeypatch.setattr(base_run, "has_same_code", lambda *_: False)
    monkeypatch.setattr(base_run, "extract_revision", lambda _root, _revision, _folder: root)
    monkeypatch.setattr(base_run.subprocess, "run", run)
    settings = load_settings({}, {"HOME": os.environ["HOME"]}, root)
    revision = Revision(name="base", commit="c" * 40)
    with Ledger.open(root / ".npu-matrix") as ledger:
        assert not base_run.run_base(settings, ledger, revision, [("cell", "probe")], ForeignSecrets())
        assert set(ledger.latest(["a" * 64, "b" * 64])) == {"a" * 64}
    stored = [path.read_bytes() for path in (root / ".npu-matrix").rglob("*") if path.is_file()]
    assert not [data for data in stored if b"canary" in data]
