"""The file that makes a CI system run the gate for every change that somebody wants to merge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness import __version__
from harness.errors import InputError
from harness.package import data_folder

#: CI system -> the template, and the file of a repository in which the system looks for it.
PROVIDERS: Mapping[str, tuple[str, str]] = {
    "gitlab": ("gitlab.yml", ".gitlab/npu-matrix.yml"),
    "gitcode": ("gitcode.yml", ".gitcode/workflows/npu-matrix.yml"),
    "jenkins": ("Jenkinsfile", "Jenkinsfile.npu-matrix"),
}
#: A word that a shell, YAML in double quotes and Groovy in single quotes read as it stands.
_PLAIN = re.compile(r"[A-Za-z0-9@._+=:/~*,-]+")


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """What a pipeline contains.

    verl: for which version launch scripts are linted, as in `lint --verl`. branch: into which changes are
    merged. package: what pip installs. awaiting: outcomes that another job provides, see `gate --awaiting`.
    """

    verl: str = "profile"
    branch: str = "main"
    package: str = f"npu-matrix=={__version__}"
    awaiting: str = "npu"


@dataclass(frozen=True, kw_only=True)
class PipelineFile:
    """A file to write. name: relative to the repository."""

    name: str
    text: str


def pipeline_file(provider: str, options: PipelineOptions) -> PipelineFile:
    """The pipeline of a CI system; InputError for values that cannot stand in it."""
    template, name = PROVIDERS[provider]
    values = {
        "VERL": options.verl,
        "BRANCH": options.branch,
        "PACKAGE": options.package,
        "AWAITING": f'--awaiting "{options.awaiting}"' if options.awaiting else "",
    }
    for what, value in (
        ("the version of verl", options.verl),
        ("the branch", options.branch),
        ("the package", options.package),
        ("what is awaited", options.awaiting or "-"),
    ):
        if not _PLAIN.fullmatch(value):
            raise InputError(
                f"{what} cannot be written into a pipeline: {value!r}",
                why="it has characters that a shell would interpret",
                fix="use letters, digits and @._+=:/~*,-",
            )
    folder = data_folder("workspace/ci/templates")
    text = (folder / template).read_text("utf-8")
    gate = (folder / "gate.sh").read_text("utf-8")
    text = re.sub(r"@GATE@\n", lambda _match: _indented(gate, _indent_of(text)), text)
    for word, value in values.items():
        text = text.replace(f"@{word}@", value)
    return PipelineFile(name=name, text=re.sub(r" +(?=\\\n|\n)", _one_space, text))


def _one_space(match: re.Match[str]) -> str:
    """One blank before a backslash, none at the end of a line."""
    return " " if match.string[match.end()] == "\\" else ""


def _indent_of(text: str) -> str:
    """The indentation of the line before the shell lines of the gate."""
    before = text.partition("@GATE@")[0].rstrip("\n").rpartition("\n")[2]
    return before[: len(before) - len(before.lstrip())]


def _indented(text: str, indent: str) -> str:
    return "".join(f"{indent}{line}\n" for line in text.splitlines())
