"""Wheels are downloaded once for all environments, and used only with the digest of the lock."""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_venv_environment import ORIGINAL, Cell

from harness.builds.cell.wheel_store import STORE, WheelStore
from harness.digest import digest_file
from harness.outcome import Status
from harness.sources.packages.index_settings import IndexSettings
from harness.sources.packages.lockfile import LockedPackage


class Server(http.server.ThreadingHTTPServer):
    """A package index in a folder; `requested` are the wheels that were downloaded."""

    requested: list[str]


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            assert isinstance(self.server, Server)
            self.server.requested.append(Path(self.path).name)
        super().do_GET()

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[Path, Server]]:
    folder = tmp_path / "index"
    (folder / "files").mkdir(parents=True)
    with Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        server.requested = []
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, server
        server.shutdown()
        thread.join()


def publish(folder: Path, wheel: Path) -> None:
    page = folder / "simple" / wheel.name.split("-")[0] / "index.html"
    page.parent.mkdir(parents=True)
    shutil.copy(wheel, folder / "files")
    page.write_text(f'<a href="/files/{wheel.name}#sha256={digest_file(wheel)}">{wheel.name}</a>')


@pytest.fixture
def cell(
    wheels: Any,
    context: Any,
    tmp_path: Path,
    index: tuple[Path, Server],
    monkeypatch: pytest.MonkeyPatch,
) -> Cell:
    """A cell whose packages are on an HTTP index."""
    packages = [
        wheels.add("verl", "0.9.1", files={"verl/core.py": ORIGINAL.decode()}),
        wheels.add("ray", "2.0"),
    ]
    made = Cell(context, tmp_path, *packages)
    folder, server = index
    for wheel in packages:
        publish(folder, wheel)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    return made


def built_core(cell: Cell) -> bytes:
    found, judgement = cell.build()
    assert judgement.status is Status.PASS
    return (Path(found.site_packages) / "verl/core.py").read_bytes()


def remove_environments(cell: Cell) -> None:
    shutil.rmtree(cell.ctx.cache / "cells")


def test_environments_download_a_wheel_once(cell: Cell, index: tuple[Path, Server]) -> None:
    assert built_core(cell) == ORIGINAL
    first = sorted(index[1].requested)
    assert first == ["ray-2.0-py3-none-any.whl", "verl-0.9.1-py3-none-any.whl"]
    remove_environments(cell)
    shutil.rmtree(index[0])
    assert built_core(cell) == ORIGINAL
    assert sorted(index[1].requested) == first


@pytest.mark.parametrize("damage", [b"", b"PK", b"not the wheel of the lock"])
def test_a_stored_wheel_that_was_changed_is_downloaded_again(
    cell: Cell, index: tuple[Path, Server], damage: bytes
) -> None:
    built_core(cell)
    [stored] = (cell.ctx.cache / STORE).glob("*/verl-*.whl")
    digest = digest_file(stored)
    stored.write_bytes(damage)
    remove_environments(cell)
    assert built_core(cell) == ORIGINAL
    assert digest_file(stored) == digest
    assert index[1].requested.count(stored.name) == 2


def test_another_wheel_under_the_name_of_a_locked_digest_is_not_used(
    cell: Cell, wheels: Any, index: tuple[Path, Server]
) -> None:
    built_core(cell)
    [stored] = (cell.ctx.cache / STORE).glob("*/verl-*.whl")
    forged = wheels.add("verl", "0.9.1", files={"verl/core.py": "ANSWER = 7\n"})
    shutil.copy(forged, stored)
    remove_environments(cell)
    assert built_core(cell) == ORIGINAL


def test_an_index_that_serves_another_wheel_fails_the_cell(
    cell: Cell, wheels: Any, index: tuple[Path, Server]
) -> None:
    forged = wheels.add("verl", "0.9.1", files={"verl/core.py": "ANSWER = 7\n"})
    shutil.copy(forged, index[0] / "files")
    found, judgement = cell.fail()
    assert (found.step, judgement.status) == ("install", Status.FAIL)
    assert not list((cell.ctx.cache / STORE).glob("*/verl-*.whl"))


def test_a_stored_wheel_for_another_interpreter_is_not_offered(
    context: Any, wheels: Any, tmp_path: Path
) -> None:
    wheel = wheels.add("torch", "2.0", tag="cp38-cp38-any")
    digest = digest_file(wheel)
    stored = tmp_path / STORE / digest / wheel.name
    stored.parent.mkdir(parents=True)
    shutil.copy(wheel, stored)
    ctx = context({})
    store = WheelStore(
        cache=tmp_path,
        python=Path(sys.executable),
        minor="3.11",
        settings=IndexSettings(no_index=True),
        work=ctx.workdir,
        command=ctx.command,
    )
    package = LockedPackage(name="torch", version="2.0", hashes=(f"sha256:{digest}",))
    assert store.collect([package]) is None
