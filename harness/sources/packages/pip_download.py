"""Downloading the wheel of a published release with pip, into a cache."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.check import Completed
from harness.digest import digest_file
from harness.errors import InfrastructureError, InputError
from harness.sources.redact import redact_text

FETCH_TIMEOUT_S = 300.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_PASSED = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "HOME",
)
MANIFEST = "manifest.json"


class RunCommand(Protocol):
    """A function that runs a program, such as `TaskContext.command`."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run `argv` and wait for it."""


class ReleaseNotFoundError(InputError):
    """The index is reachable, but has no wheel of this version."""


def fetch_release(package: str, version: str, *, cache: Path, command: RunCommand) -> Path:
    """The wheel of `package` at `version`, from the cache or from the index.

    pip downloads it, so pip's settings (index, extra indexes, find-links, certificate, proxy) apply.
    ReleaseNotFoundError if the index has no such wheel, InfrastructureError if it is not reachable.
    """
    require_release_name(package, version)

    def download(folder: Path) -> Path:
        return _download(package, version, folder, command)

    return cached_fetch(cache / "sources" / f"{package.lower()}-{version}", download)


def require_release_name(package: str, version: str) -> None:
    """InputError unless the names can be part of a path and of a command line."""
    if not _NAME.fullmatch(package) or not _VERSION.fullmatch(version):
        raise InputError(
            f"{package}=={version} is not a valid release", fix="give a package name and a version"
        )


def cached_fetch(folder: Path, fetch: Callable[[Path], Path]) -> Path:
    """The file of a cache folder. If it is missing or damaged, `fetch` writes it below an empty folder.

    Processes that fetch the same file at the same time do not disturb each other.
    """
    cached = cached_file(folder)
    if cached:
        return cached
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as temporary:
        file = fetch(Path(temporary))
        manifest = {"file": file.name, "sha256": digest_file(file)}
        (file.parent / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        return _publish_folder(file.parent, folder)


def cached_file(folder: Path) -> Path | None:
    """The file that the manifest of a folder names; None if it is missing or its digest has changed."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        wheel = folder / Path(str(manifest["file"])).name
        return wheel if digest_file(wheel) == manifest["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _publish_folder(ready: Path, folder: Path) -> Path:
    """Rename `ready` to `folder` and return its file. If `folder` exists and is intact, use it instead."""
    try:
        ready.rename(folder)
    except OSError:
        cached = cached_file(folder)
        if cached:
            return cached
        shutil.rmtree(folder, ignore_errors=True)
        ready.rename(folder)
    stored = cached_file(folder)
    if stored is None:
        raise InfrastructureError(
            f"{folder} was written, but cannot be read back",
            why="the disk is full or damaged",
            fix="free space, or choose another cache folder",
        )
    return stored


def _download(package: str, version: str, folder: Path, command: RunCommand) -> Path:
    target = folder / "wheel"
    target.mkdir()
    argv = [
        *pip_command(),
        "download",
        "--progress-bar=off",
        "--no-input",
        "--no-deps",
        "--only-binary=:all:",
        "--ignore-requires-python",
        f"--dest={target}",
        f"{package}=={version}",
    ]
    done = command(argv, env=pip_environment(os.environ), timeout=FETCH_TIMEOUT_S)
    wheels = sorted(target.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    # pip reports "no matching distribution" also if no index is reachable; a version list shows that one is.
    if re.search(r"\(from versions: (?!none\))", done.tail):
        raise ReleaseNotFoundError(
            f"the package index has no wheel of {package} {version}",
            why=_last_line(done.tail),
            fix="correct the version, or give the upstream repository as a mirror",
        )
    raise InfrastructureError(
        f"{package} {version} could not be fetched from the package index",
        why="it timed out" if done.timed_out else _last_line(done.tail),
        fix="check the network and pip's index settings (`pip config list`), then run again",
    )


def _last_line(text: str) -> str:
    """The most informative line of pip's output: a failed connection, otherwise its last error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    connections = [line for line in lines if "connection" in line.lower() or "Could not fetch" in line]
    errors = [line for line in lines if line.startswith("ERROR")]
    return redact_text((connections or errors or lines or ["pip printed nothing"])[-1])[:500]


def pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that affect downloads by pip."""
    return {
        name: value for name, value in environ.items() if name.startswith("PIP_") or name.upper() in _PASSED
    }


def pip_command() -> list[str]:
    """A command that runs some pip. Environments created by uv do not contain pip."""
    for argv in _pip_candidates():
        return argv
    raise InfrastructureError(
        "pip was not found, so upstream releases cannot be downloaded",
        why="this Python has neither pip nor ensurepip",
        fix=f"install it: {sys.executable} -m ensurepip",
    )


def _pip_candidates() -> Iterator[list[str]]:
    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    for location in (bundled.submodule_search_locations or []) if bundled else []:
        for wheel in sorted(Path(location).glob("_bundled/pip-*.whl")):
            yield [sys.executable, str(wheel / "pip")]
    program = shutil.which("pip3") or shutil.which("pip")
    if program:
        yield [program]
