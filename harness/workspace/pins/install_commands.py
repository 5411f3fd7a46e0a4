"""The versions that install commands name: in scripts, Dockerfiles, and the shell blocks of a README."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

#: `git clone --depth 1 --branch v0.11.0 https://github.com/vllm-project/vllm.git`.
_CLONE = re.compile(
    r"git\s+clone\s(?=(?:[^&|;]*\s)?(?:-b|--branch)[\s=](?:core_)?v?(?P<version>[0-9][\w.+!]*))"
    r"[^&|;]*?[/:](?P<name>[\w.-]+?)(?:\.git)?(?=[\s&|;]|$)"
)
#: `git checkout tags/v0.9.0` or a commit, in the folder that a `cd` or `git clone` before it names.
_CHECKOUT = re.compile(
    r"git\s+(?:-C\s+(?P<folder>\S+)\s+)?(?:checkout|switch|reset)\s+(?:-\S+\s+)*(?:tags/)?"
    r"(?:(?P<commit>[0-9a-f]{7,40})|(?:core_)?v?(?P<version>\d[\w.+!]*\.[\w.+!]+))(?=[\s;&|)\"']|$)"
)
_FOLDER = re.compile(
    r"(?:\bcd|\bpushd)\s+([^\s;&|)]+)|git\s+clone\s[^&|;]*?[/:]([\w.-]+?)(?:\.git)?(?=[\s&|;]|$)"
)
#: An image that a project publishes for its release: `quay.io/ascend/vllm-ascend:v0.14.0rc1-a3-openeuler`.
#: With another word after the version, such as `-dev`, it is not the release.
_IMAGE = re.compile(
    r"/(?P<name>[a-z][\w.-]*):v?(?P<version>\d+(?:\.\d+)+(?:[.-]?(?:rc|post)\.?\d+)?)"
    r"(?:-(?:a[235]|\d{3}\w?|(?:openeuler|ubuntu|py|cann)[\w.]*|arm64|aarch64|x86_64))*(?=[\s\"'`;&|)]|$)"
)
#: `pip install -q "vllm==0.11.0" \\`, also of uv; what it uninstalls, it does not pin.
_INSTALL = re.compile(r"\b(?:pip[\d.]*|uv)\s+(?:-\S+\s+)*(?:install|add)\s")
_FENCE = re.compile(r"\s*(?:[-*>]\s*)?(?P<fence>`{3,}|~{3,})\s*\{?\.?(?P<language>[\w+-]*)")
#: Languages of blocks that are commands.
_SHELLS = frozenset({"", "bash", "sh", "shell", "console", "zsh", "text", "dockerfile", "docker"})
_ITEM = re.compile(r"\s*[-*+]\s+`?(?P<name>[A-Za-z][\w-]*)\s*==\s*v?(?P<version>\d[\w.+!]*)`?\s*$")
_README = re.compile(r"readme(?:[._-][\w.-]*)?\.md", re.IGNORECASE)

#: The name of a repository, package or image, its version or "@" and a commit, and the line.
NamedVersion = tuple[str, str, int]


def is_readme(path: PurePosixPath) -> bool:
    """Whether a file with this name is a README, also in another language: `README_zh.md`."""
    return _README.fullmatch(path.name) is not None


def script_lines(text: str) -> Iterator[tuple[str, int]]:
    """The lines of a shell script without its comments, and their numbers."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("#"):
            yield line, number


def readme_lines(text: str) -> Iterator[tuple[str, int]]:
    """The lines of the shell blocks of a README without prompts and comments, and their numbers.

    Also items of lists that state a version: `- vllm==0.11.0`.
    """
    fence = ""
    is_shell = False
    for number, line in enumerate(text.splitlines(), start=1):
        found = _FENCE.match(line)
        if fence:
            if found and found["fence"].startswith(fence) and not found["language"]:
                fence = ""
            elif is_shell and not line.lstrip().startswith("# "):
                yield re.sub(r"^\s*[$#>] ", "", line), number
        elif found:
            fence, is_shell = found["fence"], found["language"].lower() in _SHELLS
        elif item := _ITEM.match(line):
            yield f"{item['name']}=={item['version']}", number


def command_pins(lines: Iterable[tuple[str, int]]) -> Iterator[NamedVersion]:
    """What commands clone and check out, and the published images that they name."""
    folder = ""
    for line, number in lines:
        for image in _IMAGE.finditer(line):
            name, version = image["name"], image["version"]
            yield name, cann_version(version) if name == "cann" else version, number
        for command in re.split(r"&&|[;|]", line):
            for clone in _CLONE.finditer(command):
                yield clone["name"], clone["version"].rstrip(","), number
            entered, checkout = _FOLDER.search(command), _CHECKOUT.search(command)
            if checkout:
                name = PurePosixPath((checkout["folder"] or folder).strip("\"'")).name
                commit = checkout["commit"]
                if name:
                    yield name, f"@{commit}" if commit else checkout["version"], number
            elif entered:
                folder = entered[1] or entered[2]


def installed_lines(lines: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """What the lines of a script install with pip or uv, without the commands before that, and the lines."""
    goes_on = False
    for line, number in lines:
        for command in re.split(r"&&|[;|]", line):
            start = _INSTALL.search(command)
            if start or goes_on:
                yield command[start.end() if start else 0 :], number
            goes_on = bool(start or goes_on) and command.endswith("\\")


def cann_version(text: str) -> str:
    """CANN writes its release candidates as RC: `8.3.rc1` -> `8.3.RC1`."""
    return re.sub(r"\.rc(?=\d)", ".RC", text)
