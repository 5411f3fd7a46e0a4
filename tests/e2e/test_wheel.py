"""The wheel is complete: what a checkout reads outside of the package is in it, and keys are the same."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from installed_wheel import InstalledWheel

ROOT = Path(__file__).parents[2]


def test_everything_that_the_checkout_reads_is_in_the_wheel(installed: InstalledWheel) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    tracked = subprocess.run(
        [
            "git",
            "-C",
            str(ROOT),
            "ls-files",
            "matrix.yaml",
            "patches",
            "docs/en",
            "docs/zh",
            "docs/schema",
            "docker",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert [name for name in tracked if f"harness/shipped/{name}" not in names] == []
    package = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "harness"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in package if name not in names and (ROOT / name).is_file()] == []


def test_the_metadata_names_pythons_authors_licence_and_the_pytest_plugin(installed: InstalledWheel) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        [metadata] = [
            name
            for name in archive.namelist()
            if name.startswith("npu_matrix-") and name.endswith("METADATA")
        ]
        found = Parser().parsestr(archive.read(metadata).decode())
        points = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    classifiers = found.get_all("Classifier") or []
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers
    assert found["License-Expression"] == "Apache-2.0"
    assert found["License-File"] == "LICENSE"
    assert found["Author"]
    assert {"ray", "docker", "compiler"} <= set(found.get_all("Provides-Extra") or [])
    assert found["Description-Content-Type"] == "text/markdown"
    assert "[pytest11]" in points
    assert "harness.fixtures.plugin" in points


def test_keys_from_the_wheel_are_those_from_the_checkout(installed: InstalledWheel, tmp_path: Path) -> None:
    options = ("--state", str(tmp_path / "state"), "--profile", "full", "plan", "--json")
    there = json.loads(installed.run(*options, cwd=tmp_path).stdout)
    here = json.loads(
        subprocess.run(
            [sys.executable, "-m", "harness", *options], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
    )
    keys = {task["key"] for task in here["tasks"]}
    assert len(keys) > 100
    assert {task["key"] for task in there["tasks"]} == keys


def test_an_empty_folder_uses_the_shipped_matrix_but_run_and_gate_do_not(
    installed: InstalledWheel, tmp_path: Path
) -> None:
    done = installed.run("explain", "gspo-qwen25-3b", cwd=tmp_path)
    assert "using the one of npu-matrix" in done.stderr
    for command in (["run"], ["gate", "--base", "main"]):
        refused = installed.run(*command, cwd=tmp_path, code=2)
        assert "npu-matrix init" in refused.stderr
    assert "not" not in installed.run("matrix", "validate", cwd=tmp_path).stdout.split()[:1]


def test_the_demo_runs_from_anywhere(installed: InstalledWheel, tmp_path: Path) -> None:
    done = installed.run("demo", "--only", "verl-0-6-1-sim*", "--check", "resolve,patches,api", cwd=tmp_path)
    assert "exit 0" in done.stdout
    assert (tmp_path / "npu-matrix-demo/reports/index.html").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["npu-matrix-demo"]
    # Commands that the demo and its report print work in its folder, and reuse what it stored.
    folder = tmp_path / "npu-matrix-demo"
    again = installed.run("run", "--only", "verl-0-6-1-sim*", "--check", "resolve,patches,api", cwd=folder)
    assert "0 executed" in again.stdout
    plan = installed.run("plan", "--only", "verl-0-6-1-sim*", cwd=folder).stdout
    cell = next(word for word in plan.split() if word.startswith("verl-0-6-1-sim"))
    assert "torch==" in installed.run("lock", cell, cwd=folder).stdout
    refused = installed.run("lock", cell, cwd=tmp_path, code=3)
    assert f"npu-matrix demo --folder . --only {cell} --check resolve" in refused.stderr
    (tmp_path / "own").mkdir()
    (tmp_path / "own/matrix.yaml").write_text("format: 1\n")
    assert "matrix.yaml of its own" in installed.run("demo", "--folder", "own", cwd=tmp_path, code=2).stderr
