"""The lock that allows one run at a time in a state folder, and who holds it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from harness.errors import InfrastructureError, InterruptedRunError, Location
from harness.serialisation import dumps, load

POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The process that holds the lock. `started` is in Unix seconds."""

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
    """Lock the state folder. If another run holds the lock, wait and `notify` who holds it, or raise.

    The kernel releases the lock when the process ends. InfrastructureError if another run holds it and `wait`
    is false, InterruptedRunError if `stopped()` becomes true while waiting.
    """
    file = state / "run.lock"
    lock = filelock.FileLock(file)
    _acquire(lock, file, wait=wait, notify=notify, stopped=stopped)
    try:
        _write_holder(file, command)
        yield
    finally:
        with contextlib.suppress(OSError):
            _holder_file(file).unlink()
        lock.release()


def is_held(state: Path) -> bool:
    """Whether a run holds the lock of the state folder."""
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
    """The process that last acquired the lock; None if that is not known. It may have released it since."""
    try:
        return load(LockHolder, _holder_file(state / "run.lock").read_bytes())
    except (OSError, ValueError):
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
            holder = str(lock_holder(file.parent) or "another process, which has just started")
            if not wait:
                raise InfrastructureError(
                    "another run uses this state folder",
                    where=Location(file),
                    why=holder,
                    fix="let it end, wait for it with --wait, or use another folder with --state",
                ) from None
            if holder != reported:
                notify(f"waiting for another run in this state folder: {holder}")
                reported = holder
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


def _write_holder(file: Path, command: Sequence[str]) -> None:
    holder = LockHolder(
        pid=os.getpid(), host=socket.gethostname(), started=time.time(), command=" ".join(command)
    )
    temporary = file.with_name(f"{file.name}.{os.getpid()}.part")
    temporary.write_text(dumps(holder), encoding="utf-8")
    temporary.replace(_holder_file(file))


def _holder_file(file: Path) -> Path:
    return file.with_name(file.name + ".json")
