"""`npu-matrix patches` from the command line, over a small history made with git itself."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_upstream import BASE, BROKEN, FIXED, HEADER, Git, made

from harness.cli.app import main
from harness.report.model.survival_facts import read_survival

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def upstream(tmp_path: Path) -> Git:
    """1.0, the same with a line more, a change of the same lines, that taken back."""
    git = Git(tmp_path / "upstream")
    git.commit("1.0", BASE, "release 1.0")
    git("tag", "v1.0")
    git.commit("1.1", "import os\n" + BASE, "shift the lines")
    git.commit("2.0", BROKEN, "break <it>")
    git("tag", "v2.0")
    git.commit("3.0", BASE, "mend it")
    return git


@pytest.fixture
def checkout(tmp_path: Path, upstream: Git) -> Path:
    folder = tmp_path / "checkout"
    patch = folder / "patches" / "verl" / "seven"
    patch.mkdir(parents=True)
    (patch.parent / "series").write_text("seven\n")
    (patch / "PATCH").write_text(HEADER)
    (patch / "1.patch").write_text(made(upstream))
    return folder


@pytest.fixture
def patches(checkout: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(checkout), "patches", *map(str, arguments)])
        said = capsys.readouterr()
        assert stopped.value.code == code, said
        assert "Traceback" not in said.err
        return said.out or said.err

    return run


def test_a_patch_that_applies_is_code_0_and_one_that_does_not_code_1_with_its_culprit(
    patches: Any, upstream: Git
) -> None:
    repo = ("--repo", upstream.folder, "--ref")
    assert "clean  verl/seven" in patches("check", *repo, "v1.0")
    assert "offset(+1)  verl/seven" in patches("check", *repo, "v2.0~1")
    assert "broken by" in (broken := patches("check", *repo, "v2.0", code=1))
    assert "conflict  verl/seven" in broken
    assert "break <it>" in broken
    found = json.loads(patches("check", *repo, "v2.0", "--json", code=1))
    assert found["schema"] == {"name": "npu-matrix/patch-check", "version": 1}
    assert found["broken_by"]["verl/seven"]["subject"] == "break <it>"
    assert [one["verdict"] for one in found["verdicts"]] == ["conflict"]


def test_bodies_are_chosen_by_the_version_the_tree_says_it_is_unless_told(
    patches: Any, upstream: Git
) -> None:
    repo = ("--repo", upstream.folder, "--ref", "main")
    assert "no patch is for version 3.0" in patches("check", *repo, code=3)
    assert "clean  verl/seven" in patches("check", *repo, "--version", "1.0")
    (upstream.folder / "verl" / "version" / "version").unlink()
    assert "--version" in patches("check", "--tree", upstream.folder, code=2)
    assert "clean" in patches("check", "--tree", upstream.folder, "--version", "2")


def test_headers_and_ranges_are_checked_without_a_tree(patches: Any, checkout: Path) -> None:
    [stack] = json.loads(patches("check", "--json"))["stacks"]
    assert stack["versions"]
    assert f"valid for {len(stack['versions'])} versions" in patches("check")
    header = checkout / "patches" / "verl" / "seven" / "PATCH"
    header.write_text(HEADER.replace("Owner: us\n", "").replace("loss", "lo ss!"))
    said = patches("check", code=2)
    assert f"{header}:1: the trailer Owner is missing" in said
    [problem, *_rest] = json.loads(patches("check", "--json", code=2))["problems"]
    assert problem["what"] == "the trailer Owner is missing"


def test_survival_lists_commits_newest_first_with_one_verdict_each(
    patches: Any, upstream: Git, tmp_path: Path
) -> None:
    html, svg = tmp_path / "map.html", tmp_path / "map.svg"
    asked = ("survival", "--repo", upstream.folder, "--range", "v1.0..main")
    found = json.loads(patches(*asked, "--json", "--html", html, "--svg", svg))
    assert [one["subject"] for one in found["commits"]] == ["mend it", "break <it>", "shift the lines"]
    [patch] = found["patches"]
    assert [found["legend"][index] for index in patch["verdicts"]] == ["clean", "conflict", "offset"]
    assert patch["first_break"]["subject"] == "break <it>"
    assert patch["first_fix"]["subject"] == "mend it"
    assert "break &lt;it&gt;" in html.read_text()
    assert svg.read_text().startswith("<svg")
    said = patches(*asked)
    assert "oX." in said
    assert "verl/seven first broken by" in said
    assert said.rstrip().endswith("mend it")


def test_the_report_reads_what_survival_prints(patches: Any, upstream: Git, tmp_path: Path) -> None:
    file = tmp_path / "survival.json"
    file.write_text(patches("survival", "--repo", upstream.folder, "--range", "v1.0..main", "--json"))
    assert read_survival(file).patches[0].id == "verl/seven"


def test_survival_says_what_is_wrong_with_a_range(patches: Any, upstream: Git, tmp_path: Path) -> None:
    repo = ("survival", "--repo", upstream.folder)
    assert "'v9' is not in this repository" in patches(*repo, "--range", "v1.0..v9", code=2)
    assert "has no commits" in patches(*repo, "--range", "main..v1.0", code=2)
    assert "two dots" in patches(*repo, "--range", "v1.0...main", code=2)
    assert "need each other" in patches(*repo, code=2)
    assert "not a git repository" in patches("survival", "--repo", tmp_path, "--range", "a..b", code=2)
    nowhere = tmp_path / "no" / "map.html"
    assert "cannot be written" in patches(*repo, "--range", "v1.0..main", "--html", nowhere, code=2)


def test_the_summary_is_read_from_the_code(patches: Any, upstream: Git) -> None:
    asked = ("summary", "--repo", upstream.folder, "--ref")
    assert "- replaced    function    f7" in patches(*asked, "v1.0")
    found = json.loads(patches(*asked, "v1.0", "--json"))
    [file] = found["patches"][0]["files"]
    assert [one["name"] for one in file["module_changes"]] == ["f7"]
    patches(*asked, "v2.0", code=1)
    assert "select a tree" in patches("summary", code=2)


def test_rebase_makes_what_it_can_and_a_kit_for_the_rest(patches: Any, upstream: Git, tmp_path: Path) -> None:
    asked = ("rebase", "--repo", upstream.folder, "--to")
    clean = tmp_path / "clean"
    assert "1 of 1 patches" in patches(*asked, "v2.0~1", "--out", clean)
    upstream("checkout", "-q", "v2.0~1")
    upstream("apply", "--check", str(clean / "verl-seven.patch"))
    out = tmp_path / "out"
    assert "patches rebase --continue" in patches(*asked, "v2.0", "--out", out, code=1)
    kit = out / "verl-seven"
    assert "still has a conflict marker" in patches("rebase", "--continue", kit, code=2)
    (kit / "tree" / "verl" / "mod.py").write_text(BROKEN.replace("'upstream'", "70"))
    patches("rebase", "--continue", kit)
    upstream("checkout", "-q", "-f", "v2.0")
    upstream("apply", "--check", str(out / "verl-seven.patch"))
    assert "not empty" in patches(*asked, "v2.0", "--out", out, code=2)
    assert "--continue" in patches("rebase", code=2)


def plugin(folder: Path, commit: str, body: str) -> Path:
    """A checkout laid out as the NPU plugin's, whose summary claims what is not so."""
    patch = folder / "patch" / "verl" / commit[:9]
    patch.mkdir(parents=True)
    (patch / "seven.patch").write_text(body)
    change = {"action": "added", "kind": "function", "name": "f8"}
    file = {"name": "seven", "diff": {"module_changes": [change]}}
    version = {"rev": commit, "dir": commit[:9], "files": [file]}
    claims = {"patches": [{"repo": "verl", "current_rev": commit, "versions": [version]}]}
    (folder / "patch_summary").mkdir()
    (folder / "patch_summary" / "patch_summary.yaml").write_text(yaml.safe_dump(claims))
    return folder


