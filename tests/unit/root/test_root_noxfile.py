"""The nox sessions install what a fresh machine needs. nox itself is replaced by a fake."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tomllib

NOXFILE = Path(__file__).parents[3] / "noxfile.py"


class Session:
    def __init__(self, folder: Path) -> None:
        self.virtualenv = SimpleNamespace(location=str(folder))
        self.installed: list[tuple[str, ...]] = []

    def install(self, *arguments: str) -> None:
        self.installed.append(arguments)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    nox: Any = ModuleType("nox")
    nox.session = lambda function: function
    nox.Session = Session
    nox.options = SimpleNamespace()
    nox.project = SimpleNamespace(
        load_toml=lambda file: tomllib.loads(Path(file).read_text()),
        dependency_groups=lambda project, *groups: [
            one for name in groups for one in project["dependency-groups"][name]
        ],
    )
    monkeypatch.setitem(sys.modules, "nox", nox)
    spec = importlib.util.spec_from_file_location("sessions_of_nox", NOXFILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_machine_without_a_c_compiler_gets_one_as_a_wheel(
    sessions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers: list[str] = ["gcc"]
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sessions.shutil, "which", lambda name: name if name in compilers else None)
    session = Session(tmp_path)
    sessions.install(session)
    sessions.install(session)
    assert session.installed == [("-e", ".")], "once is enough"
    compilers.clear()
    sessions.install(session)
    assert session.installed[1:] == [("-e", ".[compiler]")]


def test_the_extra_that_the_sessions_ask_for_is_there() -> None:
    extras = tomllib.loads((NOXFILE.parent / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert any(one.startswith("ziglang") for one in extras["compiler"])
