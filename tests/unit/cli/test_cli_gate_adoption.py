"""The gate of the change with which a repository adopts npu-matrix: its base has no matrix.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from gate_checkout import GateCheckout, patch_of
from git_command import git

from harness.errors import InputError


@pytest.fixture
def adopting(tmp_path: Path, parsed_code: Any) -> Any:
    """A checkout whose branch main has patches and no matrix.yaml, which the working tree has."""
    checkout = GateCheckout(tmp_path, parsed_code)
    git(checkout.root, "rm", "-q", "--cached", "matrix.yaml")
    git(checkout.root, "commit", "-q", "--amend", "-m", "without a matrix")
    return checkout


def test_a_patch_that_the_change_breaks_too_blocks(adopting: Any) -> None:
    adopting.write(patch_of("something else", "b = 2"))
    adopting.run()
    code, item, _report = adopting.gate("--run-base")
    assert (code, item["class"]) == (1, "new")


def test_what_was_broken_before_does_not_block(adopting: Any) -> None:
    adopting.write(patch_of("something else", "b = 1"))
    git(adopting.root, "add", "patches")
    git(adopting.root, "commit", "-q", "-m", "broken")
    adopting.write(patch_of("something else", "b = 2"))
    adopting.run()
    code, item, _report = adopting.gate("--run-base")
    assert (code, item["class"]) == (0, "known")
    assert git(adopting.root, "status", "--porcelain", "--", "matrix.yaml") == "?? matrix.yaml"


def test_a_matrix_that_was_moved_has_no_base(adopting: Any) -> None:
    root = adopting.root
    (root / "old").mkdir()
    shutil.copy(root / "matrix.yaml", root / "old/matrix.yaml")
    git(root, "add", "old")
    git(root, "commit", "-q", "-m", "the matrix is elsewhere")
    adopting.run()
    with pytest.raises(InputError, match=r"there is no matrix.yaml at main"):
        adopting.gate()
