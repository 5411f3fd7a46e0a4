"""The gate after real runs of the check `patches`, in real git repositories, with a mirror of the upstream."""

from __future__ import annotations

import json
import shutil

import pytest
from gate_checkout import GateCheckout, patch_of
from git_command import git

from harness.cli.gate_command import command
from harness.cli.patches_command import command as patches_command
from harness.cli.plan_command import command as plan_command
from harness.errors import InputError


@pytest.fixture
def checkout(tmp_path, parsed_code):
    return GateCheckout(tmp_path, parsed_code)


def test_a_broken_patch_of_a_commit_without_mirrors_is_not_green(checkout):
    assert checkout.run() == 0
    checkout.write(patch_of("something else", "b = 1"))
    checkout.run(mirrors=False)
    code, item, _report = checkout.gate(mirrors=False)
    assert code == 4
    assert item["status"] == "not-run"
    assert (
        "get the sources from https://example.org/verl.git and run it: npu-matrix mirrors update"
        in item["remedies"][-1]
    )
    assert "folder of clones with --mirrors" in item["remedies"][-1]
    checkout.run()
    assert checkout.gate()[0] == 1


def test_an_outcome_of_a_machine_with_the_sources_is_not_replaced_by_one_without(checkout):
    checkout.run()
    checkout.write(patch_of("a = 1", "b = 2"))
    checkout.run()
    assert checkout.gate()[0] == 0


def test_an_edit_of_a_base_that_is_already_broken_does_not_block_after_the_base_was_run(checkout):
    checkout.write(patch_of("something else", "b = 1"))
    checkout.commit()
    checkout.write(patch_of("something else", "b = 2"))
    checkout.run()
    code, item, _report = checkout.gate()
    assert (code, item["class"]) == (4, "unknown")
    assert "gate --base main --run-base" in item["remedies"][-1]
    code, item, _report = checkout.gate("--run-base")
    assert (code, item["class"]) == (0, "known")
    assert git(checkout.root, "status", "--porcelain") == "M patches/verl/b/all.patch"


def test_a_failure_that_the_base_does_not_have_is_new_after_the_base_was_run(checkout):
    checkout.write(patch_of("something else", "b = 2"))
    checkout.run()
    code, item, _report = checkout.gate("--run-base")
    assert (code, item["class"]) == (1, "new")


def test_a_base_that_cannot_be_run_without_mirrors_stays_unknown(checkout):
    checkout.write(patch_of("something else", "b = 2"))
    checkout.run()
    code, item, _report = checkout.gate("--run-base", mirrors=False)
    assert (code, item["class"]) == (4, "unknown")
    assert "not-run" in item["evidence"][0]


def imported(checkout):
    """Import the plugin's patch of the checkout, in place of its own patch, and commit."""
    plugin = checkout.root / "plugin" / "verl_npu" / "patch" / "verl" / "d62da4950"
    plugin.mkdir(parents=True)
    (plugin / "mod.patch").write_text(patch_of("a = 1", "b = 1"))
    shutil.rmtree(checkout.root / "patches")
    target = str(checkout.root / "patches")
    words = ["--out", target, "--owner", "us", "--for", "d62da4950>=0.6.1"]
    checkout.invoke(patches_command, ["import", str(checkout.root / "plugin"), *words])
    checkout.commit()
    return plugin / "mod.patch"


def test_a_change_of_the_plugins_own_patch_blocks_until_it_is_imported_again(checkout):
    origin = imported(checkout)
    assert checkout.run() == 0
    origin.write_text(patch_of("a = 1", "b = 2"))
    plan = checkout.invoke(plan_command, ["--changed-since", "main"]).stdout
    assert "patches" in plan.partition("unchanged")[0]
    assert checkout.run() == 1
    code, item, report = checkout.gate()
    assert (code, item["class"]) == (1, "new")
    assert "import it again" in report["problems"][0]
    assert report["scope"]["unread_files"] == []
    origin.unlink()
    assert "is missing" in checkout.gate()[2]["problems"][0]


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_patch_that_lies_elsewhere_and_is_linked_counts(checkout, whole_folder):
    elsewhere = checkout.root / "vendor" / "npu"
    if whole_folder:
        shutil.copytree(checkout.root / "patches", elsewhere)
        shutil.rmtree(checkout.root / "patches")
        (checkout.root / "patches").symlink_to("vendor/npu")
        real = elsewhere / "verl" / "b" / "all.patch"
    else:
        elsewhere.mkdir(parents=True)
        real = elsewhere / "all.patch"
        (checkout.patch / "all.patch").rename(real)
        (checkout.patch / "all.patch").symlink_to("../../../vendor/npu/all.patch")
    checkout.commit()
    checkout.run()
    assert checkout.gate("--base", "HEAD~1")[0] == 0
    real.write_text(patch_of("something else", "b = 1"))
    code, item, report = checkout.gate()
    assert (code, item["changed"]) == (4, True)
    assert report["scope"]["unread_files"] == []
    checkout.run()
    assert checkout.gate("--run-base")[0] == 1


