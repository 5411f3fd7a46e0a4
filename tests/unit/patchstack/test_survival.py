from __future__ import annotations

import json
import random
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from gitcorpus import NAME, GitBox, content, edited, git_environment, random_lines
from histories import History
from memory_tree import MemoryTree
from missing_programs import required_program

from harness.errors import InfrastructureError, InputError
from harness.patchstack.apply.classify import LoadedPatch, classify, read_patch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.format.diff_writer import diff_files
from harness.patchstack.history.heatmap import MARKS, heatmap_page, heatmap_svg, heatmap_text
from harness.patchstack.history.survival import LEGEND, survival_of_commits, survival_of_releases, verdicts_at
from harness.patchstack.stacks.patch_selection import VariantGroup, collect_patches
from harness.sources.git.commit_history import commits_in
from harness.sources.git.git_repository import Repository
from harness.sources.tree import TreeFile

BASE = b"".join(b"line %d\n" % number for number in range(40))
FIXED = BASE.replace(b"line 20\n", b"line twenty, as our patch has it\n")
BROKEN = BASE.replace(b"line 20\n", b"line 20, upstream\n")
PATCH = read_patch("fix.patch", diff_files({"pkg/mod.py": (BASE, FIXED)}))


def make_history(folder: Path) -> tuple[History, Repository]:
    """Seven commits: the patch applies, applies shifted, is broken, is fixed, is not affected, is upstream, is gone."""
    history = History(folder)
    other = {"other.py": b"x\n"}
    history.commit({"pkg/mod.py": BASE})
    history.commit({"pkg/mod.py": b"new first line\n" + BASE}, "shift the lines")
    history.commit({"pkg/mod.py": BROKEN}, "break <it> & more")
    history.commit({"pkg/mod.py": BASE}, "mend it")
    history.commit({"pkg/mod.py": BASE, **other}, "elsewhere")
    history.commit({"pkg/mod.py": FIXED, **other}, "take it")
    history.commit(other, "remove the file")
    return history, Repository(folder)


