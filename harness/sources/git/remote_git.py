"""Runs git on other people's repositories: no prompt, no hook, no helper program of an address, and an end.

Credentials come from where git finds them: credential helpers, `insteadOf` rewrites, SSH agents, netrc. git's
messages are returned without credentials.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harness.errors import InfrastructureError, Location
from harness.sources.redact import redact_text

#: The protocols that are used unless the user permits `file`. Never one that starts programs (`ext::`).
PROTOCOLS = ("https", "http", "ssh", "git")
FILE_PROTOCOL = "file"
#: git prints progress while it works. A server that sends nothing for so long has stopped.
STALL_S = 120.0
#: The size at which a fetch is stopped. The upstreams of the matrix need less than 1 GiB without files.
LARGEST_BYTES = 8 * 2**30
#: A list of branches and tags has about 100 bytes for each.
LARGEST_REPLY = 64 * 2**20
TICK_S = 0.1
SIZE_EVERY_S = 5.0
GRACE_S = 5.0
#: Variables that would redirect git to another repository or other objects.
_REDIRECTING = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
        "GIT_TEMPLATE_DIR",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_EXEC_PATH",
        "GIT_TRACE",
        "GIT_CURL_VERBOSE",
        "GIT_TRACE_CURL",
        "GIT_TRACE_PACKET",
        "SSH_ASKPASS",
    }
)
#: Objects with flaws that harm nobody and that published histories have; all other flaws refuse a fetch.
_HARMLESS = [
    "zeroPaddedFilemode",
    "missingEmail",
    "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail",
    "badTimezone",
    "badName",
    "badDate",
    "missingNameBeforeEmail",
    "missingTaggerEntry",
    "badTagName",
    "gitmodulesUrl",
    "gitmodulesParse",
    "gitmodulesMissing",
]
_CONFIG: Mapping[str, str] = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "credential.interactive": "false",
    "fetch.fsckObjects": "true",
    "fetch.recurseSubmodules": "false",
    "fetch.uriProtocols": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.version": "2",
    "transfer.bundleURI": "false",
    **{f"fetch.fsck.{name}": "ignore" for name in _HARMLESS},
}
_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"


class RemoteGitError(InfrastructureError):
    """git could not do what was asked. `why` of the problem is git's own message."""

    @property
    def why(self) -> str:
        """git's message, or why it was stopped."""
        return self.problems[0].why


@dataclass(frozen=True, kw_only=True)
class RemoteGit:
    """How to run git on remote repositories.

    protocols: those that may be used, also after an `insteadOf` rewrite. stall_s: seconds without any output
    after which git is stopped. largest_bytes: the size at which a repository is considered hostile.
    """

    protocols: Sequence[str] = PROTOCOLS
    stall_s: float = STALL_S
    largest_bytes: int = LARGEST_BYTES
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, folder: Path, *argv: str, sent: str = "") -> str:
        """Run `git ARGV` in a bare repository and return what it prints. sent: its standard input.

        RemoteGitError if it fails, stalls, prints too much or makes the repository too large.
        """
        command = ["git", "--no-replace-objects", f"--git-dir={folder}", *argv]
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=self._variables(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RemoteGitError(
                "git cannot be started", where=Location("git"), why=str(error), fix="install git"
            ) from error
        watched = _WatchedProcess(process, folder)
        try:
            why = watched.wait(sent, self)
        finally:
            watched.kill()
        if why or process.returncode:
            message = why or _message(watched.errors, process.returncode)
            raise RemoteGitError(f"git {argv[0]} failed", where=Location(folder), why=message)
        return watched.printed.decode("utf-8", "replace")

    def _variables(self) -> dict[str, str]:
        kept = {name: value for name, value in self.environ.items() if name not in _REDIRECTING}
        # After the settings that the user passes in the same way.
        first = int(kept["GIT_CONFIG_COUNT"]) if kept.get("GIT_CONFIG_COUNT", "").isdecimal() else 0
        for number, (name, value) in enumerate(_CONFIG.items(), first):
            kept |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        kept["GIT_CONFIG_COUNT"] = str(first + len(_CONFIG))
        return {
            "GIT_SSH_COMMAND": _SSH,
            **kept,
            "GIT_ALLOW_PROTOCOL": ":".join(self.protocols),
            "GIT_TERMINAL_PROMPT": "0",
            "SSH_ASKPASS_REQUIRE": "never",
            "GCM_INTERACTIVE": "never",
            "LC_ALL": "C",
        }


class _WatchedProcess:
    """A running git with the threads that read its output."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process, self._folder = process, folder
        self.printed, self.errors = bytearray(), bytearray()
        self._last_sign = time.monotonic()
        assert process.stdout
        assert process.stderr
        self._readers = [
            threading.Thread(target=self._read, args=(stream, kept, limit), daemon=True)
            for stream, kept, limit in (
                (process.stdout, self.printed, LARGEST_REPLY),
                (process.stderr, self.errors, 2**16),
            )
        ]

    def _read(self, stream: IO[bytes], kept: bytearray, limit: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), 2**16):
                self._last_sign = time.monotonic()
                kept += chunk
                if kept is self.errors:
                    del kept[:-limit]
                elif len(kept) > limit:
                    return

    def wait(self, sent: str, limits: RemoteGit) -> str:
        """Wait until git ends; returns why it has to be stopped before, or ""."""
        for reader in self._readers:
            reader.start()
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(sent.encode())
        next_size = time.monotonic() + SIZE_EVERY_S
        while self._process.poll() is None:
            now = time.monotonic()
            if now - self._last_sign > limits.stall_s:
                return f"the server sent nothing for {limits.stall_s:.0f} s"
            if len(self.printed) > LARGEST_REPLY:
                return f"the server lists more than {LARGEST_REPLY >> 20} MiB of branches and tags"
            if now >= next_size:
                next_size = now + SIZE_EVERY_S
                if _bytes_below(self._folder) > limits.largest_bytes:
                    return _too_large(limits)
            time.sleep(TICK_S)
        for reader in self._readers:
            reader.join(GRACE_S)
        return _too_large(limits) if _bytes_below(self._folder) > limits.largest_bytes else ""

    def kill(self) -> None:
        """End git and the programs it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        # The transport and the indexer are children of their own, and can outlive git.
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdout, self._process.stderr):
            if stream:
                stream.close()


def _too_large(limits: RemoteGit) -> str:
    return f"the repository is larger than {limits.largest_bytes / 2**30:.1f} GiB"


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _folders, files in os.walk(folder / "objects"):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - many files
    return total


def _message(errors: bytes | bytearray, code: int) -> str:
    """The lines in which git says what failed, without progress and credentials."""
    text = bytes(errors).decode("utf-8", "replace").replace("\r", "\n")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote: error", "remote: fatal"))]
    chosen = (told or lines)[:3]
    return redact_text("; ".join(chosen))[:1000] or f"git ended with {code}"