def test_a_patch_in_a_submodule_counts(checkout):
    origin = checkout.folder / "plugin-origin"
    origin.mkdir()
    (origin / "all.patch").write_text(patch_of("a = 1", "b = 1"))
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", "-A")
    git(origin, "commit", "-q", "-m", "x")
    git(checkout.root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(origin), "plugin")
    (checkout.patch / "all.patch").unlink()
    (checkout.patch / "all.patch").symlink_to("../../../plugin/all.patch")
    checkout.commit()
    checkout.run()
    assert checkout.gate("--base", "HEAD~1")[0] == 0
    (checkout.root / "plugin" / "all.patch").write_text(patch_of("something else", "b = 1"))
    git(checkout.root / "plugin", "commit", "-q", "-a", "-m", "y")
    code, item, _report = checkout.gate()
    assert (code, item["changed"]) == (4, True)


def test_an_uncommitted_change_in_a_submodule_counts(checkout):
    test_a_patch_in_a_submodule_counts(checkout)
    checkout.commit()
    checkout.run()
    (checkout.root / "plugin" / "all.patch").write_text(patch_of("a = 1", "b = 4"))
    assert checkout.gate()[1]["changed"]


def test_a_change_that_selects_another_profile_removes_the_checks_of_the_base(checkout):
    text = (checkout.root / "matrix.yaml").read_text()
    easy = "  easy: {title: t, select: [{product: {verl: [0.8.0]}, with: {python: host, device: sim}}]}\n"
    (checkout.root / "matrix.yaml").write_text(text + easy)
    (checkout.root / "npu-matrix.toml").write_text('profile = "easy"\n')
    found = checkout.invoke(command, ["--base", "main", "--impacted", "--awaiting", "*", "--json"])
    report = json.loads(found.stdout)
    assert found.return_value == 4
    assert report["gone"]
    assert any("selects profile easy instead of default" in note for note in report["scope"]["notes"])


def test_a_change_that_brings_its_own_outcomes_blocks(checkout):
    checkout.write(patch_of("something else", "b = 1"))
    checkout.run()
    assert checkout.gate()[2]["problems"] == []
    git(checkout.root, "checkout", "-q", "-b", "change")
    git(checkout.root, "add", "-f", ".npu-matrix/ledger.sqlite3")
    git(checkout.root, "commit", "-q", "-a", "-m", "forged")
    code, _item, report = checkout.gate()
    assert code == 1
    assert ".npu-matrix/ledger.sqlite3" in report["problems"][0]


def test_a_ledger_with_the_name_of_the_base_branch_does_not_replace_it(checkout, monkeypatch):
    checkout.run()
    monkeypatch.chdir(checkout.root)
    shutil.copytree(checkout.root / ".npu-matrix", checkout.root / "main")
    with pytest.raises(InputError, match="both a git revision and a ledger"):
        checkout.gate()
    checkout.gate("--base", "refs/heads/main")
    checkout.gate("--base", "./main")


def test_attributes_of_the_change_do_not_alter_the_base(checkout):
    (checkout.root / ".gitattributes").write_text("*.patch text eol=crlf export-ignore\n")
    (checkout.root / "NOTES").write_text("x\n")
    checkout.run()
    code, item, _report = checkout.gate()
    assert (code, item["changed"]) == (0, False)


def test_a_deleted_patch_is_said(checkout):
    other = checkout.patch.parent / "c"
    shutil.copytree(checkout.patch, other)
    (other / "all.patch").write_text(
        "diff --git a/verl/new.py b/verl/new.py\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/verl/new.py\n@@ -0,0 +1 @@\n+c = 1\n"
    )
    (checkout.patch.parent / "series").write_text("b\nc\n")
    checkout.commit()
    shutil.rmtree(other)
    (checkout.patch.parent / "series").write_text("b\n")
    checkout.run()
    code, _item, report = checkout.gate()
    assert code == 0
    assert any("removes 1 patches from all cells: verl/c" in note for note in report["scope"]["notes"])
    shutil.rmtree(checkout.patch)
    (checkout.patch.parent / "series").write_text("")
    assert checkout.gate()[0] == 4
