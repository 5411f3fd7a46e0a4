"""Patched files in an environment: the mode that a patch sets is installed with the content."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from harness.builds.cell.patched_files import install_patched
from harness.digest import digest_bytes

SCRIPT = b"#!/bin/sh\n"


@pytest.mark.parametrize(
    ("before", "mode", "executable"), [(0o644, 0o100755, True), (0o755, 0o100644, False)]
)
def test_a_patch_that_only_changes_the_mode_of_a_file_is_installed(
    tmp_path: Path, before: int, mode: int, executable: bool
) -> None:
    target = tmp_path / "site" / "verl" / "run.sh"
    target.parent.mkdir(parents=True)
    target.write_bytes(SCRIPT)
    target.chmod(before)
    info = zipfile.ZipInfo("verl/run.sh")
    info.external_attr = mode << 16
    with zipfile.ZipFile(tmp_path / "patched.zip", "w") as archive:
        archive.writestr(info, SCRIPT)
    digest = digest_bytes(SCRIPT)
    manifest = {"verl/run.sh": {"pre": digest, "post": digest}}
    install_patched(tmp_path / "patched.zip", manifest, tmp_path / "site")
    assert os.access(target, os.X_OK) is executable
