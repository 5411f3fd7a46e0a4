from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import pytest
from memory_tree import MemoryTree

from harness.errors import InputError, Problem
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.format.diff_writer import diff_files
from harness.patchstack.stacks.change_summary import summarise_changes
from harness.patchstack.stacks.patch_stack import load_stack
from harness.patchstack.stacks.stack_export import canonical, export_stack, write_imported
from harness.patchstack.stacks.stack_import import PLAIN, PLUGIN, QUILT, RECIPE, ImportedStack, import_patches
from harness.patchstack.stacks.stack_lint import lint_stack
from harness.patchstack.stacks.summary_claims import disagreements, read_claims
from harness.sources.tree import TreeFile

OLD = b"class A:\n    def f(self):\n        return 1\n\n\ndef g():\n    return 2\n"
NEW = b"class A:\n    def f(self):\n        return 10\n\n    def h(self):\n        return 3\n\n\ndef g():\n    return 20\n"
PATCH = diff_files({"pkg/mod.py": (OLD, NEW)})
COMMIT = "d62da4950573d7a4b7ef2362337952e7ab59e78d"
SUMMARY = f"""\
patches:
  - repo: verl
    current_rev: {COMMIT}
    versions:
    - rev: {COMMIT}
      dir: d62da4950
      files:
        - name: other
      files:
        - name: mod
          diff:
            class_changes:
              - action: updated
                name: A
                changes:
                  - action: replaced
                    kind: method
                    name: f
                  - action: replaced
                    kind: method
                    name: h
            module_changes:
              - action: replaced
                kind: method
                name: g
        - name: absent
"""


def plugin(root: Path, **more: bytes) -> Path:
    folder = root / "verl_npu" / "verl_npu"
    here = folder / "patch" / "verl" / "d62da4950"
    here.mkdir(parents=True)
    for name, data in {"mod": PATCH, **more}.items():
        (here / f"{name}.patch").write_bytes(data)
    (folder / "patch_summary").mkdir()
    (folder / "patch_summary" / "patch_summary.yaml").write_text(SUMMARY)
    return root


def problem_texts(imported: ImportedStack) -> list[str]:
    return [f"{problem.what} @{problem.where.line if problem.where else 0}" for problem in imported.problems]


def test_a_checkout_of_the_plugin(tmp_path: Path) -> None:
    found = import_patches(plugin(tmp_path, adaptor=PATCH))
    assert found.layout == PLUGIN
    assert [(patch.upstream, patch.pin, patch.name) for patch in found.patches] == [
        ("verl", COMMIT, "verl/d62da4950/adaptor.patch"),
        ("verl", COMMIT, "verl/d62da4950/mod.patch"),
    ]
    problems = problem_texts(found)
    assert "the key 'files' occurs twice @9" in problems
    assert any("adaptor.patch is applied but not in the summary" in problem for problem in problems)
    assert "verl/d62da4950/absent.patch is in the summary but does not exist @26" in problems


def test_differences_between_summary_and_code_are_reported(tmp_path: Path) -> None:
    patch = import_patches(plugin(tmp_path)).patches[0]
    tree = MemoryTree(files={"pkg/mod.py": TreeFile(data=OLD)})
    summary = summarise_changes("verl", [read_patch(patch.name, patch.data)], tree)
    assert patch.claims is not None
    found = disagreements(patch.claims, summary.patches[0], Path("summary.yaml"))
    assert [str(problem).split(": ", 1)[1] for problem in found] == [
        "verl/d62da4950/mod.patch: the summary says A.h replaced, but the code does not have this change",
        "verl/d62da4950/mod.patch: the code has A.h added, but the summary does not",
    ]
    assert found[0].where is not None
    assert found[0].where.line == 19


def test_claims_of_a_patch_that_does_not_apply_cannot_be_checked(tmp_path: Path) -> None:
    patch = import_patches(plugin(tmp_path)).patches[0]
    summary = summarise_changes("verl", [read_patch(patch.name, patch.data)], MemoryTree(files={}))
    assert patch.claims is not None
    assert "cannot be checked" in disagreements(patch.claims, summary.patches[0], Path("y"))[0].what