def test_the_history_of_a_patch(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    found = survival_of_commits(repository, f"{history.ids[0]}..main", [PATCH])
    assert [commit.id for commit in found.commits] == history.ids[:0:-1]
    patch = found.patches[0]
    assert patch.verdicts[::-1] == (
        PatchVerdict.OFFSET,
        PatchVerdict.CONFLICT,
        PatchVerdict.CLEAN,
        PatchVerdict.CLEAN,
        PatchVerdict.ALREADY_UPSTREAM,
        PatchVerdict.MISSING_TARGET,
    )
    assert [turn.commit.subject for turn in patch.breaks] == ["break <it> & more", "take it"]
    assert [turn.commit.subject for turn in patch.fixes] == ["mend it"]
    assert patch.breaks[0].commit.date == "2023-11-14T23:16:20+01:00"
    assert patch.newest.verdict is PatchVerdict.MISSING_TARGET
    assert patch.newest.reasons


def test_variants_of_a_patch_are_one_row_with_the_best_verdict(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    second = read_patch("second.patch", diff_files({"pkg/mod.py": (BROKEN, FIXED)}))
    [found] = survival_of_commits(
        repository,
        f"{history.ids[0]}..main",
        [PATCH, second],
        logical=[VariantGroup(name="up/fix", variants=((0, "<2"), (1, ">=2")))],
    ).patches
    assert found.patch == "up/fix"
    assert [variant.file for variant in found.variants] == ["fix.patch", "second.patch"]
    assert [variant.versions for variant in found.variants] == ["<2", ">=2"]
    assert found.variants[1].verdicts[::-1][:3] == (
        PatchVerdict.CONFLICT,
        PatchVerdict.CLEAN,
        PatchVerdict.CONFLICT,
    )
    assert found.verdicts[::-1] == (
        PatchVerdict.OFFSET,
        PatchVerdict.CLEAN,
        PatchVerdict.CLEAN,
        PatchVerdict.CLEAN,
        PatchVerdict.ALREADY_UPSTREAM,
        PatchVerdict.MISSING_TARGET,
    )
    assert [turn.commit.subject for turn in found.breaks] == ["take it"]
    assert found.fixes == ()


def test_the_oldest_commit_can_break_a_patch(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    found = survival_of_commits(repository, f"{history.ids[1]}..{history.ids[2]}", [PATCH])
    assert found.patches[0].breaks[0].commit.id == history.ids[2]


def test_equal_contents_are_classified_once(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    for _ in range(20):
        history.commit({"other.py": b"y\n" * len(history.ids)})
    found = survival_of_commits(repository, f"{history.ids[0]}..main", [PATCH])
    assert found.pairs == 26
    assert found.distinct == 5


def test_json_has_one_legend_index_for_each_commit(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    found = json.loads(
        json.dumps(survival_of_commits(repository, f"{history.ids[0]}..main", [PATCH]).to_json())
    )
    assert found["schema"]["name"] == "npu-matrix/survival"
    assert [commit["commit"] for commit in found["commits"]] == history.ids[:0:-1]
    verdicts = [found["legend"][index] for index in found["patches"][0]["verdicts"]]
    assert verdicts[0] == "missing-target"
    assert len(verdicts) == len(found["commits"])
    assert found["patches"][0]["first_break"]["commit"] == history.ids[2]
    assert found["legend"] == list(LEGEND)


def test_a_merge_is_compared_with_its_first_parent(tmp_path: Path) -> None:
    history = History(tmp_path)
    first = history.commit({"pkg/mod.py": BASE})
    side = history.commit({"pkg/mod.py": BROKEN}, "on a branch", [first])
    main = history.commit({"pkg/mod.py": BASE, "a": b""}, "on main", [first])
    merge = history.commit({"pkg/mod.py": BROKEN, "a": b""}, "merge the branch", [main, side])
    found = survival_of_commits(Repository(tmp_path), f"{first}..{merge}", [PATCH])
    assert {turn.commit.subject for turn in found.patches[0].breaks} == {"on a branch", "merge the branch"}


def test_releases_without_a_repository() -> None:
    releases = [
        ("3.0", MemoryTree(files={"pkg/mod.py": TreeFile(data=BROKEN)})),
        ("2.0", MemoryTree(files={"pkg/mod.py": TreeFile(data=b"first\n" + BASE)})),
        ("1.0", MemoryTree(files={"pkg/mod.py": TreeFile(data=BASE)})),
    ]
    found = survival_of_releases("verl", releases, [PATCH])
    patch = found.patches[0]
    assert patch.verdicts == (PatchVerdict.CONFLICT, PatchVerdict.OFFSET, PatchVerdict.CLEAN)
    assert [turn.commit.id for turn in patch.breaks] == ["3.0"]
    assert "3.0" in heatmap_page(found)
    assert heatmap_text(found).splitlines()[0].endswith(".oX")


def test_commits_equal_those_of_git_rev_list(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    revisions = f"{history.ids[1]}..main"
    listed = subprocess.run(
        [required_program("git", "git"), "rev-list", revisions],
        cwd=tmp_path,
        env=git_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [commit.id for commit in commits_in(repository, revisions)] == listed.stdout.split()


@pytest.mark.parametrize("revisions", ["main..main", "none..main", "main..none", "a...b", "--all", ".."])
def test_an_invalid_range_is_an_input_error(tmp_path: Path, revisions: str) -> None:
    _history, repository = make_history(tmp_path)
    with pytest.raises(InputError):
        survival_of_commits(repository, revisions, [PATCH])


def test_a_missing_object_differs_from_a_missing_file(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    store = repository.objects
    blob = str(store[history.ids[2]].tree["pkg/mod.py"].id)
    (tmp_path / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(InfrastructureError, match="not in this repository"):
        survival_of_commits(Repository(tmp_path), f"{history.ids[0]}..main", [PATCH])


@pytest.mark.parametrize("seed", range(12))
def test_every_verdict_agrees_with_git(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history, box = History(tmp_path / "repo"), GitBox(tmp_path / "box")
    lines = random_lines(rng, 30, alike=seed % 2 == 0)
    contents = []
    for _ in range(12):
        lines = edited(rng, lines, 1) if rng.random() < 0.6 else lines
        contents.append(content(random.Random(1), lines, newline="\n"))
        history.commit({NAME: contents[-1], "n": b"%d" % len(contents)})
    patches: list[LoadedPatch] = []
    raw = []
    for number in range(4):
        old = rng.choice(contents)
        new = content(random.Random(1), edited(rng, old.decode().split("\n")[:-1], 2), newline="\n")
        if new != old:
            raw.append(diff_files({NAME: (old, new)}))
            patches.append(read_patch(str(number), raw[-1]))
    found = survival_of_commits(Repository(tmp_path / "repo"), f"{history.ids[0]}..main", patches)
    for patch, data in zip(found.patches, raw, strict=True):
        for verdict, text in zip(patch.verdicts, contents[:0:-1], strict=True):
            tree = MemoryTree(files={NAME: TreeFile(data=text)})
            assert verdict.accepted_by_git == box.apply(tree, data).accepts, patch.patch


def test_verdicts_equal_those_of_the_full_tree(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    for commit in history.ids:
        tree = repository.tree(commit)
        assert verdicts_at(repository, commit, [PATCH])[0] == classify(PATCH, tree, tree)


class Checker(HTMLParser):
    """Checks that a page closes every element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_heatmap_formats(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    nasty = read_patch("<script>alert(1)</script>.patch", diff_files({"pkg/mod.py": (BASE, FIXED)}))
    found = survival_of_commits(repository, f"{history.ids[0]}..main", [PATCH, nasty])
    page = heatmap_page(found, title="<b>")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert "script" not in checker.tags
    assert "b" not in checker.tags
    assert "break &lt;it&gt; &amp; more" in page
    assert heatmap_svg(found).count("<rect") == 10
    text = heatmap_text(found, width=80).splitlines()
    assert text[0].endswith("oX..u-")
    assert "u already-upstream" in text[3]


def test_a_narrow_terminal_shows_the_worst_of_each_column(tmp_path: Path) -> None:
    history, repository = make_history(tmp_path)
    for _ in range(94):
        history.commit({"pkg/mod.py": BASE, "n": b"%d" % len(history.ids)})
    found = survival_of_commits(repository, f"{history.ids[0]}..main", [PATCH])
    line = heatmap_text(found, width=10 + 8 + len(PATCH.name)).splitlines()[0]
    assert line.split("% ")[1] == "X........."


def test_every_verdict_has_its_own_mark() -> None:
    assert set(MARKS) == set(PatchVerdict)
    assert len({letter for letter, _colour in MARKS.values()}) == len(PatchVerdict)
    assert len({colour for _letter, colour in MARKS.values()}) == len(PatchVerdict)


def test_patches_of_any_folder(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "b" / "deep" / "x.patch").write_bytes(b"garbage")
    (tmp_path / "a.diff").write_bytes(diff_files({"m": (b"a\n", b"b\n")}))
    (tmp_path / "README.md").write_text("no patch")
    found = collect_patches(tmp_path)
    assert [patch.name for patch in found] == ["a.diff", "b/deep/x.patch"]
    assert found[1].error is not None
    assert collect_patches(tmp_path / "a.diff")[0].name == "a.diff"


@pytest.mark.parametrize("name", ["", "none"])
def test_a_folder_without_patches_is_an_input_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no patches"):
        collect_patches(tmp_path / name)
