"""Collects the versions of packages that a log shows: banners, lists of packages, paths and file names.

Only what was installed or running counts. A requirement (`requires torch==2.7.1`), the version in a model's
configuration and a version that a package manager only considered do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

#: Package -> the axis of the matrix with the same meaning, where the names differ.
AXES = {
    "vllm-ascend": "vllm_ascend",
    "torch-npu": "torch_npu",
    "triton-ascend": "triton_ascend",
    "glibc": "glibc",
}
VERSION = r"v?\d+(?:\.\w+){1,5}(?:[+@-][\w.]+)?"
NUMBER = rf"(?P<version>{VERSION})"
NAME = r"(?P<name>[A-Za-z][\w.-]{1,60}?)"

# Name of the package in a banner -> the package.
BANNERS = {
    "vllm": "vllm",
    "vllm api server": "vllm",
    "vllm ascend": "vllm-ascend",
    "vllm-ascend": "vllm-ascend",
    "llm engine": "vllm",
    "pytorch": "torch",
    "torch": "torch",
    "torch_npu": "torch-npu",
    "torch-npu": "torch-npu",
    "transformers": "transformers",
    "`transformers`": "transformers",
    "`accelerate`": "accelerate",
    "`peft`": "peft",
    "ray": "ray",
    "verl": "verl",
    "mindspeed": "mindspeed",
    "python": "python",
    "cann": "cann",
    "libc": "glibc",
    "glibc": "glibc",
    "numpy": "numpy",
    "llamafactory": "llamafactory",
    "`llamafactory`": "llamafactory",
    "swift": "ms-swift",
    "triton": "triton",
    "triton-ascend": "triton-ascend",
}
_BANNER = "|".join(sorted(map(re.escape, BANNERS), key=len, reverse=True))
PATTERNS = (
    # collect_env, `transformers env`, reports: `PyTorch version: 2.5.1+cpu`, `- CANN: 8.1.RC1`.
    re.compile(
        rf"(?:^|[\s|*-])(?P<banner>{_BANNER})(?:[ _-]?version)?\s*[:=|]\s*(?:glibc-)?[\"']?{NUMBER}",
        re.IGNORECASE,
    ),
    # vLLM: `Initializing a V1 LLM engine (v0.9.1) with config`, `vLLM API server version 0.9.1`.
    re.compile(rf"\b(?P<banner>LLM engine) \({NUMBER}\)"),
    re.compile(rf"\b(?P<banner>vLLM API server) version {NUMBER}"),
    # collect_env: `[pip3] torch==2.5.1`, `[conda] torch 2.5.1 pypi_0 pypi`.
    re.compile(rf"\[(?:pip3?|conda)\]\s+{NAME}(?:==|\s+){NUMBER}"),
    # pip freeze.
    re.compile(rf"^{NAME}=={NUMBER}\s*$"),
    re.compile(
        r"Requirement already satisfied: "
        + NAME
        + r"(?:\[[\w,]+\])?[<>=!~]\S* in .{1,300}\((?P<version>"
        + VERSION
        + r")\)\s*$"
    ),
    # pip's check: `vllm-ascend 0.11.0rc1 requires torch==2.7.1, but you have torch 2.8.0`.
    re.compile(rf"(?:^|ERROR: ){NAME} {NUMBER} requires \S.{{0,200}}, but you have "),
    re.compile(rf", but you have {NAME} {NUMBER} which is incompatible"),
    # Paths: `site-packages/vllm-0.9.1+empty.dist-info`, `torch_npu-2.5.1-py3.10-linux-aarch64.egg`.
    re.compile(rf"/{NAME}-{NUMBER}(?:\.dist-info|\.egg-info|-py\d\.\d+)"),
    # CANN: the installation's file, and its folder.
    re.compile(
        r"(?P<banner>cann)[-/](?:ascend-toolkit/)?(?P<version>\d+\.\d+\.(?:RC|T|\d)\w*(?:\.\w+)?)/",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<cann>ascend-toolkit)/(?P<version>\d+\.\d+\.(?:RC|T|\d)\w*(?:\.\w+)?)\b"),
    re.compile(r"package_name=Ascend-(?P<cann>cann)-toolkit.{0,40}version=(?P<version>\d[\w.]+)"),
    re.compile(r"(?P<python>python)(?P<version>3\.\d{1,2})/(?:site|dist)-packages/"),
)
# pip's own results, which replace what was installed before.
INSTALLED = "Successfully installed "
INSTALLED_PART = re.compile(rf"^{NAME}-{NUMBER}$")
TABLE_HEAD = re.compile(r"^Package\s{2,}Version\b")
TABLE_RULE = re.compile(r"^-{3,}\s+-{3,}")
TABLE_ROW = re.compile(rf"^{NAME}\s+{NUMBER}(?:\s+\S.*)?$")
#: Every line that `LoggedVersions.read` can use contains one of these, except for the rows of a table.
NEEDLES = (
    "LLM engine (v",
    "API server version",
    " version: ",
    " Version: ",
    "Package    ",
    "[pip3] ",
    "[conda] ",
    "already satisfied: ",
    "Successfully installed ",
    ", but you have ",
    ".dist-info",
    ".egg-info",
    "ascend-toolkit/",
    "package_name=Ascend-cann",
    "site-packages/",
    "dist-packages/",
    *(
        f"\n{name}=="
        for name in ("verl", "vllm", "vllm-ascend", "vllm_ascend", "torch", "torch-npu", "torch_npu")
    ),
    *(f"\n{name}==" for name in ("transformers", "tensordict", "triton-ascend", "triton", "numpy", "peft")),
    *(f"\n{name}==" for name in ("mindspeed", "megatron-core", "mbridge", "accelerate", "torchvision")),
)
MOST = 400


@dataclass(frozen=True, kw_only=True)
class LoggedVersion:
    """The version of a package and the line that shows it, 0 if it was given."""

    package: str
    version: str
    line: int


#: Package -> its version, as the log shows it.
ShownVersions = Mapping[str, LoggedVersion]


@dataclass(kw_only=True)
class LoggedVersions:
    """Reads lines in order. A package that is shown in two versions is left out of `known`."""

    _shown: dict[str, list[LoggedVersion]] = field(default_factory=dict)
    _in_table: bool = False
    _lines: int = 0

    @property
    def busy(self) -> bool:
        """Whether the next lines belong to a table of packages."""
        return self._in_table

    def read(self, body: str, line: int) -> None:
        """Read a line without its prefixes."""
        text = body.strip()
        if self._in_table and self._row(text, line):
            return
        if TABLE_HEAD.match(text):
            self._in_table = True
            return
        if text.startswith(INSTALLED):
            for part in text.removeprefix(INSTALLED).split():
                found = INSTALLED_PART.match(part)
                if found:
                    # What pip has just installed replaces what was there.
                    self._shown.pop(canonicalize_name(found["name"]), None)
                    self._add(found["name"], found["version"], line)
            return
        for pattern in PATTERNS:
            for found in pattern.finditer(text):
                self._add(_package(found), found["version"], line)

    def _row(self, text: str, line: int) -> bool:
        if TABLE_RULE.match(text):
            return True
        found = TABLE_ROW.match(text)
        if found:
            self._add(found["name"], found["version"], line)
        self._in_table = found is not None
        return self._in_table

    def _add(self, name: str, version: str, line: int) -> None:
        package = canonicalize_name(name)
        if package not in self._shown and len(self._shown) >= MOST:
            return
        versions = self._shown.setdefault(package, [])
        text = version.removeprefix("v")
        if not any(_same(one.version, text) for one in versions):
            versions.append(LoggedVersion(package=package, version=text, line=line))

    def known(self) -> Mapping[str, LoggedVersion]:
        """Package -> its version, for the packages that the log shows in one version only."""
        return {package: _fullest(found) for package, found in self._shown.items() if _agree(found)}

    def contradictory(self) -> Mapping[str, tuple[LoggedVersion, ...]]:
        """The packages that the log shows in several versions."""
        return {package: tuple(found) for package, found in self._shown.items() if not _agree(found)}


def given_versions(versions: Mapping[str, str]) -> Mapping[str, LoggedVersion]:
    """Versions that are known from elsewhere, by names of packages or axes. Other texts are left out."""
    exact = {str(canonicalize_name(name)): text.removeprefix("v") for name, text in versions.items()}
    return {
        name: LoggedVersion(package=name, version=text.partition("@")[0], line=0)
        for name, text in exact.items()
        if re.fullmatch(VERSION, text)
    }


def _package(found: re.Match[str]) -> str:
    parts = found.groupdict()
    if parts.get("banner"):
        return BANNERS.get(parts["banner"].casefold(), parts["banner"])
    return parts.get("name") or ("cann" if parts.get("cann") else "python")


def _same(one: str, other: str) -> bool:
    return one.partition("+")[0].casefold() == other.partition("+")[0].casefold()


def _agree(found: Iterable[LoggedVersion]) -> bool:
    """Whether all are the same version, some perhaps shortened (Python 3.10 and 3.10.14)."""
    longest = _fullest(found).version.partition("+")[0].casefold()
    return all(f"{longest}.".startswith(f"{one.version.partition('+')[0].casefold()}.") for one in found)


def _fullest(found: Iterable[LoggedVersion]) -> LoggedVersion:
    return max(found, key=lambda one: len(one.version.partition("+")[0]))
