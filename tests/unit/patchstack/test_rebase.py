from __future__ import annotations

import json
from pathlib import Path

import pytest
from histories import History
from memory_tree import MemoryTree

from harness.errors import InputError
from harness.outcome import Status
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.format.diff_writer import diff_files
from harness.patchstack.history.breakage import find_breakage
from harness.patchstack.history.forecast import forecast_stack
from harness.patchstack.rebase.rebase_kit import KIT, finish_kit
from harness.patchstack.rebase.rebase_stack import rebase_stack, rebased_files
from harness.patchstack.stacks.ablation import DEAD, NEEDED, UNKNOWN, ablate_statically, judge_ablation
from harness.sources.git.git_repository import Repository
from harness.sources.tree import TreeFile

PATH = "pkg/mod.py"
BASE = b"".join(b"line %d\n" % number for number in range(60))
FIXED = BASE.replace(b"line 30\n", b"line thirty, as our patch has it\n")
PATCH = read_patch("fix.patch", diff_files({PATH: (BASE, FIXED)}))


def make_history(folder: Path) -> tuple[Repository, History]:
    history = History(folder)
    history.commit({PATH: BASE}, "start")
    history.commit({PATH: BASE, "other": b""}, "elsewhere")
    far = BASE.replace(b"line 5\n", b"line 5\nline 5b\n")
    history.commit({PATH: far}, "far away")
    near = far.replace(b"line 32\n", b"line 32 and more\n")
    history.commit({PATH: near}, "in the context")
    history.commit({PATH: near.replace(b"line 50\n", b"")}, "far away again")
    history.commit({PATH: near.replace(b"line 30\n", b"line 30, upstream's\n")}, "in the same line")
    return Repository(folder), history


def test_the_commits_behind_a_conflict(tmp_path: Path) -> None:
    repository, _history = make_history(tmp_path)
    found = find_breakage(repository, PATCH, "main")
    assert found.last_good is not None
    assert found.broken_by is not None
    assert (found.last_good.subject, found.broken_by.subject) == ("far away", "in the context")
    assert [(touch.commit.subject, touch.hunk) for touch in found.touched_by] == [
        ("in the context", 1),
        ("in the same line", 1),
    ]


def test_a_removed_file_is_named(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.commit({PATH: BASE, "a": b""})
    history.commit({"a": b""}, "remove it")
    touches = find_breakage(Repository(tmp_path), PATCH, "main").touched_by
    assert [(touch.commit.subject, touch.hunk) for touch in touches] == [("remove it", 0)]


def test_a_patch_that_never_applied_has_no_last_good_commit(tmp_path: Path) -> None:
    History(tmp_path).commit({PATH: b"nothing like it\n"})
    found = find_breakage(Repository(tmp_path), PATCH, "main")
    assert (found.last_good, found.broken_by, found.touched_by) == (None, None, ())


def test_patches_that_apply_are_regenerated_for_the_new_base(tmp_path: Path) -> None:
    repository, history = make_history(tmp_path / "repo")
    shifted = rebase_stack(repository, [PATCH], history.ids[2], tmp_path / "out")[0]
    assert shifted.verdict.verdict is PatchVerdict.OFFSET
    merged = rebase_stack(repository, [PATCH], history.ids[3], tmp_path / "out")[0]
    assert merged.verdict.verdict is PatchVerdict.MERGED
    for result, commit in ((shifted, history.ids[2]), (merged, history.ids[3])):
        assert result.data is not None
        again = rebase_stack(repository, [read_patch("again", result.data)], commit, tmp_path / "out")[0]
        assert again.verdict.verdict is PatchVerdict.CLEAN
        assert again.data == result.data
    assert list(rebased_files([shifted])) == ["fix.patch"]
    assert not (tmp_path / "out").exists()


def test_a_conflict_gives_a_kit_that_can_be_finished(tmp_path: Path) -> None:
    repository, _history = make_history(tmp_path / "repo")
    result = rebase_stack(repository, [PATCH], "main", tmp_path / "out")[0]
    assert result.kit is not None
    facts = json.loads((result.kit / KIT).read_text(encoding="utf-8"))
    assert facts["broken_by"]["subject"] == "in the context"
    assert [touch["subject"] for touch in facts["touched_by"]] == ["in the context", "in the same line"]
    assert facts["continue"][:3] == ["npu-matrix", "patches", "rebase"]
    edited = result.kit / "tree" / PATH
    text = edited.read_bytes()
    assert text.count(b"<<<<<<< ") == text.count(b">>>>>>> fix.patch") == 1
    assert b"line thirty" in (result.kit / "wanted" / PATH).read_bytes()
    with pytest.raises(InputError, match="still has a conflict marker") as caught:
        finish_kit(result.kit)
    assert caught.value.problems[0].where is not None
    assert caught.value.problems[0].where.line == text[: text.index(b"<<<<<<<")].count(b"\n") + 1
    start, end = text.index(b"<<<<<<< "), text.index(b">>>>>>> fix.patch\n") + len(b">>>>>>> fix.patch\n")
    edited.write_bytes(text[:start] + b"line thirty, ours and upstream's\n" + text[end:])
    body = finish_kit(result.kit)
    again = rebase_stack(repository, [read_patch("done", body)], "main", tmp_path / "two")[0]
    assert again.verdict.verdict is PatchVerdict.CLEAN


def test_a_kit_without_the_original_file(tmp_path: Path) -> None:
    repository, _history = make_history(tmp_path / "repo")
    foreign = read_patch("far.patch", diff_files({PATH: (b"x\ny\nz\n", b"x\nw\nz\n")}))
    result = rebase_stack(repository, [foreign], "main", tmp_path / "out")[0]
    assert result.kit is not None
    assert result.breakage is not None
    assert result.breakage.last_good is None
    text = (result.kit / "tree" / PATH).read_bytes()
    assert b"=======\nx\nw\nz\n>>>>>>> far.patch\n" in text


def test_a_kit_does_not_overwrite_another(tmp_path: Path) -> None:
    repository, _history = make_history(tmp_path / "repo")
    rebase_stack(repository, [PATCH], "main", tmp_path / "out")
    with pytest.raises(InputError, match="already contains a rebase kit"):
        rebase_stack(repository, [PATCH], "main", tmp_path / "out")


@pytest.mark.parametrize("text", ["", "{}", '{"files": ["../../etc/passwd"]}', '{"files": 3}'])
def test_a_folder_that_is_no_kit_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / KIT).write_text(text)
    with pytest.raises(InputError, match=r"not a rebase kit|invalid path"):
        finish_kit(tmp_path)


