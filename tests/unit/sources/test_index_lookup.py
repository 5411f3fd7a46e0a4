"""How uv is asked which files the index has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.sources.packages.index_lookup import PackageIndex
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.release_archive import TargetPlatform


@pytest.mark.parametrize("target", [TargetPlatform(python="3.9", arch="aarch64"), None])
def test_no_interpreter_of_the_targets_version_is_searched(
    wheels: Any,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: TargetPlatform | None,
) -> None:
    """With pyenv, asking each of its `python3.9` in turn takes seconds, for every lookup."""
    wheels.add("big", "1.0")
    tried = tmp_path / "tried"
    for name in ("python3.9", "python3.11", "python3", "python"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} >> {tried}\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    index = PackageIndex(settings=index_environment(os.environ), command=context({}).command)
    (file,) = index.files(["big==1.0"], target)
    assert file.version == "1.0"
    assert not tried.exists(), tried.read_text()
