"""The registry of runtime patches: recorded on the host, compared inside a cell."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.app import main
from harness.fixtures.runtime_patches import RuntimePatches, TargetMovedError, probe, source_digest

ROOT = Path(__file__).parents[3]
PATCHING = {
    "ours/patch.py": b"from up.api import Engine\nimport up.core\n\n\ndef step(self, x):\n    return x\n\n\n"
    b"Engine.step = step\nup.core.run = step\nup.core.brand_new = step\n",
}
V1 = {
    "up/__init__.py": b"",
    "up/api.py": b"from up.core import Engine\n",
    "up/core.py": b"class Engine:\n    def step(self, x):\n        return x + 1\n\n\ndef run(self, x):\n    return 2\n",
    "up-1.0+empty.dist-info/METADATA": b"Metadata-Version: 2.1\nName: up\nVersion: 1.0+empty\n",
}
CORE = V1["up/core.py"]


def wheel(folder: Path, files: dict[str, bytes], name: str) -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return folder / name


def version2(core: bytes) -> dict[str, bytes]:
    files = {path: data for path, data in V1.items() if "METADATA" not in path}
    return {**files, "up/core.py": core, "up-2.0.dist-info/METADATA": b"Name: up\nVersion: 2.0\n"}


@pytest.fixture
def runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    patching = wheel(tmp_path, PATCHING, "ours-1.0-py3-none-any.whl")

    def run(files: dict[str, bytes], *more: object, code: int = 0) -> str:
        upstream = wheel(tmp_path, files, "up.whl")
        arguments = ["patches", "runtime", str(patching), "--against", str(upstream), "--package", "up"]
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(tmp_path), *arguments, *map(str, more)])
        message = capsys.readouterr()
        assert stopped.value.code == code, message
        return message.out or message.err

    return run


def test_unchanged_targets_are_counted(runtime: Any) -> None:
    assert "3 runtime patches, 2 found, 1 added; 0 problems" in runtime(V1)
    found = json.loads(runtime(V1, "--json"))
    assert found["schema"] == {"name": "npu-matrix/patch-runtime", "version": 1}
    assert found["version"] == "1.0"
    [engine] = [one for one in found["patches"] if one["target"] == "up.api.Engine.step"]
    assert (engine["path"], engine["name"], engine["state"]) == ("up/core.py", "Engine.step", "found")


@pytest.mark.parametrize(
    ("core", "what"),
    [
        (CORE.replace(b"def run", b"def go"), "up.core.run existed in 1.0 and was removed"),
        (
            CORE.replace(b"run(self, x)", b"run(self)"),
            "up.core.run took (self, x) in 1.0 and now takes (self)",
        ),
        (CORE.replace(b"class Engine", b"class Motor"), "up.core.Engine no longer exists"),
    ],
    ids=["renamed", "other arguments", "class gone"],
)
def test_targets_that_moved_since_recording_are_problems(
    runtime: Any, tmp_path: Path, core: bytes, what: str
) -> None:
    registry = tmp_path / "registry.json"
    runtime(V1, "--record", registry)
    assert "0 problems" in runtime(V1, "--registry", registry)
    assert what in runtime(version2(core), "--registry", registry, code=1)


def test_a_registry_keeps_every_version_in_a_fixed_order(runtime: Any, tmp_path: Path) -> None:
    registry = tmp_path / "registry.json"
    runtime(V1, "--record", registry)
    runtime(version2(CORE), "--record", registry)
    first = registry.read_bytes()
    runtime(V1, "--record", registry)
    assert registry.read_bytes() == first
    assert set(json.loads(first)["targets"]["up.core.run"]) == {"1.0", "2.0"}


def test_invalid_input_is_reported(runtime: Any, tmp_path: Path) -> None:
    registry = tmp_path / "registry.json"
    for text in ("{}", "[", '{"schema": {"name": "x", "version": 1}, "package": "up", "targets": {}}'):
        registry.write_text(text)
        assert "this is not a registry" in runtime(V1, "--registry", registry, code=2)
    nameless = {path: data for path, data in V1.items() if "METADATA" not in path}
    assert "--version" in runtime(nameless, "--record", tmp_path / "new.json", code=2)
    assert "nothing in" in runtime(V1, "--below", "elsewhere", code=3)


def installed(folder: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("core", "states"),
    [
        (CORE, {"same"}),
        (b"import os\n\n\n" + CORE, {"same"}),
        (CORE.replace(b"return 2", b"return 3"), {"same", "changed"}),
        (CORE.replace(b"def run", b"def go"), {"same", "moved"}),
    ],
    ids=["same", "moved down", "another body", "renamed"],
)
def test_inside_a_cell_the_source_is_compared_with_the_registry(
    runtime: Any, tmp_path: Path, core: bytes, states: set[str]
) -> None:
    registry = tmp_path / "registry.json"
    runtime(V1, "--record", registry)
    site = installed(tmp_path / "site", {**V1, "up/core.py": core})
    done = subprocess.run(
        [sys.executable, "-m", "harness.fixtures.runtime_patches", registry, tmp_path / "report.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{site}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert {one["state"] for one in report["targets"]} == states
    assert report["ok"] == (states == {"same"})
    assert ("of version 1.0+empty" in done.stdout) == (states != {"same"})
    other = probe(json.loads(registry.read_text()), [str(site)], "9.9")
    assert {one["state"] for one in other["targets"]} == {"unknown-version"}


def test_either_all_targets_are_patched_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "up_for_runtime_patches"
    core = b"def run(x):\n    return 1\n\n\nclass Engine:\n    def step(self):\n        return 1\n"
    installed(tmp_path, {f"{package}/__init__.py": b"", f"{package}/core.py": core})
    monkeypatch.syspath_prepend(str(tmp_path))

    def patches(version: str, digest: str) -> RuntimePatches:
        made = RuntimePatches(version=lambda _package: version)
        good = source_digest(core, "Engine.step")

        @made.replaces(f"{package}.core.Engine.step", expected={"1.0": good})
        def step(self: object) -> int:
            return 2

        @made.replaces(f"{package}.core.run", expected={"1.0": digest})
        def run(x: int) -> int:
            return 2 * x

        return made

    right = source_digest(core, "run")
    for version, digest, why in (("1.0", "0" * 64, "another source"), ("1.1", right, "not recorded")):
        with pytest.raises(TargetMovedError, match=why):
            patches(version, digest).apply()
    module = __import__(f"{package}.core", fromlist=["core"])
    assert (module.run(4), module.Engine().step()) == (1, 1)
    made = patches("1.0", right)
    assert made.problems() == ["these patches have not been applied"]
    made.apply()
    assert (module.run(4), module.Engine().step()) == (8, 2)
    assert made.problems() == []
    module.run = len
    assert made.problems() == [f"{package}.core.run was replaced again, by {len!r}"]


@given(st.binary(max_size=200), st.text(max_size=20))
def test_any_source_and_name_have_a_digest_or_none(source: bytes, name: str) -> None:
    assert len(source_digest(source, name)) in {0, 64}
