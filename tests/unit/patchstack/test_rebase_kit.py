"""A rebase kit is a work tree in which git can continue the merge."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gitcorpus import git_environment
from histories import History

from harness.errors import InputError
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.apply.patch_apply import Applied, apply_patch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.format.diff_parser import parse_patch
from harness.patchstack.format.diff_writer import diff_files
from harness.patchstack.rebase.rebase_kit import README, finish_kit
from harness.patchstack.rebase.rebase_stack import rebase_stack
from harness.sources.git.git_repository import Repository

PATH = "pkg/mod.py"
OTHER = "pkg/other.py"
BASE = b"".join(b"line %d\r\n" % number for number in range(60))
FIXED = BASE.replace(b"line 30\r\n", b"line thirty\r\n")
UPSTREAM = BASE.replace(b"line 30\r\n", b"line 30, upstream\r\n")
PATCH = read_patch("fix.patch", diff_files({PATH: (BASE, FIXED)}))
ATTRIBUTES = b"* text=auto eol=lf\n"


def git(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        ["git", *argv], cwd=folder, env=git_environment(), check=True, capture_output=True, text=True
    )
    return done.stdout


def kit_of(tmp_path: Path, *more: bytes) -> tuple[Path, Repository]:
    """A kit for a conflict in a CRLF file, after patches that apply."""
    history = History(tmp_path / "repo")
    files = {OTHER: b"a\nb\nc\n", ".gitattributes": ATTRIBUTES}
    history.commit({PATH: BASE, **files}, "start")
    history.commit({PATH: UPSTREAM, **files}, "the same <line>\x1b[2J")
    repository = Repository(tmp_path / "repo")
    earlier = [read_patch(f"{number}.patch", text) for number, text in enumerate(more)]
    results = rebase_stack(repository, [*earlier, PATCH], "main", tmp_path / "out")
    assert [result.verdict.verdict for result in results[:-1]] == [PatchVerdict.CLEAN] * len(more)
    kit = results[-1].kit
    assert kit
    return kit, repository


def test_git_shows_an_unmerged_file_and_the_history(tmp_path: Path) -> None:
    kit, repository = kit_of(tmp_path)
    tree = kit / "tree"
    assert git(tree, "status", "--porcelain") == f"UU {PATH}\n"
    assert git(tree, "rev-parse", "HEAD").strip() == repository.commit("main")
    assert git(tree, "log", "--format=%s", "-1", "HEAD~1").strip() == "start"
    for stage, text in ((1, BASE), (2, UPSTREAM), (3, FIXED)):
        assert git(tree, "show", f":{stage}:{PATH}").encode() == text.replace(b"\r\n", b"\n")
    assert git(tree, "rev-parse", "--abbrev-ref", "HEAD").strip() == "rebase/fix"
    assert not (tmp_path / "repo" / "worktrees").exists()


def test_a_patch_with_other_line_endings_is_merged(tmp_path: Path) -> None:
    """As in the plugin, which has LF patches for vllm-ascend's CRLF files."""
    history = History(tmp_path / "repo")
    history.commit({PATH: BASE}, "start")
    history.commit({PATH: UPSTREAM}, "the same line")
    lf = read_patch("lf.patch", diff_files({PATH: (BASE.replace(b"\r", b""), FIXED.replace(b"\r", b""))}))
    [result] = rebase_stack(Repository(tmp_path / "repo"), [lf], "main", tmp_path / "out")
    assert result.verdict.verdict is PatchVerdict.CONFLICT
    assert result.breakage
    assert result.breakage.broken_by
    assert result.breakage.broken_by.subject == "the same line"
    assert [touch.hunk for touch in result.breakage.touched_by] == [1]
    assert result.kit
    assert git(result.kit / "tree", "status", "--porcelain") == f"UU {PATH}\n"
    text = (result.kit / "tree" / PATH).read_bytes()
    assert b"line 30, upstream\r\n=======\nline thirty\r\n>>>>>>> lf.patch\n" in text
    assert (result.kit / "wanted" / PATH).read_bytes() == FIXED


