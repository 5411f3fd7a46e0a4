"""A small runner of GitHub Actions workflows. It runs each job in its own clone, on this machine only.

It supports `run` steps under bash with GitHub's options, environment variables, outputs, names in `${{ }}`, the
step condition `always()`, and the actions that this repository's workflows use (checkout, setup-python,
artifacts, cache). Steps that install packages are skipped, because the code under test is already importable.
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
from git_command import git

ROOT = Path(__file__).parents[2]
CHOICE = re.compile(r"(?P<name>\S+) == '(?P<is>[^']*)' && '(?P<then>[^']*)'")
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def load(file: Path) -> dict[str, Any]:
    """Read the file of a workflow or an action."""
    data: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return data


@dataclass
class JobResult:
    """How a job ended: the step that failed ("" for none), its printed text, and its outputs."""

    failed: str = ""
    output: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


class Runner:
    """Runs jobs of one repository. Artifacts belong to one run; the cache is kept between runs."""

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
        """Start a new run, without the artifacts of the previous one."""
        shutil.rmtree(self.artifacts, ignore_errors=True)

    def job(
        self, flow: Mapping[str, Any], name: str, context: Mapping[str, Any], *, revision: str
    ) -> JobResult:
        """Run a job at a revision. context: the values that `${{ }}` can refer to, by dotted name."""
        self._jobs += 1
        checkout = self.folder / f"job-{self._jobs}"
        git(self.folder, "clone", "-q", str(self.origin), str(checkout))
        git(checkout, "checkout", "-q", "--detach", revision)
        body = flow["jobs"][name] if "jobs" in flow else flow["runs"]
        environ = {**self.environ, **self._expanded(flow.get("env", {}), context)}
        result = JobResult()
        scratch = checkout.with_name(f"{checkout.name}-tmp")
        scratch.mkdir()
        steps: dict[str, Any] = {**context, "runner.temp": str(scratch)}
        for step in body["steps"]:
            if result.failed and "always()" not in step.get("if", ""):
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
        outputs, summary = (checkout.with_name(f"{checkout.name}-{kind}") for kind in ("out", "sum"))
        outputs.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=checkout,
            env={
                **environ,
                **self._expanded(step.get("env", {}), context),
                "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(summary),
                "RUNNER_TEMP": context["runner.temp"],
            },
            capture_output=True,
            text=True,
            check=False,
        )
        pairs = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        return done.returncode, done.stdout + done.stderr, pairs

    def _use(self, step: Mapping[str, Any], checkout: Path, context: Mapping[str, Any]) -> None:
        action = step["uses"].partition("@")[0]
        inputs = self._expanded(step.get("with", {}), context)
        if action == "actions/upload-artifact":
            for path in inputs["path"].split():
                _copy(checkout, path, self.artifacts / inputs["name"])
        elif action == "actions/download-artifact":
            target = checkout / inputs.get("path", ".")
            for artifact in sorted(self.artifacts.glob(inputs.get("pattern", inputs.get("name", "*")))):
                folder = target / artifact.name if "pattern" in inputs else target
                shutil.copytree(artifact, folder, dirs_exist_ok=True)
        elif action == "actions/cache/save":
            for path in inputs["path"].split():
                _copy(checkout, path, self.cache)
        elif action == "actions/cache/restore" and self.cache.is_dir():
            shutil.copytree(self.cache, checkout, dirs_exist_ok=True)
        elif action not in {"actions/checkout", "actions/setup-python", "actions/cache/restore"}:
            raise AssertionError(f"this runner does not support {action}")

    def _expanded(self, values: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, str]:
        return {
            name: EXPRESSION.sub(lambda match: _value(match[1], context), str(value))
            for name, value in values.items()
        }


def _value(expression: str, context: Mapping[str, Any]) -> str:
    for part in expression.split(" || "):
        choice = CHOICE.fullmatch(part)
        if choice:
            value = choice["then"] if context.get(choice["name"], "") == choice["is"] else ""
        else:
            value = part[1:-1] if part.startswith("'") else context.get(part, "")
        if value:
            return str(value)
    return ""


def _copy(checkout: Path, path: str, target: Path) -> None:
    source = checkout / path
    copy = target / (source.name if Path(path).is_absolute() else path)
    if source.is_dir():
        shutil.copytree(source, copy, dirs_exist_ok=True)
    elif source.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)
