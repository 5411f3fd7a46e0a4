"""Patches whose paths have more or fewer leading components than git expects: as `patch -pN` reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.sources.git.patch_paths import changed_paths, with_one_component


def git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout


def repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "verl").mkdir()
    (folder / "verl/a b.py").write_bytes(b"one\n-- two\n++ three\n")
    (folder / "verl/moved.py").write_bytes(b"moved\n" * 9)
    (folder / "verl/gone.py").write_bytes(b"gone\n")
    (folder / "verl/é.py").write_bytes(b"quoted\r\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    return folder


def change(folder: Path) -> None:
    # Lines of a hunk that look like header lines.
    (folder / "verl/a b.py").write_bytes(b"one\n++ a/x/y/z.py\n++ three\n-- b/x/y\n")
    git(folder, "mv", "verl/moved.py", "verl/new.py")
    git(folder, "rm", "-q", "verl/gone.py")
    (folder / "verl/é.py").write_bytes(b"quoted twice\r\n")
    (folder / "verl/empty.py").write_bytes(b"")
    git(folder, "add", "-A")


@pytest.mark.parametrize("components", [0, 1, 2, 4])
def test_git_applies_the_rewritten_patch_as_it_applies_the_original_with_p(
    components: int, tmp_path: Path
) -> None:
    made = repository(tmp_path / "made")
    change(made)
    folders = "".join(f"{name}/" for name in "abc"[: max(0, components - 1)])
    prefixes = ("", "") if not components else (f"a/{folders}", f"b/{folders}")
    diff = git(made, "diff", "--cached", "-M", f"--src-prefix={prefixes[0]}", f"--dst-prefix={prefixes[1]}")
    # Names of renames have no a/ or b/, so git writes none of the folders there: a repository does.
    diff = diff.replace(b"rename from ", b"rename from " + folders.encode())
    diff = diff.replace(b"rename to ", b"rename to " + folders.encode())
    expected, found = repository(tmp_path / "expected"), repository(tmp_path / "found")
    (tmp_path / "original.patch").write_bytes(diff)
    (tmp_path / "rewritten.patch").write_bytes(with_one_component(diff, components))
    git(expected, "apply", "--index", f"-p{components}", str(tmp_path / "original.patch"))
    git(found, "apply", "--index", str(tmp_path / "rewritten.patch"))
    assert git(found, "write-tree") == git(expected, "write-tree") == git(made, "write-tree")


def test_git_applies_a_patch_of_a_package_as_in_the_folder_of_the_package(tmp_path: Path) -> None:
    made = repository(tmp_path / "made")
    change(made)
    diff = git(made, "diff", "--cached", "-M", "--relative=verl")
    expected, found = repository(tmp_path / "expected"), repository(tmp_path / "found")
    (tmp_path / "original.patch").write_bytes(diff)
    (tmp_path / "rewritten.patch").write_bytes(with_one_component(diff, 1, "verl"))
    git(expected, "apply", "--index", "--directory=verl", str(tmp_path / "original.patch"))
    git(found, "apply", "--index", str(tmp_path / "rewritten.patch"))
    assert git(found, "write-tree") == git(expected, "write-tree") == git(made, "write-tree")


def test_lines_of_hunks_are_no_paths() -> None:
    text = (
        b"--- a/verl/x.py\t2024-01-01\n+++ b/verl/x.py\n@@ -1,2 +1,2 @@\n a\n--- a/no/x.py\n+++ b/no/x.py\n"
    )
    assert [*changed_paths(text)] == ["a/verl/x.py", "b/verl/x.py"]
    assert [*changed_paths(b"--- /dev/null\n+++ verl/new.py\n@@ -0,0 +1 @@\n+x\n")] == ["verl/new.py"]