def test_the_readme_explains_the_conflict_and_the_next_command(tmp_path: Path) -> None:
    kit, _repository = kit_of(tmp_path)
    text = (kit / README).read_text()
    assert "the same <line>?[2J: pkg/mod.py, hunk 1" in text
    assert f"npu-matrix patches rebase --continue {kit}" in text


def test_the_finished_patch_has_the_line_endings_of_the_file(tmp_path: Path) -> None:
    kit, repository = kit_of(tmp_path)
    git(kit / "tree", "checkout", "--theirs", PATH)
    assert (kit / "tree" / PATH).read_bytes() == FIXED
    git(kit / "tree", "add", PATH)
    made = parse_patch(finish_kit(kit))
    done = apply_patch(made, repository.tree("main"))
    assert isinstance(done, Applied)
    after = done.files[PATH]
    assert after
    assert after.data == FIXED


def test_earlier_patches_are_a_commit_and_not_in_the_result(tmp_path: Path) -> None:
    first = diff_files({OTHER: (b"a\nb\nc\n", b"a\nB\nc\n")})
    new = diff_files({"pkg/new.py": (None, b"new\n")})
    gone = diff_files({"pkg/new.py": (b"new\n", None)})
    kit, _repository = kit_of(tmp_path, first, new, gone)
    tree = kit / "tree"
    assert git(tree, "log", "--format=%s", "-2").splitlines() == [
        "Apply the patches before this one",
        "the same <line>?[2J".replace("?", "\x1b"),
    ]
    assert (tree / OTHER).read_bytes() == b"a\nB\nc\n"
    assert not (tree / "pkg" / "new.py").exists()
    (tree / PATH).write_bytes(FIXED)
    assert set(parse_patch(finish_kit(kit)).paths) == {PATH}


def test_a_change_of_another_file_is_part_of_the_patch(tmp_path: Path) -> None:
    kit, repository = kit_of(tmp_path)
    (kit / "tree" / PATH).write_bytes(UPSTREAM)
    (kit / "tree" / "pkg" / "moved.py").write_bytes(b"here now\n")
    (kit / "tree" / OTHER).unlink()
    made = parse_patch(finish_kit(kit))
    done = apply_patch(made, repository.tree("main"))
    assert isinstance(done, Applied)
    assert {path: file.data if file else None for path, file in done.files.items()} == {
        "pkg/moved.py": b"here now\n",
        OTHER: None,
    }


def test_a_remaining_conflict_marker_is_found(tmp_path: Path) -> None:
    kit, _repository = kit_of(tmp_path)
    (kit / "tree" / PATH).write_bytes(FIXED)
    (kit / "tree" / OTHER).write_bytes(b"a\n<<<<<<< x\n")
    with pytest.raises(InputError, match="still has a conflict marker") as caught:
        finish_kit(kit)
    assert "other.py:2" in str(caught.value.problems[0])


def test_a_kit_without_its_work_tree_is_rejected(tmp_path: Path) -> None:
    kit, _repository = kit_of(tmp_path)
    (kit / "tree" / ".git").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="not a git work tree"):
        finish_kit(kit)


def test_a_merge_with_conflicts_is_neither_named_nor_accepted_as_a_patch(tmp_path: Path) -> None:
    kit, _repository = kit_of(tmp_path)
    patches = {file.name for file in kit.iterdir() if file.suffix in {".patch", ".diff"}}
    assert patches == {"original.patch"}
    merge = kit / "conflicts-DO-NOT-APPLY.txt"
    assert b"<<<<<<<" in merge.read_bytes()
    for options in ([], ["--unidiff-zero"], ["--recount"], ["--3way"]):
        done = subprocess.run(
            ["git", "apply", "--check", *options, str(merge)],
            cwd=kit / "tree",
            capture_output=True,
            check=False,
        )
        assert done.returncode != 0
    assert "conflicts-DO-NOT-APPLY.txt" in (kit / "KIT.md").read_text()
