from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_venv_environment import Cell

from harness.builds.cell import venv_environment
from harness.builds.cell.environment_files import IDENTITY
from harness.builds.installed.content_identity import content_identity
from harness.builds.installed.file_manifest import FileManifest, WatchedFolder, make_manifest


@pytest.fixture
def cell(wheels: Any, context: Any, tmp_path: Path) -> Cell:
    return Cell(context, tmp_path, wheels.add("verl", "0.9.1", files={"verl/core.py": "ANSWER = 1\n"}))


def identity(cell: Cell) -> dict[str, str]:
    measured = venv_environment.run(cell.ctx)
    assert measured.artifacts == {IDENTITY: IDENTITY}
    found: dict[str, str] = json.loads((cell.ctx.workdir / IDENTITY).read_text())
    return found


def test_a_rebuild_has_the_same_identity(cell: Cell) -> None:
    """Also in another cache, although scripts and RECORD contain its path."""
    first = identity(cell)
    assert set(first) == {"venv", "host"}
    assert identity(cell) == first, "reused"
    shutil.rmtree(cell.ctx.cache / "cells")
    assert identity(cell) == first, "built again"
    cell.ctx.cache = cell.ctx.cache.with_name("another-cache")
    assert identity(cell) == first, "elsewhere"


def test_an_environment_that_cannot_be_built_has_none(cell: Cell) -> None:
    cell.lock.write_text(cell.lock.read_text().replace("sha256:", "sha256:0"))
    measured = venv_environment.run(cell.ctx)
    assert not measured.measurements.built
    assert not measured.artifacts


def files_of(home: Path) -> FileManifest:
    return make_manifest(
        [WatchedFolder(path=str(home / "venv")), WatchedFolder(path=str(home.parent / "python"))]
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "cells"
    for name, text in {
        "cells/venv/bin/tool": f"#!{home}/venv/bin/python\n",
        "cells/venv/pyvenv.cfg": "uv = 1\n",
        "cells/venv/site/core.py": "ANSWER = 1\n",
        "cells/venv/site/__pycache__/core.cpython-311.pyc": "old",
        "cells/venv/site/verl.dist-info/RECORD": "core.py,,\n",
        "python/random.py": "x = 1\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (home / "venv/bin/python").symlink_to(tmp_path / "python/random.py")
    return home


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda home: (home / name).write_text(text)


def link_elsewhere(home: Path) -> None:
    (home / "venv/bin/python").unlink()
    (home / "venv/bin/python").symlink_to("/elsewhere/python")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (write("venv/site/core.py", "ANSWER = 2\n"), "venv"),
        (write("venv/site/added.py", ""), "venv"),
        (write("venv/bin/tool", "#!/elsewhere/python\n"), "venv"),
        (lambda home: (home / "venv/site/core.py").unlink(), "venv"),
        (lambda home: (home / "venv/site/namespace").mkdir(), "venv"),
        (lambda home: (home / "venv/bin/tool").chmod(0o755), "venv"),
        (link_elsewhere, "venv"),
        (write("../python/random.py", "x = 2\n"), "host"),
    ],
)
def test_other_contents_are_another_identity(home: Path, change: Callable[[Path], object], part: str) -> None:
    before = content_identity(files_of(home), home)
    change(home)
    after = content_identity(files_of(home), home)
    assert {name for name in before if before[name] != after[name]} == {part}


@pytest.mark.parametrize(
    "change",
    [
        lambda home: os.utime(home / "venv/site/core.py", (1, 1)),
        write("venv/site/__pycache__/core.cpython-311.pyc", "new"),
        write("venv/site/verl.dist-info/RECORD", "core.py,,\n../bin/tool,sha256=x,9\n"),
        write("venv/pyvenv.cfg", "uv = 2\n"),
        lambda home: (home / "venv/site/core.py").chmod(0o600),
    ],
)
def test_what_differs_between_two_builds_is_left_out(home: Path, change: Callable[[Path], object]) -> None:
    before = content_identity(files_of(home), home)
    change(home)
    assert content_identity(files_of(home), home) == before


def test_names_that_are_not_text_are_compared(home: Path) -> None:
    before = content_identity(files_of(home), home)
    Path(os.fsdecode(os.fsencode(home / "venv/site") + b"/\xff")).write_text("")
    assert content_identity(files_of(home), home) != before
