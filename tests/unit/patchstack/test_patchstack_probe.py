"""The probe that looks, inside a cell, at what would be imported."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from harness.digest import digest_bytes
from harness.fixtures.patch_probe import main, module_name, probe

OLD, NEW = b"x = 1\n", b"x = 2\n"
EXPECTED = {"probed/sub/mod.py": {"pre": digest_bytes(OLD), "post": digest_bytes(NEW)}}


def site(root: Path, content: bytes) -> Path:
    folder = root / "probed" / "sub"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").write_text("raise RuntimeError('a parent was executed')\n")
    (folder / "mod.py").write_bytes(content)
    return root


def state(*search: Path) -> str:
    report = probe(EXPECTED, [str(folder) for folder in search])
    assert report["ok"] == (report["files"][0]["state"] == "patched")
    return str(report["files"][0]["state"])


def test_a_file_below_folders_that_are_no_packages_is_found(tmp_path: Path) -> None:
    site(tmp_path, NEW)
    for init in tmp_path.rglob("__init__.py"):
        init.unlink()

    assert state(tmp_path) == "patched"


def test_patched_unpatched_and_other_are_told_apart(tmp_path: Path) -> None:
    assert state(site(tmp_path / "new", NEW)) == "patched"
    assert state(site(tmp_path / "old", OLD)) == "unpatched"
    assert state(site(tmp_path / "other", b"x = 3\n")) == "other"
    assert state(tmp_path) == "absent"


def test_a_copy_earlier_on_the_path_is_what_counts(tmp_path: Path) -> None:
    patched, shadow = site(tmp_path / "new", NEW), site(tmp_path / "shadow", OLD)
    assert state(patched, shadow) == "patched"
    assert state(shadow, patched) == "unpatched"


def test_stale_compiled_code_is_found_out(tmp_path: Path) -> None:
    root = site(tmp_path, OLD)
    source = root / "probed" / "sub" / "mod.py"
    py_compile.compile(str(source), doraise=True)
    before = source.stat()
    source.write_bytes(NEW)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert state(root) == "stale-code"
    Path(importlib.util.cache_from_source(str(source))).unlink()
    assert state(root) == "patched"


def test_a_removed_file(tmp_path: Path) -> None:
    gone = {"probed/gone.py": {"pre": digest_bytes(OLD), "post": None}}
    assert probe(gone, [str(site(tmp_path, NEW))])["files"][0]["state"] == "removed"


def test_a_file_that_is_no_module(tmp_path: Path) -> None:
    root = site(tmp_path, NEW)
    (root / "probed" / "conf.yaml").write_bytes(NEW)
    expected = {"probed/conf.yaml": EXPECTED["probed/sub/mod.py"]}
    assert probe(expected, [str(root)])["files"][0]["state"] == "patched"


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/b.py", "a.b"), ("a/__init__.py", "a"), ("a/b.yaml", None), ("a-b/c.py", None), ("x.py", "x")],
)
def test_module_names(path: str, name: str | None) -> None:
    assert module_name(path) == name


def test_as_a_program_without_this_project(tmp_path: Path) -> None:
    root = site(tmp_path / "site", NEW)
    expected, report = tmp_path / "expected.json", tmp_path / "report.json"
    expected.write_text(json.dumps(EXPECTED))
    script = Path(importlib.util.find_spec("harness.fixtures.patch_probe").origin)  # type: ignore[union-attr,arg-type]
    done = subprocess.run(
        [sys.executable, "-S", str(script), str(expected), str(report)],
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("patched: probed/sub/mod.py")
    assert json.loads(report.read_text())["ok"] is True


def test_bad_input_is_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "none"), "x"]) == 2
    assert "cannot be read" in capsys.readouterr().err
