"""A repository with a matrix and one patch of verl, and a mirror of verl: for gates after real runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from git_command import commit_all
from patched_checkout import added_line, matrix_of_patches, write_patch

from harness.cli.gate_command import command
from harness.cli.run_command import command as run_command
from harness.settings import Settings, load_settings


def patch_of(line: str, added: str) -> str:
    """A patch of `verl/core.py` that adds a line after `line`."""
    return added_line("verl/core.py", line, added)


class GateCheckout:
    """A repository with a matrix and one patch of verl, and a mirror that has verl's commit.

    parsed_code: what the cache contains from the beginning.
    """

    def __init__(self, folder: Path, parsed_code: Path | None = None) -> None:
        self.folder = folder
        if parsed_code:
            shutil.copytree(parsed_code, folder / "cache" / parsed_code.name)
        upstream = folder / "mirrors" / "verl"
        (upstream / "verl").mkdir(parents=True)
        (upstream / "verl" / "core.py").write_text("a = 1\n")
        commit = commit_all(upstream)
        self.root = folder / "checkout"
        self.patch = self.root / "patches" / "verl" / "b"
        write_patch(self.patch, patch_of("a = 1", "b = 1"), guard="patches")
        (self.root / "matrix.yaml").write_text(matrix_of_patches([f"0.7.0.dev0@{commit}"]))
        (self.root / ".gitignore").write_text(".npu-matrix\nreports\n")
        self.commit()

    def write(self, text: str) -> None:
        """Write the patch."""
        (self.patch / "all.patch").write_text(text)

    def commit(self) -> None:
        """Commit all files."""
        commit_all(self.root)

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


@pytest.fixture(scope="session")
def parsed_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a cache stores of the code of npu-matrix. Reading all modules takes seconds, in every new cache."""
    made = GateCheckout(tmp_path_factory.mktemp("parsed-code"))
    made.run()
    made.gate()
    return made.folder / "cache" / "code"
