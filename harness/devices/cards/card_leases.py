"""Leases of a host's cards: exclusive use, in the order of the requests, among all processes and users.

Each card has a lock file, and the process that holds its lock (`flock`) has leased the card. The kernel
releases the lock when the process ends, however it ends. A process that waits for cards holds the lock of a
numbered ticket file. Only the process with the lowest ticket may lease cards, so eight requests for one card
cannot overtake an earlier request for eight cards. The files also record who leased a card, for what and
since when; `npu-matrix doctor` prints these records.

`harness.fixtures.cell_leases` locks the same card files from inside a cell, without tickets.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InfrastructureError, InterruptedRunError, Location

FOLDER_VARIABLE = "NPU_MATRIX_LEASES"
FOLDER_NAME = "npu-matrix-leases"
POLL_SECONDS = 0.1
#: File modes: every user of the host must be able to lock the files, whoever created them.
SHARED_FILE, SHARED_FOLDER = 0o666, 0o1777


@dataclass(frozen=True, kw_only=True)
class CardLease:
    """A leased card, or a request in the queue (`card` is None).

    pid, user: who holds it. what: what it is for. since: Unix time in seconds. count: how many cards the
    request was for.
    """

    card: int | None
    pid: int
    user: str
    what: str
    since: float
    count: int = 1


@dataclass(frozen=True)
class CardLeases:
    """The lease files of a host, in a folder that all its users share."""

    folder: Path

    @staticmethod
    def of_host(environ: Mapping[str, str]) -> CardLeases:
        """The leases of this host, in the folder that NPU_MATRIX_LEASES names or in the temporary folder."""
        return CardLeases(Path(environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir()) / FOLDER_NAME))

    @contextlib.contextmanager
    def lease(
        self,
        cards: Sequence[int],
        count: int,
        what: str,
        *,
        stopped: Callable[[], bool] = lambda: False,
        waiting: Callable[[str], None] = lambda _text: None,
    ) -> Iterator[tuple[int, ...]]:
        """Lease `count` neighbouring cards of `cards` while the `with` block runs; waits until they are free.

        waiting: called once if it has to wait, with a text that says who has leased the cards.
        InfrastructureError when the host has fewer cards or the folder cannot be used. InterruptedRunError
        when `stopped()` becomes true during the wait.
        """
        if count > len(cards):
            raise InfrastructureError(
                f"{count} cards were requested, but only {len(cards)} can be used here",
                fix="run `npu-matrix doctor` to see the cards of this host",
            )
        with contextlib.ExitStack() as locks:
            number, ticket = self._ticket(what, count)
            locks.enter_context(ticket)
            notified = False
            while (leased := self._try(number, cards, count, what)) is None:
                if stopped():
                    raise InterruptedRunError("the run was stopped while it waited for cards")
                if not notified:
                    notified = True
                    waiting(self._describe_others(what))
                time.sleep(POLL_SECONDS)
            ticket.close()
            locks.enter_context(leased[1])
            yield leased[0]

    def list_leases(self) -> tuple[CardLease, ...]:
        """The leased cards by number, then the requests in the order of the queue."""
        cards = [
            lease
            for path in self._files("card-*.lock")
            if (number := _number(path)) is not None and (lease := _read(path, number))
        ]
        queue = [lease for path in self._files("ticket-*.lock") if (lease := _read(path, None))]
        return (*sorted(cards, key=lambda lease: lease.card or 0), *queue)

    def _try(
        self, number: int, cards: Sequence[int], count: int, what: str
    ) -> tuple[tuple[int, ...], contextlib.ExitStack] | None:
        with self._exclusive():
            if any(
                (_number(path) or 0) < number and _is_held(path, tidy=True)
                for path in self._files("ticket-*.lock")
            ):
                return None
            free = [card for card in cards if not _is_held(self._card(card))]
            selected = closest_cards(free, count)
            if selected is None:
                return None
            locks = contextlib.ExitStack()
            for card in selected:
                locks.enter_context(_locked(self._card(card), _note(what, count)))
            return selected, locks

    def _ticket(self, what: str, count: int) -> tuple[int, contextlib.ExitStack]:
        with self._exclusive():
            number = max((_number(path) or 0 for path in self._files("ticket-*.lock")), default=0) + 1
            path = self.folder / f"ticket-{number:08}.lock"
            ticket = contextlib.ExitStack()
            ticket.callback(path.unlink, missing_ok=True)
            ticket.enter_context(_locked(path, _note(what, count)))
            return number, ticket

    def _describe_others(self, what: str) -> str:
        others = [lease for lease in self.list_leases() if (lease.pid, lease.what) != (os.getpid(), what)]
        return "; ".join(
            f"{'earlier in the queue' if lease.card is None else f'card {lease.card}'}: "
            f"{lease.what} ({lease.user}, pid {lease.pid})"
            for lease in others
        )

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep every other process from changing leases; takes milliseconds."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(PermissionError):
                self.folder.chmod(SHARED_FOLDER)
            with _locked(self.folder / "book.lock", {}, wait=True):
                yield
        except OSError as error:
            raise InfrastructureError(
                "cards cannot be leased",
                where=Location(error.filename or self.folder),
                why=error.strerror or str(error),
                fix="make the folder writable for all users and remove everything in it that is not a file, "
                f"or set {FOLDER_VARIABLE} to another folder",
            ) from error

    def _card(self, card: int) -> Path:
        return self.folder / f"card-{card}.lock"

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))


def closest_cards(free: Sequence[int], count: int) -> tuple[int, ...] | None:
    """The `count` free cards whose numbers are closest together, None when fewer cards are free.

    Neighbouring cards share the fast links. Of equally close groups, one that starts at a multiple of `count`
    is preferred, so that the remaining cards stay neighbours.
    """
    ordered = sorted(free)
    windows = [tuple(ordered[start : start + count]) for start in range(len(ordered) - count + 1)]
    return min(
        windows, key=lambda window: (window[-1] - window[0], window[0] % count, window[0]), default=None
    )


def _note(what: str, count: int) -> dict[str, object]:
    return {"pid": os.getpid(), "uid": os.getuid(), "what": what, "since": time.time(), "count": count}


@contextlib.contextmanager
def _locked(path: Path, note: Mapping[str, object], *, wait: bool = False) -> Iterator[None]:
    # Every user can write to the folder, so a symbolic link in it is not followed.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, SHARED_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # The umask removed the permissions of other users. Only the owner of the file can add them again.
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, SHARED_FILE)
        if note:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _is_held(path: Path, *, tidy: bool = False) -> bool:
    """Whether a process holds the file's lock. With `tidy`, a file that no process holds is deleted."""
    try:
        with _locked(path, {}) if path.exists() else contextlib.nullcontext():
            if tidy:
                path.unlink(missing_ok=True)
            return False
    except BlockingIOError:
        return True


def _read(path: Path, card: int | None) -> CardLease | None:
    """The lease that a file records; None when no process holds the file, or it was deleted meanwhile."""
    try:
        if not _is_held(path):
            return None
        note = json.loads(path.read_text(encoding="utf-8"))
        return CardLease(
            card=card,
            pid=int(note["pid"]),
            user=_user(int(note["uid"])),
            what=str(note["what"]),
            since=float(note["since"]),
            count=int(note["count"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None if not path.exists() else CardLease(card=card, pid=0, user="?", what="?", since=0.0)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _number(path: Path) -> int | None:
    """The number in a file's name; None for a name that this module does not write."""
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else None
