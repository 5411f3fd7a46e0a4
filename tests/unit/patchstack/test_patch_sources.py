"""Patches where they lie: which cells have them, and the reason for each file that no cell has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.matrix.reading.load_matrix import parse_matrix
from harness.patchstack.format.diff_parser import parse_patch
from harness.patchstack.stacks.patch_sources import PatchSources
from harness.patchstack.stacks.patch_stack import SelectedPatch
from harness.plan.change.revision import extract_revision, resolve_revision

PATCH = (
    "diff --git a/verl/x.py b/verl/x.py\n--- a/verl/x.py\n+++ b/verl/x.py\n@@ -1 +1,2 @@\n a = 1\n+b = {}\n"
)
COMMIT = "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e"
MATRIX = """\
format: 1
axes:
  verl: {{title: v, scheme: pep440, source: s, package: verl, tag: "v{{version}}"}}
  megatron_core: {{title: m, scheme: pep440, source: s, package: megatron-core, tag: "core_v{{version}}"}}
profiles:
  default: {{title: t, select: [{{product: {{verl: [0.7.1, 0.6.0.dev0@{commit}], megatron_core: [0.12.1]}}}}]}}
patches:
{patches}
"""


def sources(root: Path, patches: str, shipped: Path | None = None) -> PatchSources:
    matrix = parse_matrix(MATRIX.format(commit=COMMIT, patches=patches), root / "matrix.yaml")
    return PatchSources(root=root, shipped=shipped, places=matrix.patch_places, axes=matrix.axes)


def names(found: tuple[SelectedPatch, ...]) -> list[str]:
    return [patch.id for patch in found]


def write(root: Path, *files: str) -> None:
    for number, name in enumerate(files):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(PATCH.format(number))


def reasons(found: PatchSources) -> dict[str, str]:
    cells = [{"verl": verl, "megatron_core": "0.12.1"} for verl in ("0.7.1", f"0.6.0.dev0@{COMMIT}")]
    return {one.file: one.reason for one in found.unused(cells)}


def test_folders_by_commit_go_to_the_cells_with_this_commit(tmp_path: Path) -> None:
    write(
        tmp_path,
        "verl_npu/patch/verl/796871d7d/a.patch",
        "verl_npu/patch/verl/0123456/old.patch",
        "verl_npu/patch/megatron-core/796871d7d/m.patch",
        "verl_npu/patch/megatron-bridge/7cabf71/b.patch",
        "verl_npu/patch/verl/stray.patch",
    )
    found = sources(tmp_path, "  - {folder: verl_npu}")
    assert names(found.select("verl", {"verl": f"0.6.0.dev0@{COMMIT}"})) == ["verl/796871d7d/a"]
    assert names(found.select("verl", {"verl": "0.7.1"})) == []
    assert reasons(found) == {
        "verl_npu/patch/verl/0123456/old.patch": "it is for commit 0123456 of verl, which no cell has",
        "verl_npu/patch/megatron-core/796871d7d/m.patch": (
            "it is for commit 796871d7d of megatron_core, which no cell has"
        ),
        "verl_npu/patch/megatron-bridge/7cabf71/b.patch": "matrix.yaml has no axis for 'megatron-bridge'",
        "verl_npu/patch/verl/stray.patch": (
            "stray.patch is a patch file that is not imported: it is not where this layout has patches"
        ),
    }


def test_a_quilt_series_gives_the_order_and_what_it_does_not_name_is_a_finding(tmp_path: Path) -> None:
    write(tmp_path, "debian/patches/b.patch", "debian/patches/a.patch", "debian/patches/c.patch")
    (tmp_path / "debian/patches/series").write_text("b.patch\na.patch\n")
    found = sources(tmp_path, "  - {folder: debian/patches, upstream: verl, versions: '>=0.7'}")
    assert names(found.select("verl", {"verl": "0.7.1"})) == ["verl/b", "verl/a"]
    assert names(found.select("verl", {"verl": "0.6.1"})) == []
    assert list(reasons(found)) == ["debian/patches/c.patch"]
    assert "series" in reasons(found)["debian/patches/c.patch"]


def test_folders_of_git_format_patch_are_for_the_version_in_their_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        "p/v0.7.1/0002-b.patch",
        "p/v0.7.1/0001-a.patch",
        "p/0.5.0/0001-c.patch",
        "p/all/0001-d.patch",
    )
    found = sources(tmp_path, "  - {folder: p, upstream: verl}")
    assert names(found.select("verl", {"verl": "0.7.1"})) == [
        "verl/all/0001-d",
        "verl/v0.7.1/0001-a",
        "verl/v0.7.1/0002-b",
    ]
    assert reasons(found) == {"p/0.5.0/0001-c.patch": "it is for version 0.5.0 of verl, which no cell has"}


def test_a_changed_patch_changes_the_facet_and_is_not_read_with_its_old_digest(tmp_path: Path) -> None:
    write(tmp_path, "p/a.patch")
    entry = "  - {folder: p, upstream: verl}"
    (before,) = sources(tmp_path, entry).facet("verl", {"verl": "0.7.1"})
    assert SelectedPatch.from_facet(before, tmp_path).data
    (tmp_path / "p/a.patch").write_text(PATCH.format("other"))
    (after,) = sources(tmp_path, entry).facet("verl", {"verl": "0.7.1"})
    assert before["digest"] != after["digest"]
    with pytest.raises(InputError, match="changed after the plan"):
        SelectedPatch.from_facet(before, tmp_path)


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    return subprocess.run(
        ["git", *who, "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(root: Path, message: str, **files: str) -> str:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path, "upstream", verl__x_py="a = 1\n")
    git(tmp_path, "tag", "v0.7.1")
    git(tmp_path, "checkout", "-q", "-b", "npu")
    commit(tmp_path, "Use HCCL: first", verl__x_py="a = 1\nb = 2\n")
    commit(tmp_path, "second", verl__x_py="a = 1\nb = 3\n", docs__n_py="x\n", matrix_py="")
    git(tmp_path, "mv", "matrix.py", "matrix.yaml")
    git(tmp_path, "commit", "-q", "--amend", "--no-edit")
    return tmp_path


ENTRY = "  - {branch: npu, base: v0.7.1, upstream: verl}"


def test_a_branch_is_one_patch_for_each_commit_and_is_read_again_by_its_commits(fork: Path) -> None:
    found = sources(fork, ENTRY)
    selected = found.select("verl", {"verl": "0.7.1"})
    assert names(selected) == ["verl/0001-Use-HCCL-first", "verl/0002-second"]
    for facet in found.facet("verl", {"verl": "0.7.1"}):
        assert b"verl/x.py" in SelectedPatch.from_facet(facet, fork).data
    assert reasons(found) == {"docs/n.py": "npu changes it, but it is not in the package folder verl/"}


def test_a_branch_with_merges_is_one_patch(fork: Path) -> None:
    git(fork, "checkout", "-q", "-b", "side", "v0.7.1")
    commit(fork, "aside", verl__y_py="y = 1\n")
    git(fork, "checkout", "-q", "npu")
    git(fork, "merge", "-q", "--no-edit", "side")
    assert names(sources(fork, ENTRY).select("verl", {"verl": "0.7.1"})) == ["verl/0001-all"]


def test_a_base_that_git_does_not_know_is_an_error_at_the_entry(fork: Path) -> None:
    with pytest.raises(InputError, match="no commit, branch or tag 'v9'") as caught:
        sources(fork, ENTRY.replace("v0.7.1", "v9")).select("verl", {"verl": "0.7.1"})
    assert str(caught.value.problems[0].where).endswith("matrix.yaml:8:5")


def test_own_patches_replace_the_shipped_ones_of_their_upstream(tmp_path: Path) -> None:
    write(tmp_path, "p/a.patch")
    shipped = Path(__file__).parents[3]
    mine = sources(tmp_path, "  - {folder: p, upstream: verl}", shipped)
    assert names(mine.select("verl", {"verl": "0.7.1"})) == ["verl/a"]
    other = sources(tmp_path, "  - {folder: p, upstream: megatron_core}", shipped)
    assert "verl/timing-all-gather" in names(other.select("verl", {"verl": "0.7.1"}))
    facet = other.facet("verl", {"verl": "0.7.1"})[0]
    assert SelectedPatch.from_facet(facet, tmp_path).data, "it is read from the shipped folder"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{upstream: verl}", "either 'folder' or 'branch'"),
        ("{folder: p, branch: b, upstream: verl, base: c}", "either 'folder' or 'branch'"),
        ("{branch: b}", "a branch needs 'upstream' and 'base'"),
        ("{folder: ../p, upstream: verl}", "outside this repository"),
        ("{folder: /etc, upstream: verl}", "outside this repository"),
        ("{folder: p, upstream: verla}", "unknown axis 'verla'"),
        ("{folder: p, upstream: verl, versions: x}", "matrix.yaml:8:"),
        ("{folder: p, layout: mercurial}", "layout"),
    ],
)
def test_a_wrong_entry_is_an_error_with_its_position(entry: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        sources(tmp_path, f"  - {entry}")
    assert expected in str(caught.value)
    assert ":8:" in str(caught.value.problems[0].where)


def test_a_linked_folder_outside_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "outside/a.patch")
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "p").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="outside of the repository"):
        sources(root, "  - {folder: p, upstream: verl}").select("verl", {"verl": "0.7.1"})


def test_in_the_tree_of_a_revision_head_is_that_revision(
    fork: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = git(fork, "rev-parse", "HEAD~1")
    place = tmp_path_factory.mktemp("place")
    there = extract_revision(fork, resolve_revision(fork, "HEAD~1"), place)
    entry = "  - {branch: HEAD, base: v0.7.1, upstream: verl}"
    assert git(there, "rev-parse", "HEAD") == before
    assert names(sources(there, entry).select("verl", {"verl": "0.7.1"})) == ["verl/0001-Use-HCCL-first"]
    assert names(sources(fork, entry).select("verl", {"verl": "0.7.1"}))[1:] == ["verl/0002-second"]
    for facet in sources(there, entry).facet("verl", {"verl": "0.7.1"}):
        assert SelectedPatch.from_facet(facet, there).data
    assert git(fork, "worktree", "list").count("\n") == 0, "the repository does not know it"


def test_files_and_strip_place_patches_of_a_shared_folder(tmp_path: Path) -> None:
    write(tmp_path, "p/verl.patch", "p/gcc.patch", "p/sub/verl.patch")
    (tmp_path / "p/p0.diff").write_text(PATCH.format(7).replace(" a/", " ").replace(" b/", " "))
    found = sources(
        tmp_path,
        "  - {folder: p, upstream: verl, files: [verl.patch]}\n"
        "  - {folder: p, upstream: verl, files: ['*.diff'], strip: 0}\n"
        "  - {folder: p, files: [gcc.patch], left_out: it is for the compiler}",
    )
    chosen = found.select("verl", {"verl": "0.7.1"})
    assert names(chosen) == ["verl/verl", "verl/p0"]
    assert [parse_patch(patch.data).files[0].path for patch in chosen] == ["verl/x.py"] * 2
    for patch in chosen:
        assert SelectedPatch.from_facet(patch.facet(), tmp_path) == patch
    assert [(one.file, one.is_stated) for one in found.unused([{"verl": "0.7.1"}])] == [("p/gcc.patch", True)]
    assert [one.file for one in found.unnamed(["p/sub/verl.patch", "p/gcc.patch", "README"])] == [
        "p/sub/verl.patch"
    ]


def test_paths_can_be_relative_to_a_folder_of_the_sources(tmp_path: Path) -> None:
    """As in patches that a script applies in the folder of the installed package."""
    write(tmp_path, "p/in.patch", "p/p0.patch", "p/unused.patch")
    (tmp_path / "p/p0.patch").write_text(PATCH.format(7).replace(" a/", " ").replace(" b/", " "))
    found = sources(
        tmp_path,
        "  - {folder: p, upstream: megatron_core, files: [in.patch], inside: megatron/core}\n"
        "  - {folder: p, upstream: megatron_core, files: [p0.patch], strip: 0, inside: megatron/}\n"
        "  - {folder: p, upstream: megatron_core, files: [unused.patch], versions: '==0.1', inside: megatron}",
    )
    chosen = found.select("megatron_core", {"megatron_core": "0.12.1"})
    assert [parse_patch(patch.data).files[0].path for patch in chosen] == [
        "megatron/core/verl/x.py",
        "megatron/verl/x.py",
    ]
    for patch in chosen:
        assert SelectedPatch.from_facet(patch.facet(), tmp_path) == patch
    assert [one.file for one in found.unused([{"megatron_core": "0.12.1"}])] == ["p/unused.patch"]
    assert found.unnamed(["p/in.patch", "p/p0.patch"]) == ()
    (tmp_path / "p/in.patch").write_text(PATCH.format(8))
    with pytest.raises(InputError, match="changed after the plan"):
        SelectedPatch.from_facet(chosen[0].facet(), tmp_path)


@pytest.mark.parametrize("inside", ["../x", "/vllm"])
def test_a_folder_outside_the_sources_is_refused(inside: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="outside the sources of the upstream"):
        sources(tmp_path, f"  - {{folder: p, upstream: megatron_core, inside: {inside}}}")


def test_the_same_patch_in_two_folders_is_applied_once(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path, f"{folder}/x.patch")
    found = sources(tmp_path, "  - {folder: a, upstream: verl}\n  - {folder: b, upstream: verl}")
    assert [patch.file for patch in found.select("verl", {"verl": "0.7.1"})] == ["a/x.patch"]


@pytest.mark.parametrize(
    "entry",
    [
        "branch: main, base: v1, upstream: verl, strip: 2",
        "axis: verl, folder: x, left_out: no",
        "axis: verl, folder: x, inside: verl",
    ],
)
def test_settings_of_a_folder_are_for_folders_of_the_repository(entry: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is for a folder of this repository"):
        sources(tmp_path, f"  - {{{entry}}}")
