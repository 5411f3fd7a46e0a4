"""A repository with a matrix and one patch of verl, and a mirror of verl: for gates after real runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from harness.cli.gate_command import command
from harness.cli.run_command import command as run_command
from harness.plan.tasks.check_registry import all_checks
from harness.settings import Settings, load_settings

MATRIX = """\
format: 1
axes:
  verl: {{title: verl, scheme: pep440, package: verl, source: a test, repository: "https://example.org/verl.git"}}
  python: {{title: Python, scheme: python, source: a test}}
  device: {{title: device, scheme: name, source: a test, values: {{sim: {{title: simulated}}}}}}
profiles:
  default:
    title: a test
    without: {without}
    select:
      - product: {{verl: ["0.7.0.dev0@{commit}"]}}
        with: {{python: host, device: sim}}
"""
HEADER = """\
Subject: a test
Why: a test
Owner: tests
Upstream-Status: Pending
Upstream-Url: none (a test)
Applies-To: >=0.6.1,<=0.9.1
Guarded-By: patches
Review-By: 2099-01-01
Body: all.patch >=0.6.1,<=0.9.1
"""
#: All other checks need an index or an environment.
WITHOUT = {check.name: "the test has no index" for check in all_checks() if check.name != "patches"}


def patch_of(line: str, added: str) -> str:
    """A patch of `verl/core.py` that adds a line after `line`."""
    return f"diff --git a/verl/core.py b/verl/core.py\n--- a/verl/core.py\n+++ b/verl/core.py\n@@ -1 +1,2 @@\n {line}\n+{added}\n"


def git(folder: Path, *arguments: str) -> str:
    """Run git, and return what it prints."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


class GateCheckout:
    """A repository with a matrix and one patch of verl, and a mirror that has verl's commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        upstream = folder / "mirrors" / "verl"
        (upstream / "verl").mkdir(parents=True)
        (upstream / "verl" / "core.py").write_text("a = 1\n")
        git(upstream, "init", "-q", "-b", "main")
        git(upstream, "add", "-A")
        git(upstream, "commit", "-q", "-m", "x")
        self.root = folder / "checkout"
        self.patch = self.root / "patches" / "verl" / "b"
        self.patch.mkdir(parents=True)
        (self.root / "matrix.yaml").write_text(
            MATRIX.format(commit=git(upstream, "rev-parse", "HEAD"), without=json.dumps(WITHOUT))
        )
        (self.root / ".gitignore").write_text(".npu-matrix\nreports\n")
        (self.patch / "PATCH").write_text(HEADER)
        (self.patch.parent / "series").write_text("b\n")
        self.write(patch_of("a = 1", "b = 1"))
        git(self.root, "init", "-q", "-b", "main")
        self.commit()

    def write(self, text: str) -> None:
        """Write the patch."""
        (self.patch / "all.patch").write_text(text)

    def commit(self) -> None:
        """Commit all files."""
        git(self.root, "add", "-A")
        git(self.root, "commit", "-q", "-m", "x")

    def settings(self, *, mirrors: bool = True) -> Settings:
        """The settings of the checkout."""
        flags = {"cache": str(self.folder / "cache")}
        if mirrors:
            flags["mirrors"] = str(self.folder / "mirrors")
        return load_settings(flags, {}, self.root)

    def run(self, *, mirrors: bool = True) -> int:
        """Run the profile; the exit code."""
        return int(self.invoke(run_command, [], mirrors=mirrors).return_value)

    def invoke(self, what: click.Command, arguments: Sequence[str], *, mirrors: bool = True) -> Result:
        """Run a command."""
        settings = self.settings(mirrors=mirrors)
        found = CliRunner().invoke(
            what, arguments, obj=settings, standalone_mode=False, env=settings.exported()
        )
        if found.exception:
            raise found.exception
        return found

    def gate(self, *arguments: str, mirrors: bool = True) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """The exit code, the item of `patches`, and the report."""
        found = self.invoke(
            command,
            ["--base", "main", "--json", *arguments],
            mirrors=mirrors,
        )
        report = json.loads(found.stdout)
        assert report["exit_code"] == found.return_value
        (item,) = [item for item in report["items"] if item["check"] == "patches"]
        return int(found.return_value), item, report
