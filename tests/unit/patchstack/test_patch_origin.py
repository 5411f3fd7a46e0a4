"""Imported patches record the file that they come from, and a change of that file is found."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from harness.patchstack.checks import judge
from harness.patchstack.patch_measurements import PatchesMeasured
from harness.patchstack.stacks.patch_origin import OriginState
from harness.patchstack.stacks.patch_sources import PatchSources
from harness.patchstack.stacks.patch_stack import imported_origins, load_stack, read_stack
from harness.patchstack.stacks.stack_export import write_imported
from harness.patchstack.stacks.stack_import import import_patches
from harness.patchstack.stacks.stack_lint import lint_stack

PATCH = b"diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1,2 @@\n a = 1\n+b = 1\n"
VERSION = "0.6.1"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A plugin's patch in the checkout `tmp_path`, imported into `patches`."""
    folder = tmp_path / "plugin" / "verl_npu" / "patch" / "verl" / "d62da4950"
    folder.mkdir(parents=True)
    (folder / "mod.patch").write_bytes(PATCH)
    imported = import_patches(tmp_path / "plugin")
    write_imported(imported, tmp_path / "patches", {"d62da4950": f"=={VERSION}"}, "us", date(2027, 1, 1))
    return folder / "mod.patch"


def selected_patches(root: Path, upstream: str, version: str) -> list[dict[str, object]]:
    return list(
        PatchSources(root=root, shipped=None, places=(), axes={}).facet(upstream, {upstream: version})
    )


def test_a_fresh_import_has_its_origin_and_no_problem(origin: Path, tmp_path: Path) -> None:
    (found,) = imported_origins(tmp_path / "patches")
    assert found.state is OriginState.SAME
    assert found.file == origin.relative_to(tmp_path).as_posix()
    assert lint_stack(tmp_path / "patches", "verl", [VERSION]) == []


def test_a_changed_origin_changes_the_facet_and_is_a_finding(origin: Path, tmp_path: Path) -> None:
    before = selected_patches(tmp_path, "verl", VERSION)
    origin.write_bytes(PATCH.replace(b"b = 1", b"b = 2"))
    after = selected_patches(tmp_path, "verl", VERSION)
    assert before != after
    origin.write_bytes(PATCH.replace(b"b = 1", b"b = 3"))
    assert selected_patches(tmp_path, "verl", VERSION) not in (before, after)
    problems = lint_stack(tmp_path / "patches", "verl", [VERSION])
    assert any("has changed since then" in problem.what for problem in problems)
    origin.write_bytes(PATCH)
    assert selected_patches(tmp_path, "verl", VERSION) == before


def test_a_stale_import_fails_even_without_the_tree_of_the_upstream() -> None:
    stale = PatchesMeasured(
        selected=("verl/mod",), tree="unavailable", applies=False, stale=("verl/mod was imported from x",)
    )
    judgement = judge(stale, {})
    assert judgement.status.value == "fail"
    assert "imported" in judgement.reasons[0]


def test_an_origin_in_another_repository_that_is_not_here_changes_no_key(tmp_path: Path) -> None:
    other = tmp_path / "plugin"
    other.mkdir()
    (other / "series").write_text("mod.patch\n")
    (other / "mod.patch").write_bytes(PATCH)
    root = tmp_path / "checkout"
    write_imported(
        import_patches(other), root / "patches", {"mod.patch": f"=={VERSION}"}, "us", date(2027, 1, 1)
    )
    (found,) = imported_origins(root / "patches")
    assert found.file == "../plugin/mod.patch"
    (upstream,) = [folder.name for folder in (root / "patches").iterdir()]
    here = selected_patches(root, upstream, VERSION)
    (other / "mod.patch").unlink()
    (found,) = imported_origins(root / "patches")
    assert found.state is OriginState.MISSING
    assert selected_patches(root, upstream, VERSION) == here


def test_a_malformed_origin_is_a_problem(origin: Path, tmp_path: Path) -> None:
    (header,) = [patch.file for patch in load_stack(tmp_path / "patches", "verl").patches]
    text = header.read_text()
    for line in ("Origin: nothing", f"Origin: other.patch sha256:{'0' * 64} {origin.name}"):
        header.write_text(f"{text}{line}\n")
        assert read_stack(tmp_path / "patches", "verl")[1]