def test_import_holds_a_stack_against_its_pins_and_its_own_summary(
    patches: Any, upstream: Git, tmp_path: Path
) -> None:
    commit = upstream("rev-parse", "v1.0")
    theirs = plugin(tmp_path / "theirs", commit, made(upstream))
    assert "not tested       verl/" in patches("import", theirs)
    said = patches("import", theirs, "--repo", upstream.folder, code=1)
    assert "clean            verl/" in said
    assert "the summary says f8 added" in said
    assert "the code has f7 replaced, but the summary does not" in said
    found = json.loads(patches("import", theirs, "--json"))
    assert found["layout"] == "verl_npu"
    assert found["problems"] == []


def test_what_is_imported_is_a_stack_of_ours(patches: Any, upstream: Git, tmp_path: Path) -> None:
    commit = upstream("rev-parse", "v1.0")
    theirs, ours = plugin(tmp_path / "theirs", commit, made(upstream)), tmp_path / "ours"
    assert "--owner" in patches("import", theirs, "--out", ours, code=2)
    assert "is not a pin" in patches("import", theirs, "--out", ours, "--owner", "us", "--for", "x", code=2)
    assert not ours.exists()
    patches("import", theirs, "--out", ours, "--owner", "us")
    repo = ("--repo", upstream.folder, "--ref")
    assert "clean  verl/seven" in patches("check", "--patches", ours, *repo, "v1.0")
    patches("check", "--patches", ours, *repo, "main", code=3)
    patches("export", "--patches", ours, "--check")
    assert "exists already" in patches("import", theirs, "--out", ours, "--owner", "us", code=2)


