"""A small GitHub Actions: runs the steps of a workflow that can run here, each job in a clone of its own.

What it knows: `run` steps under bash as GitHub starts it, environment and outputs, names in `${{ }}`, step
conditions `always()`, and the actions of this repository's workflows (checkout, setup-python, artifacts,
cache). Installing is left out: what is under test is already importable. Nothing leaves this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHOICE = re.compile(r"(?P<name>\S+) == '(?P<is>[^']*)' && '(?P<then>[^']*)'")
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def load(file: Path) -> dict[str, Any]:
    """A workflow or an action."""
    data: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return data


@dataclass
class JobResult:
    """How a job ended: which step failed ("" for none), what it printed, and its outputs."""

    failed: str = ""
    output: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


class Runner:
    """One repository's runs: artifacts of the run, and a cache that outlives it."""

    def __init__(self, folder: Path, origin: Path, environ: Mapping[str, str]) -> None:
        self.folder, self.origin = folder, origin
        self.cache = folder / "cache"
        self.artifacts = folder / "artifacts"
        self._jobs = 0
        tools = folder / "tools"
        tools.mkdir(parents=True)
        program = tools / "npu-matrix"
        program.write_text(f'#!/bin/bash\nexec "{sys.executable}" -m harness "$@"\n')
        program.chmod(0o755)
        (tools / "python").symlink_to(sys.executable)
        self.tools = tools
        self.environ = {
            **{name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ},
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **environ,
        }

    def new_run(self) -> None:
        """Artifacts belong to one run."""
        shutil.rmtree(self.artifacts, ignore_errors=True)

    def job(
        self, flow: Mapping[str, Any], name: str, context: Mapping[str, Any], *, revision: str
    ) -> JobResult:
        """Run a job at a revision; `context` holds what `${{ }}` may name, by dotted name."""
        self._jobs += 1
        checkout = self.folder / f"job-{self._jobs}"
        git("clone", "-q", str(self.origin), str(checkout), cwd=self.folder)
        git("checkout", "-q", "--detach", revision, cwd=checkout)
        body = flow["jobs"][name] if "jobs" in flow else flow["runs"]
        environ = {**self.environ, **self._expanded(flow.get("env", {}), context)}
        result = JobResult()
        steps: dict[str, Any] = dict(context)
        for step in body["steps"]:
            if result.failed and step.get("if") != "always()":
                continue
            if "uses" in step:
                self._use(step, checkout, steps)
                continue
            if "pip install" in step["run"]:
                continue
            code, output, outputs = self._run(step, checkout, environ, steps)
            result.output += output
            steps |= {f"steps.{step.get('id')}.outputs.{key}": value for key, value in outputs.items()}
            if code:
                result.failed = f"{step.get('name', step['run'][:40])}: {code}"
        result.outputs = self._expanded(body.get("outputs", {}), steps)
        return result

    def _run(
        self, step: Mapping[str, Any], checkout: Path, environ: Mapping[str, str], context: Mapping[str, Any]
    ) -> tuple[int, str, dict[str, str]]:
        outputs, summary, scratch = (
            checkout.with_name(f"{checkout.name}-{kind}") for kind in ("out", "sum", "tmp")
        )
        outputs.write_text("")
        scratch.mkdir(exist_ok=True)
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=checkout,
            env={
                **environ,
                **self._expanded(step.get("env", {}), context),
                "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(summary),
                "RUNNER_TEMP": str(scratch),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        pairs = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        return done.returncode, done.stdout + done.stderr, pairs

    def _use(self, step: Mapping[str, Any], checkout: Path, context: Mapping[str, Any]) -> None:
        action = step["uses"].partition("@")[0]
        given = self._expanded(step.get("with", {}), context)
        if action == "actions/upload-artifact":
            for path in given["path"].split():
                _copy(checkout, path, self.artifacts / given["name"])
        elif action == "actions/download-artifact":
            target = checkout / given.get("path", ".")
            for found in sorted(self.artifacts.glob(given.get("pattern", given.get("name", "*")))):
                inside = target / found.name if "pattern" in given else target
                shutil.copytree(found, inside, dirs_exist_ok=True)
        elif action == "actions/cache/save":
            _copy(checkout, given["path"], self.cache)
        elif action == "actions/cache/restore" and self.cache.is_dir():
            shutil.copytree(self.cache, checkout, dirs_exist_ok=True)
        elif action not in {"actions/checkout", "actions/setup-python", "actions/cache/restore"}:
            raise AssertionError(f"this runner does not know {action}")

    def _expanded(self, values: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, str]:
        return {
            name: EXPRESSION.sub(lambda found: _value(found[1], context), str(value))
            for name, value in values.items()
        }


def _value(expression: str, context: Mapping[str, Any]) -> str:
    for part in expression.split(" || "):
        chosen = CHOICE.fullmatch(part)
        if chosen:
            found = chosen["then"] if context.get(chosen["name"], "") == chosen["is"] else ""
        else:
            found = part[1:-1] if part.startswith("'") else context.get(part, "")
        if found:
            return str(found)
    return ""


def _copy(checkout: Path, path: str, target: Path) -> None:
    source = checkout / path
    if source.is_dir():
        shutil.copytree(source, target / path, dirs_exist_ok=True)
    elif source.is_file():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / path)


def git(*arguments: str, cwd: Path) -> str:
    """git with an identity of its own."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.strip()
