"""Which files of a release the package index has, and with which digests. uv reads the index.

The answer of the index is the reference for the digest of a downloaded or cached archive. uv caches index
pages outside of our cache folder; without a network its last copy is used.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import tomllib
from packaging.version import Version

from harness.check import Completed
from harness.errors import HarnessError, InfrastructureError, InputError
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure
from harness.sources.packages.index_refusal import refusal_behind
from harness.sources.packages.index_settings import IndexSettings, uv_binary
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.program_runner import ProgramRunner
from harness.sources.packages.release_archive import ReleaseArchive, TargetPlatform
from harness.sources.packages.uv_errors import parse_uv_failure
from harness.sources.packages.uv_settings import write_uv_settings
from harness.sources.redact import redact_text, redact_url

LOCATE_TIMEOUT_S = 120.0
ANY_PRERELEASE, FINAL_IF_POSSIBLE = ("--prerelease", "allow"), ("--prerelease", "if-necessary")
#: The arguments for the files of a release for all platforms.
ALL_PLATFORMS = ("--universal", "--python-version", "3.11")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


class ReleaseNotFoundError(InputError):
    """The index is reachable, but does not have this release."""


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A file that the index lists.

    sha256: "" if the index does not state it. uploaded: the day, as 2026-09-20, or "".
    """

    package: str
    version: str
    url: str
    sha256: str
    uploaded: str = ""

    @property
    def name(self) -> str:
        """The file name."""
        return unquote(redact_url(self.url).partition("#")[0].rpartition("/")[2])

    def archive(self, sha256: str, *, in_part: bool = False) -> ReleaseArchive:
        """How the file is named in measurements; `sha256` is used if the index does not state it."""
        return ReleaseArchive(
            package=self.package,
            version=self.version,
            file=self.name,
            sha256=self.sha256 or sha256,
            in_part=in_part,
        )


@dataclass(frozen=True, kw_only=True)
class PackageIndex:
    """The package indexes of these settings. offline: use uv's cached index pages only."""

    settings: IndexSettings
    command: ProgramRunner
    offline: bool = False

    def files(
        self,
        requirements: Iterable[str],
        target: TargetPlatform | Path | None = None,
        options: Sequence[str] = ANY_PRERELEASE,
    ) -> tuple[PublishedFile, ...]:
        """The files of the releases that uv selects for requirements, without their dependencies.

        target: what the files are for: a platform, a Python interpreter, or all platforms (None).
        ReleaseNotFoundError if the index has no such release, InfrastructureError if it cannot be reached and
        uv has no copy of its pages.
        """
        lines = list(requirements)
        with tempfile.TemporaryDirectory(prefix="npu-matrix-index-") as folder:
            work = Path(folder)
            (work / "requirements.in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            write_uv_settings(work, self.settings.uv_file())
            arguments = [*_target_arguments(target), *options]
            done = self._compile(work, [*arguments, *(["--offline"] if self.offline else [])])
            if done.returncode != 0:
                error = self._failure(", ".join(lines), redact_text(done.tail), timed_out=done.timed_out)
                is_network = isinstance(error, InfrastructureError) and not self.offline
                if not is_network or self._compile(work, [*arguments, "--offline"]).returncode != 0:
                    raise error
            locked = tomllib.loads((work / "pylock.toml").read_text(encoding="utf-8"))
            return tuple(file for entry in locked.get("packages", ()) for file in _entry_files(entry, work))

    def _compile(self, work: Path, arguments: Sequence[str]) -> Completed:
        argv = [
            *(uv_binary(), "pip", "compile", "requirements.in", "--output-file", "pylock.toml"),
            *("--format", "pylock.toml", "--no-deps", "--no-header", "--quiet", "--color", "never"),
            *(*arguments, *self.settings.uv_arguments()),
        ]
        return self.command(argv, env=self.settings.uv_environment(), cwd=work, timeout=LOCATE_TIMEOUT_S)

    def _failure(self, requirement: str, tail: str, *, timed_out: bool) -> HarnessError:
        problem = fetch_failure(tail)
        if problem:
            return problem.error()
        failure = parse_uv_failure(tail)
        if not timed_out and failure.rests_on_indexes:
            refused = None if self.offline else refusal_behind(failure, self.settings, self.command)
            if refused is not None:
                return refused.error()
            return ReleaseNotFoundError(
                f"the package index has no {requirement.replace('==', ' ')}",
                why=tail.strip().splitlines()[-1] if tail.strip() else "",
                fix="choose a published version",
            )
        return machine_failure(tail) or InfrastructureError(
            f"the package index could not be searched for {requirement}",
            why="it timed out" if timed_out else tail.strip()[-500:],
            fix="check the network and pip's index settings (`pip config list`), then run again",
        )


def require_release_name(package: str, version: str) -> None:
    """InputError unless the names can be part of a path and a command line, and an index can have them."""
    try:
        valid = bool(_NAME.fullmatch(package) and _VERSION.fullmatch(version) and Version(version))
    except ValueError:  # also for numbers with thousands of digits
        valid = False
    if not valid:
        raise InputError(
            f"{package}=={version} is not a valid release",
            fix="give a package name and a version such as 0.9.1",
        )


def _target_arguments(target: TargetPlatform | Path | None) -> Sequence[str]:
    if isinstance(target, Path):
        return ("--python", str(target))
    # Without it, uv searches the machine for the target's version of Python: with pyenv, for ten seconds.
    return ("--python", sys.executable, *(target.arguments() if target else ALL_PLATFORMS))


def _entry_files(entry: Mapping[str, Any], work: Path) -> list[PublishedFile]:
    files = [*entry.get("wheels", ()), *([entry["sdist"]] if "sdist" in entry else [])]
    return [
        PublishedFile(
            package=normal_name(entry["name"]),
            version=str(entry["version"]),
            url=str(file.get("url") or (work / file["path"]).resolve().as_uri()),
            sha256=str(file.get("hashes", {}).get("sha256", "")),
            uploaded=str(file.get("upload-time", ""))[:10],
        )
        for file in files
    ]
