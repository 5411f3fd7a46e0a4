"""One run at a time in a state folder, and who it is."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock

from harness.errors import InfrastructureError, InterruptedRunError, Location

POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """Who holds the lock."""

    pid: int
    host: str
    started: float
    command: str

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S UTC", time.gmtime(self.started))
        return f"process {self.pid} on {self.host}, since {since}: {self.command}"


@contextlib.contextmanager
def run_lock(
    state: Path,
    *,
    command: Sequence[str],
    wait: bool,
    notify: Callable[[str], None] = lambda _text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Hold the state folder; while another run holds it, wait and notify who, or (not `wait`) stop.

    The lock is the kernel's: it goes with its process, however that ends. InfrastructureError when somebody
    holds it and `wait` is false, InterruptedRunError when `stopped()` turns true while waiting.
    """
    file = state / "run.lock"
    lock = filelock.FileLock(file)
    _acquire(lock, file, wait=wait, notify=notify, stopped=stopped)
    try:
        _sign(file, command)
        yield
    finally:
        with contextlib.suppress(OSError):
            _signature(file).unlink()
        lock.release()


def is_held(state: Path) -> bool:
    """Whether a run holds the state folder now."""
    file = state / "run.lock"
    if not file.exists():
        return False
    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=0)
    except (filelock.Timeout, OSError):
        return True
    lock.release()
    return False


def lock_holder(state: Path) -> LockHolder | None:
    """Who signed the lock last; only meaningful while it is held."""
    try:
        return LockHolder(**json.loads(_signature(state / "run.lock").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _acquire(
    lock: filelock.BaseFileLock,
    file: Path,
    *,
    wait: bool,
    notify: Callable[[str], None],
    stopped: Callable[[], bool],
) -> None:
    reported: str | None = None
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0 if reported is None else POLL_SECONDS, poll_interval=POLL_SECONDS / 4)
        except filelock.Timeout:
            who = str(lock_holder(file.parent) or "another process, which has not signed yet")
            if not wait:
                raise _held(file, who) from None
            if who != reported:
                notify(f"waiting for another run in this state folder: {who}")
                reported = who
        except OSError as error:
            raise InfrastructureError(
                "cannot lock the state folder",
                where=Location(file),
                why=error.strerror or str(error),
                fix="make the state folder writable, or choose another one with --state",
            ) from error
        else:
            return
        if stopped():
            raise InterruptedRunError(
                "stopped while waiting for another run", fix="run the same command again"
            )


def _held(file: Path, who: str) -> InfrastructureError:
    return InfrastructureError(
        "another run holds this state folder",
        where=Location(file),
        why=who,
        fix="let it end, or wait for it with --wait, or use another folder with --state",
    )


def _sign(file: Path, command: Sequence[str]) -> None:
    who = LockHolder(
        pid=os.getpid(), host=socket.gethostname(), started=time.time(), command=" ".join(command)
    )
    temporary = file.with_name(f"{file.name}.{os.getpid()}.part")
    temporary.write_text(json.dumps(asdict(who)), encoding="utf-8")
    temporary.replace(_signature(file))


def _signature(file: Path) -> Path:
    return file.with_name(file.name + ".json")
