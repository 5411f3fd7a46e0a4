"""Patches in the repository of an axis: which cells have them, and what happens without a mirror."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from git_command import commit_all

from harness.errors import InputError
from harness.matrix.reading.load_matrix import parse_matrix
from harness.outcome import Status
from harness.patchstack.checks import PATCHES
from harness.patchstack.patch_measurements import TREE_UNAVAILABLE, PatchesMeasured
from harness.patchstack.stacks.patch_sources import PatchSources
from harness.patchstack.stacks.patch_stack import SelectedPatch
from harness.sources.git.mirrors import MIRRORS

VERL = "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e"
PATCH = (
    "diff --git a/verl/x.py b/verl/x.py\n--- a/verl/x.py\n+++ b/verl/x.py\n@@ -1 +1,2 @@\n a = 1\n+b = {}\n"
)
MATRIX = """\
format: 1
axes:
  verl: {{title: v, scheme: pep440, source: s, package: verl}}
  transformers: {{title: t, scheme: pep440, source: s, package: transformers}}
  plugin: {{title: p, scheme: pep440, source: s, repository: "https://example.org/plugin"}}
profiles:
  default: {{title: t, select: [{{product: {{verl: [0.7.1]}}}}]}}
patches:
{patches}
"""
ENTRY = "  - {axis: plugin, folder: npu, layout: verl_npu}"


@pytest.fixture
def mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of mirrors."""
    folder = tmp_path / "mirrors"
    folder.mkdir()
    monkeypatch.setenv(MIRRORS, str(folder))
    return folder


def plugin(folder: Path, files: dict[str, str]) -> str:
    """Commit these files as the plugin's; the value of its axis."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return f"2.0@{commit_all(folder)}"


def sources(root: Path, patches: str = ENTRY) -> PatchSources:
    matrix = parse_matrix(MATRIX.format(patches=patches), root / "matrix.yaml")
    return PatchSources(root=root, shipped=None, places=matrix.patch_places, axes=matrix.axes)


def test_a_cell_has_the_patches_of_its_commit_for_its_commits(tmp_path: Path, mirrors: Path) -> None:
    first = plugin(mirrors / "p", {"npu/patch/verl/796871d7d/a.patch": PATCH.format(1)})
    second = plugin(mirrors / "p", {"npu/patch/transformers/8365f70e9/t.patch": PATCH.format(2)})
    found = sources(tmp_path)
    cell = {"verl": f"0.6.0@{VERL}", "transformers": "4.56.0@8365f70e925", "plugin": first}
    (patch,) = found.select("verl", cell)
    assert patch.id == "verl/plugin/796871d7d/a"
    assert found.select("transformers", cell) == ()
    assert [one.id for one in found.select("transformers", {**cell, "plugin": second})] == [
        "transformers/plugin/8365f70e9/t"
    ]
    assert found.select("verl", {**cell, "verl": "0.7.1"}) == ()
    assert found.select("verl", {"verl": cell["verl"]}) == (), "a cell without the plugin has none"
    (facet,) = found.facet("verl", cell)
    assert SelectedPatch.from_facet(facet, tmp_path).data == PATCH.format(1).encode()


def test_a_patch_without_a_last_newline_is_read_as_gnu_patch_reads_it(tmp_path: Path, mirrors: Path) -> None:
    version = plugin(mirrors / "p", {"npu/patch/verl/796871d7d/a.patch": PATCH.format(1)[:-1]})
    found = sources(tmp_path)
    (facet,) = found.facet("verl", {"verl": f"0.6.0@{VERL}", "plugin": version})
    assert SelectedPatch.from_facet(facet, tmp_path).data == PATCH.format(1).encode()
    places = found.at_commit(found.places[0], version)
    assert any("has no newline" in problem.what for problem in places.problems)


def test_without_a_mirror_the_patches_are_not_known(tmp_path: Path, mirrors: Path) -> None:
    version = plugin(tmp_path / "elsewhere", {"npu/patch/verl/796871d7d/a.patch": PATCH.format(1)})
    cell = {"verl": f"0.6.0@{VERL}", "plugin": version}
    (facet,) = sources(tmp_path).facet("verl", cell)
    unread = SelectedPatch.from_facet(facet, tmp_path).unread
    assert unread is not None
    assert "no local clone has the commit" in unread.reason
    measured = PatchesMeasured(
        selected=("plugin",), tree=TREE_UNAVAILABLE, applies=False, reason=f"{unread.reason}."
    )
    assert PATCHES.judge(measured, {}).status is Status.NOT_RUN
    shutil.move(tmp_path / "elsewhere", mirrors / "p")
    (after,) = sources(tmp_path).facet("verl", cell)
    assert after["id"] == "verl/plugin/796871d7d/a", "the key changes when the patches are known"


def test_each_file_is_accounted_for_and_links_are_not_followed(tmp_path: Path, mirrors: Path) -> None:
    top = mirrors / "p" / "npu/patch/verl/796871d7d"
    top.mkdir(parents=True)
    (top / "link.patch").symlink_to("/etc/passwd")
    version = plugin(
        mirrors / "p",
        {
            "npu/patch/verl/796871d7d/a.patch": PATCH.format(1),
            "npu/patch/verl/0123456/old.patch": PATCH.format(2),
            "npu/patch/other/796871d7d/o.patch": PATCH.format(3),
        },
    )
    found = sources(tmp_path)
    cell = {"verl": f"0.6.0@{VERL}", "plugin": version}
    assert [one.id for one in found.select("verl", cell)] == ["verl/plugin/796871d7d/a"]
    commit = version.partition("@")[2]
    assert {one.file: one.reason for one in found.unused([cell])} == {
        f"commit-patches/{commit}/npu/patch/verl/0123456/old.patch": (
            "it is for commit 0123456 of verl, which no cell has"
        ),
        f"commit-patches/{commit}/npu/patch/other/796871d7d/o.patch": "matrix.yaml has no axis for 'other'",
    }
    assert found.unused([cell], in_repositories=False) == ()


def test_a_commit_without_patches_is_an_error_with_its_place(tmp_path: Path, mirrors: Path) -> None:
    version = plugin(mirrors / "p", {"npu/readme": "no patch"})
    with pytest.raises(InputError, match=r"plugin 2\.0@"):
        sources(tmp_path).select("verl", {"verl": f"0.6.0@{VERL}", "plugin": version})


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("  - {axis: nothing, folder: npu}", "nothing"),
        ("  - {axis: transformers, folder: npu}", "the axis transformers has no repository"),
        ("  - {axis: plugin, branch: b, base: v1, upstream: verl}", "'axis' is for a folder"),
    ],
)
def test_an_entry_that_cannot_be_is_an_error(entry: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        sources(tmp_path, entry)
