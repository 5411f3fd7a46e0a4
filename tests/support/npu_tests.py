"""Runs tests/npu inside a cell, in a virtual environment or a container, and returns the result of each test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from harness.builds.engines.container_run import PREFIX
from harness.sources.packages.index_settings import index_environment, uv_binary
from harness.sources.packages.uv_settings import write_uv_settings

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("pytest", "pytest-timeout", "hypothesis")
RESULTS = {"failure": "failed", "error": "error", "skipped": "skipped"}
# (module, its arguments) -> command line and variables to add, as `harness.builds.cell.cell_command` returns them
Command = Callable[..., tuple[list[str], dict[str, str]]]


def install_pytest(folder: Path) -> Path:
    """Install pytest into a separate folder, so that the packages of the cells stay as they were locked."""
    settings = index_environment(os.environ)
    argv = [uv_binary(), "pip", "install", "--quiet", "--target", str(folder), "--python", sys.executable]
    environ = {**os.environ, **settings.uv_environment()}
    folder.mkdir(parents=True, exist_ok=True)
    write_uv_settings(folder, settings.uv_file())
    subprocess.run([*argv, *settings.uv_arguments(), *PACKAGES], check=True, env=environ, cwd=folder)
    return folder


def run_npu_tests(
    command: Command, folder: Path, *arguments: str, only: Sequence[str] = ("",)
) -> tuple[dict[str, str], str]:
    """Run tests/npu in a cell. Returns test -> `passed`, `failed`, `error` or `skipped`, and the output.

    Everything that the tests read is copied into `folder`, which is mounted into a container. only: files of
    tests/npu to run.
    """
    tests = folder / "tests/npu"
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    shutil.copytree(REPOSITORY / "tests/npu", tests, ignore=ignored)
    shutil.copytree(REPOSITORY / "patches", folder / "patches", ignore=ignored)
    pytest_folder, result = install_pytest(folder / "pytest"), folder / "junit.xml"
    argv, variables = command(
        "pytest",
        *(str(tests / name) for name in only),
        *("-q", "-p", "no:cacheprovider", f"--junitxml={result}", *arguments),
    )
    # With a container, variables of the program inside have a prefix.
    name = next(name for name in (PREFIX + "PYTHONPATH", "PYTHONPATH") if name in variables)
    variables[name] += f"{os.pathsep}{pytest_folder}"
    # Without pytest's variables this is a separate test run, which does not wait for simulated cards of other runs.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        argv, env={**environ, **variables}, cwd=folder, capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    return (results(result.read_text("utf-8")) if result.is_file() else {}), output


def results(junit: str) -> dict[str, str]:
    """Test -> result, from a JUnit file. A problem wins if the file lists a test twice."""
    by_test: dict[str, str] = {}
    for case in ET.fromstring(junit).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        problems = [RESULTS[child.tag] for child in case if child.tag in RESULTS]
        if problems or name not in by_test:
            by_test[name] = problems[0] if problems else "passed"
    return by_test


def differences(one: str, left: Mapping[str, str], other: str, right: Mapping[str, str]) -> list[str]:
    """The tests whose results differ between two engines, each with both results."""
    return [
        f"{test}: {left.get(test, 'not run')} with {one}, {right.get(test, 'not run')} with {other}"
        for test in sorted(left.keys() | right.keys())
        if left.get(test) != right.get(test)
    ]
