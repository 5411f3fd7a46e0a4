"""For tests of resolving and installing: a task context that runs programs, and tiny wheels."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.check import Completed


class Context:
    """A task context that runs real programs, with the facets of a test."""

    def __init__(
        self, folder: Path, facets: Mapping[str, Any], params: Mapping[str, Any] | None = None
    ) -> None:
        self.facets, self.params = facets, params or {}
        self.inputs: dict[str, Any] = {}
        self.root = self.cache = folder
        self.workdir = folder / "work"
        self.workdir.mkdir(parents=True, exist_ok=True)
        self.lines: list[str] = []
        self.artifacts: dict[tuple[str, str], Path] = {}
        self.has_cards = False

    def log(self, text: str) -> None:
        self.lines.append(text)

    def artifact(self, check: str, name: str) -> Path:
        return self.artifacts[check, name]

    def in_cell(self, module: str, *args: str, **options: Any) -> Completed:
        raise NotImplementedError

    @contextlib.contextmanager
    def cards(self) -> Iterator[None]:
        self.has_cards = True
        yield
        self.has_cards = False

    def command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        started = time.monotonic()
        done = subprocess.run(
            list(argv),
            env=dict(env or {}),
            cwd=cwd,
            timeout=timeout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Completed(
            argv=tuple(argv), returncode=done.returncode, tail=done.stdout, seconds=time.monotonic() - started
        )


class Wheels:
    """A folder of tiny wheels for pip's option --find-links."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()

    def add(
        self,
        name: str,
        version: str,
        *requires: str,
        tag: str = "py3-none-any",
        python: str = "",
        files: Mapping[str, str | bytes] | None = None,
    ) -> Path:
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        content: dict[str, str | bytes] = {
            f"{module}/__init__.py": f'__version__ = "{version}"\n',
            **(files or {}),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            + (f"Requires-Python: {python}\n" if python else "")
            + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires),
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        record = []
        for path, text in content.items():
            data = text.encode() if isinstance(text, str) else text
            record.append(f"{record_line(path, data)}\n")
        record.append(f"{info}/RECORD,,\n")
        content[f"{info}/RECORD"] = "".join(record)
        target = self.folder / f"{module}-{version}-{tag}.whl"
        with zipfile.ZipFile(target, "w") as archive:
            for path, text in content.items():
                archive.writestr(path, text)
        return target


def record_line(name: str, data: bytes) -> str:
    """A line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def rewritten(wheel: Path, change: Callable[[str], str], added: Mapping[str, str] | None = None) -> Path:
    """The wheel with another RECORD, and with members that RECORD does not list."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, change(data.decode()) if name.endswith("/RECORD") else data)
        for name, text in (added or {}).items():
            archive.writestr(name, text)
    return wheel


def only_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    """Wheels in a folder, which is the only index of pip and uv."""
    for variable in list(os.environ):
        if variable.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(variable)
    wheels = Wheels(folder / "wheels")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", wheels.folder.as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(folder / "uv-cache"))
    return wheels


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    return only_index(tmp_path, monkeypatch)


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """`context(facets)` returns a task context in a new folder."""
    count = iter(range(1000))

    def make(facets: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> Context:
        return Context(tmp_path / f"task-{next(count)}", facets, params)

    return make