def test_a_corrupt_patch_is_imported_named_and_counted(patches: Any, upstream: Git, tmp_path: Path) -> None:
    commit = upstream("rev-parse", "v1.0")
    theirs, ours = plugin(tmp_path / "theirs", commit, made(upstream)), tmp_path / "ours"
    (theirs / "patch" / "verl" / commit[:9] / "cut.patch").write_text(made(upstream)[:-40])
    assert "cut.patch" in patches("import", theirs, "--out", ours, "--owner", "us", code=1)
    assert (ours / "verl" / "series").read_text().split() == ["cut", "seven"]
    said = patches("check", "--patches", ours, "--repo", upstream.folder, "--ref", "v1.0", code=1)
    assert "corrupt  verl/cut" in said
    assert "1 of 2" in said
    assert "verl/cut" in patches("check", "--patches", ours, code=2)


def test_export_is_compared_byte_for_byte(patches: Any, checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("export", "--version", "1.0", "--out", out)
    patches(*asked)
    assert sorted(file.name for file in out.iterdir()) == ["0001-seven.patch", "series"]
    patches(*asked, "--check")
    (out / "stray").write_text("x")
    (out / "series").write_text("")
    found = json.loads(patches(*asked, "--check", "--json", code=1))
    assert [Path(one["where"]).name for one in found["problems"]] == ["series", "stray"]
    patches("export", "--check")
    body = checkout / "patches" / "verl" / "seven" / "1.patch"
    body.write_text("a word above\n" + body.read_text())
    assert "not in canonical form" in patches("export", "--check", code=1)
    assert "not empty" in patches(*asked, code=2)
    assert "--check" in patches("export", code=2)


def test_any_folder_of_patches_will_do_and_names_choose_from_it(
    patches: Any, upstream: Git, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "good.patch").write_text(made(upstream))
    (folder / "bad.patch").write_text(made(upstream)[:-20])
    asked = ("check", "--patches", folder, "--repo", upstream.folder, "--ref", "main")
    assert "corrupt  bad.patch" in patches(*asked, code=1)
    patches(*asked, "good.patch")
    assert "one of: good.patch" in patches(*asked, "goot.patch", code=2)
    assert "there are no stacks here" in patches("check", "--patches", folder, code=2)
    assert "no stack of this project's format" in patches("export", "--patches", folder, "--check", code=2)


def test_probe_tells_a_patched_installation_from_others(patches: Any, upstream: Git) -> None:
    upstream("checkout", "-q", "v1.0")
    tree = ("--tree", upstream.folder)
    said = patches("probe", *tree, code=1)
    assert "missing" in said
    assert "0 of 1 patches are there" in said
    patches("apply", *tree)
    assert "1 of 1 patches are there" in patches("probe", *tree)
    facts = json.loads(patches("probe", *tree, "--json"))
    assert [one["presence"] for one in facts["patches"]] == ["present"]
    file = upstream.folder / "verl" / "mod.py"
    file.write_text(BROKEN)
    assert "verl/mod.py" in patches("probe", *tree, code=1)


def test_apply_writes_every_patch_or_none(patches: Any, upstream: Git) -> None:
    file = upstream.folder / "verl" / "mod.py"
    upstream("checkout", "-q", "v1.0")
    said = patches("apply", "--tree", upstream.folder)
    assert "clean  verl/seven" in said
    assert "1 files written" in said
    assert file.read_text() == FIXED
    again = json.loads(patches("apply", "--tree", upstream.folder, "--json"))
    assert again["schema"] == {"name": "npu-matrix/patch-apply", "version": 1}
    assert [one["verdict"] for one in again["verdicts"]] == ["already-upstream"]
    assert again["written"] == []
    upstream("checkout", "-q", "-f", "v2.0")
    assert "conflict" in patches("apply", "--tree", upstream.folder, code=1)
    assert file.read_text() == BROKEN
    assert "no such folder" in patches("apply", "--tree", upstream.folder / "nowhere", code=2)
    upstream("checkout", "-q", "-f", "main")
    assert "no patch is for version 3.0" in patches("apply", "--tree", upstream.folder, code=3)


def test_what_others_wrote_does_not_steer_the_terminal_or_stop_the_report(
    patches: Any, upstream: Git, tmp_path: Path
) -> None:
    upstream.commit("3.1", BROKEN, "\x1b[2Jall is well")
    folder = tmp_path / "plain"
    folder.mkdir()
    names = [b"\x1b[31m.patch", b"\xff\xfe.patch", b"two\nlines.patch"]
    for name in names:
        (folder / os.fsdecode(name)).write_text(made(upstream))
    html = tmp_path / "map.html"
    repo = ("--patches", folder, "--repo", upstream.folder)
    said = patches("survival", *repo, "--range", "v1.0..main", "--html", html)
    said += patches("check", *repo, "--ref", "main", code=1)
    said += patches("import", folder, "--repo", upstream.folder)
    assert "\x1b" not in said
    assert "all is well" in said
    assert "all is well" in html.read_text()
    ours = tmp_path / "ours"
    patches("import", folder, "--out", ours, "--owner", "us", "--for", ">=1.0")
    patches("check", "--patches", ours)


@pytest.mark.parametrize(
    "name", ["apply", "check", "survival", "summary", "rebase", "import", "export", "runtime"]
)
def test_help_shows_examples_and_exit_codes(patches: Any, name: str) -> None:
    said = patches(name, "--help")
    assert f"npu-matrix patches {name}" in said
    assert "Exit codes:" in said
    assert "--json" in said


def test_our_own_bodies_are_canonical_and_in_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A day to look at a patch again is the nightly run's business: no test turns red by the calendar.
    monkeypatch.setattr("harness.cli.patches_command.today", lambda: dt.date(2026, 11, 20))
    for arguments in (["check"], ["export", "--check"]):
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(REPOSITORY), "patches", *arguments])
        assert stopped.value.code == 0, capsys.readouterr()
