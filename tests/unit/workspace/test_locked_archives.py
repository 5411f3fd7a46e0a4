"""What a run judges is what `resolve` locked, and an archive that the index replaced is never passed unseen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wheelhouse import Wheels, wheels

from harness.cli.app import main
from harness.ledger.store import Ledger
from harness.outcome import Outcome

__all__ = ["wheels"]

MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, source: made up}
  python: {title: Python, scheme: python, source: made up, values: {host: {title: this}}}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  steady:
    title: a row
    source: made up
    axes: {verl: 1.0, python: host, device: sim}
profiles:
  default: {title: all, select: [{stacks: all}]}
"""
USE = {"verl/trainer/main_ppo.py": "from transformers import AutoModel\n"}
HAS = {"transformers/__init__.py": "class AutoModel: ...\n"}
LACKS = {"transformers/__init__.py": "class Other: ...\n"}


@pytest.fixture
def index(wheels: Wheels) -> Wheels:
    """verl needs transformers below 5 because of a third package; the newest one has another API."""
    wheels.add("verl", "1.0", "transformers", "third", files=USE)
    wheels.add("third", "1.0", "transformers<5")
    wheels.add("transformers", "4.57.1", files=HAS)
    wheels.add("transformers", "5.23.0", files=LACKS)
    return wheels


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/matrix.yaml").write_text(MATRIX)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(tmp_path / "checkout"), "--cache", str(tmp_path / "cache"), *arguments])
        return int(stopped.value.code or 0), capsys.readouterr().out

    return run


def outcomes(tmp_path: Path) -> dict[str, Outcome]:
    """Check -> its last outcome."""
    with Ledger.open(tmp_path / "checkout/.npu-matrix") as ledger:
        return {outcome.check: outcome for outcome in reversed(ledger.history())}


def test_api_judges_the_locked_version_in_a_run_and_as_a_command(
    index: Wheels, command: Any, tmp_path: Path
) -> None:
    code, out = command("run", "--check", "api")
    assert code == 0, out
    pairs = outcomes(tmp_path)["api"].measurements["pairs"]
    assert ["verl", "1.0", "transformers", "4.57.1"] in [list(pair) for pair in pairs]
    code, out = command("api", "check", "steady", "--json")
    assert code == 0
    assert ["verl", "1.0", "transformers", "4.57.1"] in json.loads(out)["pairs"]


def test_a_replaced_archive_on_the_index_is_judged_again_and_fails(
    index: Wheels, command: Any, tmp_path: Path
) -> None:
    assert command("run", "--check", "api")[0] == 0
    before = outcomes(tmp_path)
    assert "0 executed" in command("run", "--check", "api")[1]
    replaced = index.add("transformers", "4.57.1", files=LACKS)
    code, out = command("run", "--check", "api")
    after = outcomes(tmp_path)
    assert code == 1, out
    assert after["api"].key == before["api"].key
    assert after["api"].inputs != before["api"].inputs
    digests = {one["package"]: one["sha256"] for one in after["api"].measurements["archives_read"]}
    assert digests["transformers"] == hashlib.sha256(replaced.read_bytes()).hexdigest()


def test_a_swapped_cache_changes_no_verdict(index: Wheels, command: Any, tmp_path: Path) -> None:
    assert command("run", "--check", "api")[0] == 0
    for file in (tmp_path / "cache/sources").rglob("*.zip"):
        file.write_bytes(b"swapped")
    assert command("run", "--check", "api", "--fresh")[0] == 0
    index.add("transformers", "4.57.1", files=LACKS)
    assert command("run", "--check", "api", "--fresh")[0] == 1


def test_api_check_of_a_cell_that_cannot_be_resolved_uses_its_pins(
    index: Wheels, command: Any, tmp_path: Path
) -> None:
    index.add("third", "1.0", "transformers<5", "nowhere==9")
    assert command("run", "--check", "api")[0] == 1
    code, out = command("api", "check", "steady")
    assert code == 1
    assert "the cell has no lock" in out
    assert "verl 1.0 with transformers 5.23.0" in out