def test_a_kit_without_changes_is_rejected(tmp_path: Path) -> None:
    repository, _history = make_history(tmp_path / "repo")
    kit = rebase_stack(repository, [PATCH], "main", tmp_path / "out")[0].kit
    assert kit is not None
    (kit / "tree" / PATH).write_bytes(repository.tree("main").read(PATH))
    with pytest.raises(InputError, match="has no changes"):
        finish_kit(kit)


def test_patches_that_are_upstream_are_skipped(tmp_path: Path) -> None:
    History(tmp_path / "repo").commit({PATH: FIXED})
    result = rebase_stack(Repository(tmp_path / "repo"), [PATCH], "main", tmp_path / "out")[0]
    assert result.verdict.verdict is PatchVerdict.ALREADY_UPSTREAM
    assert (result.data, result.kit) == (None, None)


def test_a_later_patch_is_applied_after_the_earlier_patches(tmp_path: Path) -> None:
    repository, history = make_history(tmp_path / "repo")
    second = FIXED.replace(b"line thirty, as our patch has it\n", b"line thirty, twice patched\n")
    later = read_patch("later.patch", diff_files({PATH: (FIXED, second)}))
    results = rebase_stack(repository, [PATCH, later], history.ids[2], tmp_path / "out")
    assert [result.verdict.verdict for result in results] == [PatchVerdict.OFFSET, PatchVerdict.OFFSET]


def test_a_forecast_names_the_commit_that_broke_a_patch(tmp_path: Path) -> None:
    repository, _history = make_history(tmp_path)
    good = read_patch("good.patch", diff_files({PATH: (BASE, BASE.replace(b"line 10\n", b"line ten\n"))}))
    found = forecast_stack("verl", repository, [PATCH, good], "main")
    assert not found.stack.applies
    assert "broken by" in found.to_text()
    assert "in the context" in found.to_text()
    data = json.loads(json.dumps(found.to_json()))
    assert data["broken_by"]["fix.patch"]["subject"] == "in the context"
    assert [verdict["verdict"] for verdict in data["verdicts"]] == ["conflict", "offset"]
    assert forecast_stack("verl", repository, [good], "main").stack.applies


def test_ablation_by_comparing_trees() -> None:
    second = FIXED.replace(b"line 31\n", b"line 31, on top\n")
    later = read_patch("later", diff_files({PATH: (FIXED, second)}))
    merged = read_patch("merged", diff_files({PATH: (BASE.replace(b"line 1\n", b"line one\n"), BASE)}))
    tree = MemoryTree(files={PATH: TreeFile(data=BASE)})
    found = {one.patch: one.result for one in ablate_statically(tree, [PATCH, later, merged])}
    assert found == {"fix.patch": NEEDED, "later": UNKNOWN, "merged": DEAD}
    clash = [PATCH, PATCH, read_patch("bad", b"?")]
    assert ablate_statically(tree, clash)[2].result == UNKNOWN


@pytest.mark.parametrize(
    ("full", "left_out", "result"),
    [
        ({"loss": Status.PASS}, {"loss": Status.FAIL}, NEEDED),
        ({"loss": Status.PASS, "grpo": Status.PASS}, {"loss": Status.PASS, "grpo": Status.PASS}, DEAD),
        ({"loss": Status.PASS, "grpo": Status.PASS}, {"loss": Status.NOT_RUN, "grpo": Status.PASS}, UNKNOWN),
        ({"loss": Status.PASS}, {"loss": Status.ERROR}, UNKNOWN),
        ({}, {}, UNKNOWN),
    ],
)
def test_ablation_by_comparing_statuses(
    full: dict[str, Status], left_out: dict[str, Status], result: str
) -> None:
    found = judge_ablation("verl/fix", ["loss:advantage/equal-rewards"], full, left_out, ["loss"])
    assert found.result == result
    assert found.reasons


def test_a_patch_without_guard_is_not_called_dead_by_checks_that_execute_nothing() -> None:
    same = {"resolve": Status.PASS, "api": Status.PASS}
    found = judge_ablation("p", [], same, same, ["loss"])
    assert found.result == UNKNOWN
    assert "execute none of its code" in found.reasons[0]
    same |= {"loss": Status.PASS}
    assert judge_ablation("p", [], same, same, ["loss"]).result == DEAD
    only_applies = {"patches": Status.PASS}
    assert judge_ablation("p", ["patches"], only_applies, only_applies, []).result == UNKNOWN
    # A guard of its own decides, also if it only reads files.
    assert judge_ablation("p", ["api"], same, same, []).result == DEAD


def test_a_guard_that_still_passes_is_named() -> None:
    full = {"loss": Status.PASS, "grpo": Status.PASS}
    found = judge_ablation("p", ["loss:x"], full, {"loss": Status.PASS, "grpo": Status.FAIL}, [])
    assert "its guard loss still passes" in found.reasons
