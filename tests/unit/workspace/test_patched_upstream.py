"""`lint` reads verl and vllm-ascend with the patches that the matrix has for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_tree import MemoryTree

from harness.settings import load_settings
from harness.sources.tree import TreeFile
from harness.workspace.linting.patched_upstream import with_patches

CONFIG = "verl/trainer/config/actor.yaml"
PATCH = f"--- a/{CONFIG}\n+++ b/{CONFIG}\n@@ -1 +1,2 @@\n lr: 1\n+fresh: true\n"
OTHER = "verl/trainer/config/other.yaml"
MERGED = f"--- a/{OTHER}\n+++ b/{OTHER}\n@@ -1,3 +1,4 @@\n a: 1\n b: 1\n+merged: true\n c: 1\n"
MATRIX = """\
format: 1
include: npu-matrix
patches:
  - {folder: patches, upstream: verl, versions: "==0.7.1"}
stacks:
  mine:
    title: mine
    source: mine
    axes: {verl: 0.7.1, python: "3.11", device: npu}
profiles:
  default: {title: mine, select: [{stacks: [mine]}]}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    from harness import __version__

    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("npu-matrix", f"npu-matrix:{__version__}"))
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/a-key.patch").write_text(PATCH)
    (tmp_path / "patches/b-late.patch").write_text(PATCH.replace("lr: 1", "lr: 2"))
    # Of one that upstream has already, nothing is missing.
    (tmp_path / "patches/c-merged.patch").write_text(MERGED)
    return tmp_path


@pytest.mark.parametrize(("version", "applied"), [("0.7.1", 1), ("0.8.0", 0)])
def test_patches_for_the_version_are_in_it_and_those_that_do_not_apply_are_named(
    root: Path, version: str, applied: int
) -> None:
    merged = TreeFile(data=b"a: 1\nb: 1\nmerged: true\nc: 1\n")
    tree = MemoryTree(files={CONFIG: TreeFile(data=b"lr: 1\n"), OTHER: merged})
    found = with_patches(load_settings({}, {}, root), "verl", {"verl": version}, tree)
    assert (b"fresh" in found.tree.read(CONFIG)) is bool(applied)
    assert found.applied == ("verl/a-key",) * applied
    assert found.others == ("verl/b-late",) * applied
