"""Every way in which an installed file can contradict RECORD and the patches is a problem of its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cell_program.installed_records import InstalledFile, record_problems
from harness.digest import digest_file

INFO = "verl-0.9.1.dist-info"
FILES = {"verl/__init__.py": b"", "verl/core.py": b"a = 1\n", f"{INFO}/METADATA": b"Name: verl\n"}
PATCHED = b"a = 2\n"
Patches = dict[str, dict[str, str | None]]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def install(site: Path) -> None:
    lines = [f"{INFO}/RECORD,,"]
    for name, data in FILES.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    (site / INFO / "RECORD").write_text("\n".join(lines) + "\n")


def problems(site: Path, patched: Patches) -> list[str]:
    files = {
        str(path): InstalledFile(
            digest="" if path.is_symlink() else digest_file(path), size=path.lstat().st_size
        )
        for path in site.rglob("*")
        if path.is_symlink() or path.is_file()
    }
    return record_problems(files, site, patched=patched)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("__init__.py")


def patch_core(site: Path, patched: Patches) -> None:
    (site / "verl/core.py").write_bytes(PATCHED)
    patched["verl/core.py"] = {"pre": sha256(FILES["verl/core.py"]), "post": sha256(PATCHED)}


def patch_another_original(site: Path, patched: Patches) -> None:
    patch_core(site, patched)
    patched["verl/core.py"]["pre"] = sha256(b"b = 1\n")


def lose_patch(site: Path, patched: Patches) -> None:
    patch_core(site, patched)
    (site / "verl/core.py").write_bytes(FILES["verl/core.py"])


def keep_removed(_site: Path, patched: Patches) -> None:
    patched["verl/core.py"] = {"pre": sha256(FILES["verl/core.py"]), "post": None}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda _site, _patched: None, ""),
        (patch_core, ""),
        (lambda site, _patched: (site / "verl/core.py").write_bytes(b"a = 3\n"), "core.py is not the file"),
        (lambda site, _patched: (site / "verl/core.py").unlink(), "core.py of verl-0.9.1 is missing"),
        (lambda site, _patched: link(site / "verl/core.py"), "core.py of verl-0.9.1 is not a regular file"),
        (lambda site, _patched: (site / "verl/more.py").touch(), "more.py is installed, but no RECORD lists"),
        (
            lambda site, _patched: (site / "x.pth").write_text("import os\n"),
            "x.pth is installed, but no RECORD",
        ),
        (lambda site, _patched: (site / INFO / "RECORD").unlink(), "has no RECORD file"),
        (patch_another_original, "core.py of verl-0.9.1 was patched, but RECORD lists another original"),
        (lose_patch, "core.py is not the patched file"),
        (keep_removed, "core.py is not the patched file"),
    ],
)
def test_what_contradicts_a_record_or_a_patch_is_named(
    tmp_path: Path, change: Callable[[Path, Patches], object], problem: str
) -> None:
    install(tmp_path)
    patched: Patches = {}
    change(tmp_path, patched)
    found = problems(tmp_path, patched)
    assert bool(found) is bool(problem)
    assert problem in "\n".join(found)
