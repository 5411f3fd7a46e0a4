"""The version of CANN from the files of its installer, in the layouts of several releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cell_program.cann_version import installed_version, version_of_library


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("aarch64-linux/ascend_toolkit_install.info", "package_name=toolkit\nversion=8.3.RC1\n", "8.3.RC1"),
        ("version.cfg", "runtime_running_version=[7.6.0.1.220:8.0.0]\n", "8.0.0"),
    ],
)
def test_the_library_leads_to_the_version(tmp_path: Path, file: str, text: str, version: str) -> None:
    root = tmp_path / "ascend-toolkit" / "8"
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    library = root / "runtime" / "lib64" / "libascendcl.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (root.parent / "latest").symlink_to("8")
    assert installed_version(root) == version
    assert version_of_library(root.parent / "latest" / "runtime" / "lib64" / library.name) == version


def test_a_library_of_nothing_has_no_version(tmp_path: Path) -> None:
    assert not version_of_library(tmp_path / "lib" / "libascendcl.so")
