"""A gate believes the signatures of runners that the base names; a change cannot bring a key of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from git_command import commit_all
from signing_keys import make_key

from harness.cli.gate_command import command
from harness.ledger.store import FILE_NAME, Ledger
from harness.settings import load_settings
from harness.workspace.open_ledger import runner_signers
from harness.workspace.results.base_runners import runners_of_base

MATRIX = """\
format: 1
axes:
  soc: {{title: SoC, scheme: name, source: a test, values: {{a2: {{title: A2, soc_name: Ascend910B3}}}}}}
profiles:
  default: {{title: all, select: [{{product: {{soc: [a2]}}}}]}}
runners:
  a2-host: {{title: host, kind: local, devices: [npu], soc: [a2], keys: ["{key}"], revoked_keys: revoked}}
{more}
"""


class Checkout:
    def __init__(self, root: Path, key: str) -> None:
        self.root = root
        self.settings = load_settings({}, {}, root)
        self.key = key
        (root / ".gitignore").write_text(".npu-matrix\n.cache\n")
        self.write(key)
        (root / "revoked").write_text("")
        commit_all(root)

    def write(self, key: str, more: str = "") -> None:
        (self.root / "matrix.yaml").write_text(MATRIX.format(key=key, more=more))

    def believed(self, base: str = "main") -> list[str]:
        return sorted(runners_of_base(self.settings, base))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    (tmp_path / "root").mkdir()
    return Checkout(tmp_path / "root", make_key(tmp_path, "runner")[1])


def test_a_runner_that_the_change_leaves_alone_is_believed(checkout):
    assert checkout.believed() == ["a2-host"]
    checkout.write(checkout.key, "# another line")
    assert checkout.believed() == ["a2-host"]


def test_a_runner_or_a_key_that_the_change_adds_is_not_believed_and_the_gate_says_so(
    checkout, tmp_path, monkeypatch
):
    signers = []

    def opened(folder, **options):
        signers.append(options["signers"])
        return Ledger._open(folder / FILE_NAME, read_only=False, host=None, **options)

    monkeypatch.setattr(Ledger, "open", opened)
    _, evil = make_key(tmp_path, "evil")
    checkout.write(
        checkout.key, f"  evil: {{title: e, kind: local, devices: [npu], soc: [a2], keys: [{evil!r}]}}"
    )
    assert checkout.believed() == ["a2-host"]
    assert "evil" in runner_signers(checkout.settings)
    done = CliRunner().invoke(
        command, ["--base", "main", "--json"], obj=checkout.settings, standalone_mode=False
    )
    assert (
        "the change adds the runner evil: the outcomes that it signed do not count here"
        in (json.loads(done.stdout)["scope"]["notes"])
    )
    # Not only these: the ledger of the gate believes no others.
    assert [sorted(believed()) for believed in signers] == [["a2-host"]]
    checkout.write(evil)
    assert checkout.believed() == []


def test_a_key_that_the_change_no_longer_revokes_is_not_believed(checkout):
    checkout.write(checkout.key)
    (checkout.root / "revoked").write_text(f"{checkout.key}\n")
    assert checkout.believed() == []
    commit_all(checkout.root)
    assert checkout.believed() == ["a2-host"]
    (checkout.root / "revoked").unlink()
    assert checkout.believed() == []


def test_with_another_base_than_a_revision_the_runners_of_this_checkout_are_believed(checkout):
    (found,) = runners_of_base(checkout.settings, "no-such-revision").values()
    assert replace(found, revoked=None).name == "a2-host"
