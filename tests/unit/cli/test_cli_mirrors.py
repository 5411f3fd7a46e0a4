"""`mirrors update`, and `run` and `gate` that fetch what is missing, against a git server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gate_checkout import GateCheckout
from git_command import git
from git_server import GitServer, git_server

from harness.cli.mirrors_command import command


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "mirrors") as running:
        yield running


@pytest.fixture
def checkout(tmp_path: Path, parsed_code: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = GateCheckout(tmp_path, parsed_code)
    at_address(made, server.url("verl"))
    monkeypatch.setenv("NPU_MATRIX_FETCH", "true")
    monkeypatch.setenv("NPU_MATRIX_FETCHED_MIRRORS", str(tmp_path / "cache" / "mirrors"))
    return made


def at_address(checkout: GateCheckout, address: str) -> None:
    matrix = checkout.root / "matrix.yaml"
    matrix.write_text(re.sub(r'repository: "[^"]*"', f'repository: "{address}"', matrix.read_text()))
    checkout.commit()


def mirrors(checkout: GateCheckout, *arguments: str) -> tuple[int, str]:
    settings = checkout.settings(mirrors=False)
    found = CliRunner().invoke(
        command, arguments, obj=settings, standalone_mode=False, env=settings.exported()
    )
    if found.exception:
        raise found.exception
    return int(found.return_value), found.stdout


def test_update_fetches_what_the_matrix_names_and_list_shows_it(checkout: GateCheckout) -> None:
    assert mirrors(checkout, "list")[0] == 4
    code, text = mirrors(checkout, "update", "--json")
    assert code == 0
    (one,) = json.loads(text)["repositories"]
    assert one["missing"] == {}
    assert one["fetched_from"] == one["addresses"][0]
    assert mirrors(checkout, "list")[0] == 0


def test_a_commit_that_a_patch_names_is_fetched_too(checkout: GateCheckout) -> None:
    header = checkout.patch / "PATCH"
    header.write_text(header.read_text().replace(">=0.6.1,<=0.9.1", "commit:0123456789ab"))
    code, text = mirrors(checkout, "update", "--json")
    assert code == 4
    (one,) = json.loads(text)["repositories"]
    assert list(one["missing"]) == ["0123456789ab"]


def test_an_unreachable_repository_is_incomplete(checkout: GateCheckout, server: GitServer) -> None:
    at_address(checkout, "http://127.0.0.1:9/verl")
    assert mirrors(checkout, "update")[0] == 4


def test_a_run_fetches_the_missing_commit_and_its_check_has_a_verdict(
    checkout: GateCheckout, server: GitServer
) -> None:
    assert checkout.run(mirrors=False) == 0
    assert server.packs
    asked = len(server.requests)
    assert checkout.run(mirrors=False) == 0
    assert len(server.requests) == asked


def test_a_run_that_must_not_fetch_asks_no_server(checkout: GateCheckout, server: GitServer) -> None:
    from harness.cli.run_command import command as run_command

    found = checkout.invoke(run_command, ["--no-fetch"], mirrors=False)
    assert found.return_value == 3
    assert not server.requests


def test_a_run_without_a_server_has_no_verdict(checkout: GateCheckout) -> None:
    at_address(checkout, "http://127.0.0.1:9/verl")
    assert checkout.run(mirrors=False) == 3


def test_a_change_cannot_choose_the_address(checkout: GateCheckout, server: GitServer) -> None:
    git(checkout.root, "checkout", "-q", "-b", "change")
    at_address(checkout, "http://127.0.0.1:9/other")
    code, text = mirrors(checkout, "update", "--base", "main", "--if-absent", "--json")
    assert code == 0
    (one,) = json.loads(text)["repositories"]
    assert one["addresses"] == [server.url("verl")]


def test_a_gate_fetches_from_the_addresses_of_the_base(checkout: GateCheckout, server: GitServer) -> None:
    git(checkout.root, "checkout", "-q", "-b", "change")
    at_address(checkout, "http://127.0.0.1:9/other")
    checkout.gate("--run-base", mirrors=False)
    assert server.packs


def test_an_alternative_of_the_matrix_is_used(checkout: GateCheckout, server: GitServer) -> None:
    matrix = checkout.root / "matrix.yaml"
    text = matrix.read_text()
    other = f'alternatives: [{{address: "{server.url("verl")}", source: a test}}]'
    matrix.write_text(re.sub(r'repository: "[^"]*"', f'repository: "http://127.0.0.1:9/verl", {other}', text))
    code, said = mirrors(checkout, "update", "--json")
    assert code == 0
    (one,) = json.loads(said)["repositories"]
    assert one["fetched_from"] == server.url("verl")
    assert list(one["failures"]) == ["http://127.0.0.1:9/verl"]
