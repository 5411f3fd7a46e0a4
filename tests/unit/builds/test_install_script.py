"""The part of an install script that patches installed packages, run by bash."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.builds.export.install_script import _patches
from harness.builds.lock.cell_lock import PatchFile
from harness.digest import digest_bytes
from harness.patchstack.format.diff_writer import diff_files

BEFORE, ONE, BOTH = b"a = 1\nb = 2\n", b"a = 1\nb = 3\n", b"a = 1\nb = 4\n"
NEW = b"c = 1\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages that the `python3` of the search path names."""
    folder = tmp_path / "site packages"
    (folder / "verl").mkdir(parents=True)
    (folder / "verl/mod.py").write_bytes(BEFORE)
    program = tmp_path / "bin/python3"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{folder}'\n")
    program.chmod(0o755)
    return folder


def patching(site: Path) -> subprocess.CompletedProcess[str]:
    """Two patches of one line, the second on top of the first, which also adds a file."""
    diffs = [
        diff_files({"verl/mod.py": (BEFORE, ONE), "verl/new.py": (None, NEW)}),
        diff_files({"verl/mod.py": (ONE, BOTH)}),
    ]
    stack = [
        PatchFile(id=f"verl/{number}", file=f"patches/{number}.patch", digest=digest_bytes(diff))
        for number, diff in enumerate(diffs)
    ]
    contents = {patch.file: diff for patch, diff in zip(stack, diffs, strict=True)}
    work = site.parent / "work"
    work.mkdir(exist_ok=True)
    text = "\n".join(["set -euo pipefail", f"work='{work}'", *_patches(stack, contents)])
    path = f"{site.parent}/bin:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", text], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("earlier", [BEFORE, ONE, BOTH], ids=["fresh", "interrupted", "finished"])
def test_a_script_that_runs_again_patches_once(site: Path, earlier: bytes) -> None:
    (site / "verl/mod.py").write_bytes(earlier)
    if earlier != BEFORE:
        (site / "verl/new.py").write_bytes(NEW)
    done = patching(site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (site / "verl/mod.py").read_bytes() == BOTH
    assert (site / "verl/new.py").read_bytes() == NEW


def test_a_package_that_the_patches_do_not_fit_ends_the_script(site: Path) -> None:
    (site / "verl/mod.py").write_bytes(b"a = 1\nb = 9\n")
    assert patching(site).returncode != 0
