from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.builds.cell.interpreter_files import InterpreterFiles, compile_library, interpreter_folders
from harness.builds.installed.file_manifest import find_changes, make_manifest

TAG = "cpython-311"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An interpreter whose folder has two names, with a small standard library."""
    home = tmp_path / "3.11.7"
    library = home / "lib/python3.11"
    for folder in (home / "bin", library / "__pycache__", library / "json", library / "test"):
        folder.mkdir(parents=True)
    for name in ("os.py", "json/__init__.py", "test/regression.py", f"__pycache__/os.{TAG}.pyc"):
        (library / name).write_text("x = 1\n")
    (home / "bin/python3.11").write_text("")
    (home / "lib/libpython3.11.so.1.0").write_text("")
    (tmp_path / "current").symlink_to("3.11.7")
    (tmp_path / "python3").symlink_to("current/bin/python3.11")
    (tmp_path / "etc/hooks").mkdir(parents=True)
    for name in ("sitecustomize.py", "hooks/__init__.py"):
        (tmp_path / "etc" / name).write_text("")
    (tmp_path / "etc/alternative.py").symlink_to("sitecustomize.py")
    (library / "sitecustomize.py").symlink_to(tmp_path / "etc/alternative.py")
    (library / "hooks").symlink_to(tmp_path / "etc/hooks")
    (library / "above").symlink_to(home)
    (library / "loop").symlink_to("loop")
    (library / "broken").symlink_to(tmp_path / "etc/later.py")
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to("../../python3")
    return home


def found(home: Path) -> InterpreterFiles:
    library = home / "lib/python3.11"
    base = (str(home / "lib/python311.zip"), str(library), str(library / "lib-dynload"))
    return InterpreterFiles(base=base, paths=base, tag=TAG, prefix=str(home), home=str(home / "bin"))


def point_elsewhere(link: Path) -> None:
    target = link.readlink()
    other = link.parent / "other"
    link.unlink()
    if target.name == "3.11.7":
        shutil.copytree(link.parent / target, other, symlinks=True)
    else:
        shutil.copy(link.parent / target, other)
    link.symlink_to("other")


def forge(name: str) -> Callable[[Path], None]:
    def change(home: Path) -> None:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("forged")

    return change


NOTICED = {
    "the folder of its version": lambda home: point_elsewhere(home.parent / "current"),
    "a link to it": lambda home: point_elsewhere(home.parent / "python3"),
    "the program": forge("bin/python3.11"),
    "a build folder": forge("bin/pybuilddir.txt"),
    "the settings of a build": forge("bin/Modules/Setup.local"),
    "a file with paths": forge("bin/python3.11._pth"),
    "a library that is searched earlier": forge("bin/lib/python3.11/os.py"),
    "a compiled library that is searched earlier": forge("bin/lib/python3.11/os.pyc"),
    "an archive that is searched earlier": forge("bin/lib/python311.zip"),
    "extension modules that are searched earlier": forge("bin/lib/python3.11/lib-dynload/x.so"),
    "an archive above the interpreter": forge("../lib/python311.zip"),
    "a module behind two links": forge("../etc/sitecustomize.py"),
    "a link behind a link": lambda home: point_elsewhere(home.parent / "etc/alternative.py"),
    "a module in a folder behind a link": forge("../etc/hooks/__init__.py"),
    "a module that a link names already": forge("../etc/later.py"),
    "a module": forge("lib/python3.11/os.py"),
    "a module that shadows others": forge("lib/python3.11/torch.py"),
    "an empty package": lambda home: (home / "lib/python3.11/torch").mkdir(),
    "a compiled module": forge(f"lib/python3.11/__pycache__/os.{TAG}.pyc"),
    "the first compiled form of a module": forge(f"lib/python3.11/json/__pycache__/__init__.{TAG}.pyc"),
    "an extension module": forge("lib/python3.11/lib-dynload/_json.so"),
    "an archive": forge("lib/python311.zip"),
    "its shared library": forge("lib/libpython3.11.so.1.0"),
}


@pytest.mark.parametrize("change", NOTICED.values(), ids=NOTICED)
def test_a_changed_interpreter_is_noticed(home: Path, change: Callable[[Path], object]) -> None:
    venv = home.parent / "venv"
    manifest = make_manifest(interpreter_folders(venv / "bin/python", found(home), venv))
    assert not find_changes(manifest)
    change(home)
    assert find_changes(manifest)


UNUSED = {
    "packages of the interpreter": forge("lib/python3.11/site-packages/torch.py"),
    "its tests": forge("lib/python3.11/test/regression.py"),
    "modules that another version compiled": forge("lib/python3.11/__pycache__/os.cpython-312.pyc"),
    "another library": forge("lib/libother.so"),
    "another interpreter above it": forge("../lib/python3.11/os.py"),
}


@pytest.mark.parametrize("change", UNUSED.values(), ids=UNUSED)
def test_what_the_environment_does_not_use_of_it_may_change(
    home: Path, change: Callable[[Path], object]
) -> None:
    venv = home.parent / "venv"
    manifest = make_manifest(interpreter_folders(venv / "bin/python", found(home), venv))
    change(home)
    assert not find_changes(manifest)


def test_the_standard_library_is_compiled_once(context: Any, home: Path) -> None:
    import sys

    ctx = context({})
    files = replace(found(home), tag=sys.implementation.cache_tag)
    compile_library(ctx, Path(sys.executable), files)
    library = home / "lib/python3.11"
    assert (library / f"json/__pycache__/__init__.{files.tag}.pyc").is_file()
    assert not (library / "test/__pycache__").exists()
    commands = len(ctx.lines)
    compile_library(ctx, Path("/no/python"), files)
    assert len(ctx.lines) == commands