@pytest.mark.parametrize(
    "text", ["", "[", "patches: 1", "patches: [1, {repo: x, versions: 3}]", "- a", "&a [*a]"]
)
def test_any_summary_is_read_or_reported(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    claims, problems = read_claims(file)
    assert claims == []
    assert all(isinstance(problem, Problem) for problem in problems)


def test_recipes_pin_their_upstreams(tmp_path: Path) -> None:
    for path in (
        "opd/patch/verl_opd.patch",
        "grpo/lora/patches/vllm-ascend/0001-x.patch",
        "free/patch/vllm.patch",
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_bytes(PATCH)
    (tmp_path / "opd" / "REQUIRED_VERL.txt").write_text(
        "# c\nMODE=pinned_tag\nTAG=v0.8.0\nCOMMIT=v0.8.0\nnonsense\n"
    )
    (tmp_path / "grpo" / "lora" / "REQUIRED_VERL.txt").write_text(
        "MODE=pinned_commit\nCOMMIT=bc72e38\nVLLM_ASCEND_COMMIT=a43c8cc\nMODE=x\n"
    )
    found = import_patches(tmp_path)
    assert found.layout == RECIPE
    assert {(patch.upstream, patch.pin) for patch in found.patches} == {
        ("verl", "v0.8.0"),
        ("vllm-ascend", "a43c8cc"),
        ("vllm", ""),
    }
    problems = problem_texts(found)
    assert "this line does not have the form NAME=value @5" in problems
    assert "MODE is set twice @4" in problems
    assert any("the vllm commit" in problem for problem in problems)


def test_a_quilt_series_gives_the_order_and_problems(tmp_path: Path) -> None:
    for name in ("b.patch", "a.patch", "c.patch"):
        (tmp_path / name).write_bytes(PATCH)
    (tmp_path / "series").write_text("# order\nb.patch\na.patch -R\n../x.patch\nnone.patch\n")
    found = import_patches(tmp_path)
    assert found.layout == QUILT
    assert [patch.name for patch in found.patches] == ["b.patch", "a.patch"]
    assert problem_texts(found) == [
        "a.patch has the options -R @3",
        "../x.patch is outside the folder @4",
        "there is no none.patch @5",
        "c.patch is not in the series @0",
    ]


def test_a_plain_folder_with_corrupt_files(tmp_path: Path) -> None:
    (tmp_path / "good.patch").write_bytes(PATCH)
    (tmp_path / "cut.patch").write_bytes(PATCH[:-1])
    (tmp_path / "bare.diff").write_bytes(b"--- a/x\n+++ b/x\n@@ -3 +3 @@\n-a\n+b\n")
    found = import_patches(tmp_path)
    assert found.layout == PLAIN
    assert [patch.name for patch in found.patches] == ["bare.diff", "cut.patch", "good.patch"]
    assert any("cut off" in problem for problem in problem_texts(found))
    assert any("no context" in problem for problem in problem_texts(found))


@pytest.mark.parametrize("layout", ["", PLUGIN, QUILT, "svn"])
def test_a_folder_without_patches_is_an_input_error(tmp_path: Path, layout: str) -> None:
    with pytest.raises(InputError):
        import_patches(tmp_path, layout)
    with pytest.raises(InputError):
        import_patches(tmp_path / "none", layout)


def test_an_imported_stack_passes_our_own_lint(tmp_path: Path) -> None:
    imported = import_patches(plugin(tmp_path / "theirs"))
    target = tmp_path / "ours" / "patches"
    write_imported(imported, target, {COMMIT: "==0.6.1"}, "us", date(2027, 1, 1))
    assert lint_stack(target, "verl", ["0.6.0", "0.6.1", "0.7.0"]) == []
    assert [patch.data for patch in load_stack(target, "verl").select("0.6.1")] == [canonical(PATCH)]


BINARY = (
    b"diff --git a/x.bin b/x.bin\nnew file mode 100644\nindex 0000000..f76dd23\nGIT binary patch\nliteral 1\n"
    b"IcmZPo000310RR91\n\nliteral 0\nHcmV?d00001\n\n"
)


def test_no_patch_is_left_out_when_a_stack_is_written(tmp_path: Path) -> None:
    """A corrupt patch is written as it is, so that every later check counts it; a binary one with its data."""
    imported = import_patches(plugin(tmp_path / "theirs", broken=PATCH[:-30], picture=BINARY))
    assert any("cut off" in problem or "too early" in problem for problem in problem_texts(imported))
    target = tmp_path / "ours" / "patches"
    write_imported(imported, target, {COMMIT: "==0.6.1"}, "us", date(2027, 1, 1))
    assert {patch.id: patch.data for patch in load_stack(target, "verl").select("0.6.1")} == {
        "verl/mod": canonical(PATCH),
        "verl/broken": PATCH[:-30] + b"\n",
        "verl/picture": BINARY,
    }
    [problem, *_more] = lint_stack(target, "verl", ["0.6.1"])
    assert "broken" in str(problem.where)


@pytest.mark.parametrize("layout", [PLUGIN, QUILT, PLAIN, RECIPE])
def test_patch_files_that_are_not_imported_are_named(layout: str, tmp_path: Path) -> None:
    folder, top = tmp_path / "theirs", tmp_path / "theirs"
    if layout == PLUGIN:
        plugin(top)
        folder = top / "verl_npu" / "verl_npu" / "patch" / "verl"
        (folder / "too-high.patch").write_bytes(PATCH)
    else:
        folder.mkdir()
        (folder / "one.patch").write_bytes(PATCH)
    if layout == QUILT:
        (folder / "series").write_text("one.patch\n")
        (folder / "two.patch").write_bytes(PATCH)
    (tmp_path / "elsewhere.patch").write_bytes(PATCH)
    (folder / "linked.patch").symlink_to(tmp_path / "elsewhere.patch")
    (folder / "LOUD.PATCH").write_bytes(PATCH)
    others = ("fix.patch.txt", "mail.mbox", "0001-without-suffix")
    for name in others:
        (folder / name).write_bytes(b"From: somebody\n\n" + PATCH)
    (folder / "packed.diff.gz").write_bytes(gzip.compress(PATCH))
    (folder / "README.md").write_bytes(PATCH)
    (folder / "notes.txt").write_text("--- a heading\n+++ not a patch\n")
    found = import_patches(top, layout)
    texts = " ".join(problem_texts(found))
    for name in (*others, "packed.diff.gz"):
        assert name in texts
    assert "README.md" not in texts
    assert "notes.txt" not in texts
    expected = {PLUGIN: ["too-high.patch"], QUILT: ["two.patch"]}.get(layout, [])
    for name in (*expected, "linked.patch", "LOUD.PATCH"):
        assert name in texts


def test_a_folder_whose_patches_are_not_where_the_layout_has_them_says_so(tmp_path: Path) -> None:
    (tmp_path / "fix").mkdir()
    (tmp_path / "fix" / "all.patch").write_bytes(PATCH)
    (tmp_path / "series").write_text("fix\n")
    with pytest.raises(InputError, match="no patches laid out as quilt") as caught:
        import_patches(tmp_path)
    assert "there is no fix; all.patch is not in the series" in str(caught.value)


def test_a_pin_without_versions_is_an_input_error(tmp_path: Path) -> None:
    imported = import_patches(plugin(tmp_path / "theirs"))
    with pytest.raises(InputError, match="the version range of d62da4950"):
        write_imported(imported, tmp_path / "patches", {}, "us", date(2027, 1, 1))
    assert not (tmp_path / "patches").exists()


def test_export_is_the_same_bytes_every_time_and_can_be_imported_again(tmp_path: Path) -> None:
    imported = import_patches(plugin(tmp_path / "theirs"))
    write_imported(imported, tmp_path / "patches", {COMMIT: "==0.6.1"}, "us", date(2027, 1, 1))
    stack = load_stack(tmp_path / "patches", "verl")
    first = export_stack(stack, "0.6.1", tmp_path / "one")
    second = export_stack(stack, "0.6.1", tmp_path / "two")
    assert [file.name for file in first] == ["0001-mod.patch", "series"]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    again = import_patches(tmp_path / "one")
    assert again.layout == QUILT
    assert again.problems == ()
    assert canonical(again.patches[0].data) == canonical(PATCH)
    with pytest.raises(InputError, match="not empty"):
        export_stack(stack, "0.6.1", tmp_path / "one")


QUOTED = (
    b'diff --git "a/caf\\303\\251 x" "b/caf\\303\\251 x"\nnew file mode 100755\n--- /dev/null\n'
    b'+++ "b/caf\\303\\251 x"\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n'
)


@pytest.mark.parametrize(
    "data",
    [
        PATCH,
        b"junk above\n" + PATCH + b"-- \n2.39\n",
        QUOTED,
        b"diff --git a/a b/b\nsimilarity index 100%\nrename from a\nrename to b\n",
        b"diff --git a/a b/a\nold mode 100644\nnew mode 100755\n",
        b"diff --git a/a b/a\ndeleted file mode 100644\n--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
    ],
    ids=["plain", "mail", "quoted", "rename", "mode", "deletion"],
)
def test_the_canonical_form_is_equivalent_and_stable(data: bytes) -> None:
    once = canonical(data)
    assert canonical(once) == once
    before, after = read_patch("p", data).patch, read_patch("p", once).patch
    assert before is not None
    assert after is not None
    assert [(one.old_path, one.new_path, one.change, one.new_mode) for one in before.files] == [
        (one.old_path, one.new_path, one.change, one.new_mode) for one in after.files
    ]
    assert [hunk.lines for one in before.files for hunk in one.hunks] == [
        hunk.lines for one in after.files for hunk in one.hunks
    ]


def test_corrupt_text_has_no_canonical_form() -> None:
    with pytest.raises(InputError, match="not a well-formed patch"):
        canonical(b"garbage")
