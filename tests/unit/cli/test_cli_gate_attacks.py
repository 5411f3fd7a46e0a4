"""Changes that try to get a green gate without evidence, in real git repositories."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from click.testing import CliRunner
from gate_checkout import GateCheckout, patch_of
from git_command import git

from harness.cli.gate_command import command
from harness.errors import InputError
from harness.settings import load_settings

EXPECTED = (
    "expectations:\n  known: {cells: '*', check: patches, state: fail, reason: moved,\n"
    "    source: 'https://example.org/1', owner: tests, until: 2099-01-01}\n"
)


@pytest.fixture
def checkout(tmp_path, parsed_code):
    return GateCheckout(tmp_path, parsed_code)


def add(file, text):
    file.write_text(file.read_text() + text)


def submodule(checkout, files):
    """Add a submodule `sub` with these files, and commit it."""
    origin = checkout.folder / "origin"
    origin.mkdir()
    for name, text in files.items():
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_bytes(text)
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", "-A", "-f")
    git(origin, "commit", "-q", "-m", "x")
    git(checkout.root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(origin), "sub")


@pytest.mark.parametrize("kind", ["tags", "heads"])
def test_a_tag_or_branch_with_the_name_of_the_base_does_not_replace_it(checkout, kind):
    git(checkout.root, "update-ref", "refs/remotes/origin/main", "main")
    git(checkout.root, "checkout", "-q", "-b", "change")
    checkout.write(patch_of("something else", "b = 1"))
    checkout.commit()
    git(checkout.root, "update-ref", f"refs/{kind}/origin/main", "change")
    git(checkout.root, "commit", "-q", "--allow-empty", "-m", "x")
    with pytest.raises(InputError, match="ambiguous"):
        checkout.gate("--base", "origin/main")
    assert checkout.gate("--base", "refs/remotes/origin/main")[0] == 4


def test_a_replaced_commit_does_not_replace_the_base(checkout):
    first = git(checkout.root, "rev-parse", "HEAD")
    git(checkout.root, "checkout", "-q", "-b", "change")
    checkout.write(patch_of("something else", "b = 1"))
    checkout.commit()
    git(checkout.root, "replace", first, "change")
    assert checkout.gate("--base", first)[1]["changed"]


def test_a_patch_that_the_change_takes_out_of_all_cells_and_breaks_is_not_looked_at(checkout):
    git(checkout.root, "checkout", "-q", "-b", "change")
    checkout.write(patch_of("something else", "b = 1"))
    [header] = (checkout.root / "patches").rglob("PATCH")
    header.write_text(re.sub(r"[>=<][>=<.,0-9]+", ">=99", header.read_text()))
    (checkout.root / ".gitlab-ci.yml").write_text("x: 1\n")
    checkout.commit()
    code, _item, report = checkout.gate()
    assert code != 0
    [text] = report["unverified"]
    assert "all.patch, which the change modifies and takes out of all cells" in text
    accepted = checkout.gate("--accept-removed", "patches")[2]
    assert accepted["unverified"] == []
    scope = accepted["scope"]
    assert scope["unread_files"][0].endswith("all.patch")
    assert any(note.endswith("review .gitlab-ci.yml") for note in scope["notes"])


def test_a_submodule_that_its_configuration_hides_is_a_changed_file(checkout):
    submodule(checkout, {"x": b"1"})
    add(checkout.root / ".gitmodules", "\tignore = all\n")
    checkout.commit()
    git(checkout.root / "sub", "commit", "-q", "--allow-empty", "-m", "y")
    git(checkout.root, "add", "-f", "sub")
    git(checkout.root, "commit", "-q", "-m", "y")
    assert "sub" in checkout.gate("--base", "HEAD^")[2]["scope"]["unread_files"]


def test_a_submodule_that_the_change_replaces_by_a_folder_is_named(checkout):
    submodule(checkout, {"x": b"1"})
    checkout.commit()
    shutil.rmtree(checkout.root / "sub")
    git(checkout.root, "rm", "-q", "--cached", "sub")
    (checkout.root / "sub").mkdir()
    (checkout.root / "sub" / "x").write_text("2")
    notes = checkout.gate()[2]["scope"]["notes"]
    assert "not looked at: 1 submodules of the base, not here: sub" in notes


def green_ledger(checkout):
    """The ledger of a machine on which the changed patch applied."""
    checkout.write(patch_of("a = 1", "b = 2"))
    assert checkout.run() == 0
    data = (checkout.root / ".npu-matrix" / "ledger.sqlite3").read_bytes()
    shutil.rmtree(checkout.root / ".npu-matrix")
    return data


@pytest.mark.parametrize("ambiguous", [False, True])
def test_a_ledger_that_the_change_names_like_a_missing_base_does_not_replace_it(
    checkout, monkeypatch, ambiguous
):
    checkout.write(patch_of("something else", "b = 1"))
    checkout.run()
    git(checkout.root, "checkout", "-q", "-b", "change")
    folder = checkout.root / "origin" / "main"
    folder.mkdir(parents=True)
    shutil.copy(checkout.root / ".npu-matrix" / "ledger.sqlite3", folder)
    checkout.commit()
    if ambiguous:
        git(checkout.root, "update-ref", "refs/remotes/origin/main", "main")
        git(checkout.root, "update-ref", "refs/tags/origin/main", "change")
    monkeypatch.chdir(checkout.root)
    with pytest.raises(InputError, match="ambiguous" if ambiguous else "file of the checkout"):
        checkout.gate("--base", "origin/main")


@pytest.mark.parametrize("in_submodule", [False, True])
def test_a_ledger_in_the_checkout_is_not_the_shard_of_another_job(checkout, in_submodule):
    data = green_ledger(checkout)
    if in_submodule:
        submodule(checkout, {"ledger.sqlite3": data})
        folder = checkout.root / "sub"
    else:
        folder = checkout.root / "shards"
        folder.mkdir()
        (folder / "ledger.sqlite3").write_bytes(data)
    assert checkout.gate()[0] == 4
    checkout.commit()
    git(checkout.root, "branch", "-q", "base", "HEAD^")
    for name in (folder, folder / "ledger.sqlite3"):
        with pytest.raises(InputError, match="file of the checkout"):
            checkout.gate("--base", "base", "--merge", str(name))
    outside = checkout.folder / "shard"
    outside.mkdir()
    (outside / "ledger.sqlite3").write_bytes(data)
    assert checkout.gate("--base", "base", "--merge", str(outside))[0] == 0


def test_a_state_folder_in_a_submodule_or_in_the_base_is_not_evidence(checkout):
    data = green_ledger(checkout)
    checkout.write(patch_of("a = 1", "b = 1"))
    submodule(checkout, {"state/ledger.sqlite3": data})
    checkout.commit()
    checkout.write(patch_of("a = 1", "b = 2"))
    (checkout.root / "npu-matrix.toml").write_text('state = "sub/state"\n')
    code, _item, report = checkout.gate()
    assert code == 1
    assert "outcomes come from runs" in report["problems"][0]


def test_a_change_that_brings_a_mirror_of_its_own_blocks(checkout):
    checkout.run()
    git(checkout.root, "checkout", "-q", "-b", "change")
    shutil.copytree(checkout.folder / "mirrors" / "verl" / ".git", checkout.root / "mine" / "verl.git")
    checkout.commit()
    (checkout.root / "mine" / "verl.git" / "refs" / "tags").mkdir(exist_ok=True)
    settings = load_settings({"mirrors": "mine", "cache": str(checkout.folder / "cache")}, {}, checkout.root)
    found = CliRunner().invoke(command, ["--base", "main"], obj=settings, standalone_mode=False)
    assert found.return_value == 1
    assert "mine/verl.git/" in found.stdout


def test_a_change_that_chooses_its_own_mirrors_blocks_until_the_job_sets_them(checkout):
    checkout.run()
    # An absolute path too, because the command line sets the variable to it.
    mine = str(checkout.root / "mine")
    (checkout.root / "npu-matrix.toml").write_text(f'mirrors = "{mine}"\n')
    found = checkout.invoke(command, ["--base", "main", "--impacted", "--json"], mirrors=False)
    report = json.loads(found.stdout)
    assert (found.return_value, report["exit_code"]) == (4, 4)
    assert f"mirrors = {mine!r} instead of ''" in report["unverified"][0]
    assert "NPU_MATRIX_MIRRORS" in report["unverified"][0]
    assert checkout.gate("--impacted")[0] == 0


def test_a_failure_that_the_change_itself_declares_is_said_in_the_verdict(checkout):
    checkout.run()
    add(checkout.root / "matrix.yaml", EXPECTED)
    checkout.write(patch_of("something else", "b = 1"))
    checkout.run()
    code, item, report = checkout.gate()
    assert (code, item["class"]) == (0, "known")
    assert "1 failures that this change itself declares as expected" in report["verdict"]
    assert any("the base does not" in line for line in item["evidence"])
    assert any(line.startswith("verdict of the base: pass") for line in item["evidence"])
    text = checkout.invoke(command, ["--base", "main"]).stdout
    assert "declares 1 failures as expected" in text.splitlines()[1]
    checkout.commit()
    checkout.write(patch_of("something else", "b = 2"))
    checkout.run()
    assert "declares" not in checkout.gate()[2]["verdict"]


def test_workflows_and_the_program_itself_are_named_before_other_files(checkout):
    (checkout.root / "docs").mkdir()
    for number in range(20):
        (checkout.root / "docs" / f"{number}.md").write_text("x")
    workflow = checkout.root / ".github" / "workflows" / "zz.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text("on: pull_request\n")
    checkout.run()
    scope = checkout.gate()[2]["scope"]
    assert scope["unread_files"][0] == ".github/workflows/zz.yml"
    assert any("review .github/workflows/zz.yml" in note for note in scope["notes"])
