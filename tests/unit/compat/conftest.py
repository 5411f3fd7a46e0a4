from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from wheelhouse import Context, Wheels


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    for variable in list(os.environ):
        if variable.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(variable)
    made = Wheels(tmp_path / "wheels")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return made


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """`context(facets)` is a task context in a fresh folder."""
    count = iter(range(1000))

    def make(facets: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> Context:
        return Context(tmp_path / f"task-{next(count)}", facets, params)

    return make
