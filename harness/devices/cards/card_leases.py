"""Leases of a host's cards: exclusive use, in the order of the requests, among all processes and users.

A leased card is locked in two places, see `harness.card_locks`, and is free again when its process ends,
however it ends. A process that waits for cards holds the lock of a numbered ticket file. Only the process
with the lowest ticket may lease cards, so eight requests for one card cannot overtake an earlier request for
eight cards. The files also record who leased a card, for what and since when; `npu-matrix doctor` prints
these records.

`harness.fixtures.cell_leases` locks the same cards from inside a cell, without tickets.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import os
import pwd
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.card_locks import cards_in_kernel, locked_card, locked_file, open_folder
from harness.errors import InfrastructureError, InterruptedRunError, Location

FOLDER_VARIABLE = "NPU_MATRIX_LEASES"
FOLDER_NAME = "npu-matrix-leases"
POLL_SECONDS = 0.1
_TICKETS = "ticket-*.lock"
#: Bytes of a file in the lease folder that are read; what this module writes is much shorter.
_LONGEST_NOTE = 1 << 16


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
        """The leased cards by number, then the requests in the order of the queue.

        InfrastructureError if the folder cannot be used.
        """
        with self._errors():
            try:
                with open_folder(self.folder, create=False) as folder:
                    return self._list(folder)
            except FileNotFoundError:
                return ()

    def _list(self, folder: int) -> tuple[CardLease, ...]:
        cards = {
            number: lease
            for name in _files(folder, "card-*.lock")
            if (number := _number(name)) is not None and (lease := _read(folder, name, number))
        }
        for number in cards_in_kernel(self.folder, folder) - cards.keys():
            cards[number] = CardLease(card=number, pid=0, user="?", what="?", since=0.0)
        queue = [lease for name in _files(folder, _TICKETS) if (lease := _read(folder, name, None))]
        return (*(cards[number] for number in sorted(cards)), *queue)

    def _try(
        self, number: int, cards: Sequence[int], count: int, what: str
    ) -> tuple[tuple[int, ...], contextlib.ExitStack] | None:
        with self._exclusive() as folder:
            if any(
                (_number(name) or 0) < number and _is_held(folder, name, tidy=True)
                for name in _files(folder, _TICKETS)
            ):
                return None
            free = [card for card in cards if self._is_free(folder, card)]
            selected = closest_cards(free, count)
            if selected is None:
                return None
            with contextlib.ExitStack() as locks:
                for card in selected:
                    try:
                        file = locks.enter_context(locked_card(self.folder, folder, card))
                    except BlockingIOError:
                        return None
                    _write(file, _note(what, count))
                return selected, locks.pop_all()

    def _is_free(self, folder: int, card: int) -> bool:
        try:
            with locked_card(self.folder, folder, card):
                return True
        except BlockingIOError:
            return False

    def _ticket(self, what: str, count: int) -> tuple[int, contextlib.ExitStack]:
        with self._exclusive() as folder, contextlib.ExitStack() as ticket:
            last = max((_number(name) or 0 for name in _files(folder, _TICKETS)), default=0)
            # The ticket outlives this block, and its folder can be moved meanwhile.
            lasting = os.dup(folder)
            ticket.callback(os.close, lasting)
            for number in itertools.count(last + 1):
                name = f"ticket-{number:08}.lock"
                # Another process can take the same number if the lock of the folder was removed.
                with contextlib.suppress(BlockingIOError):
                    file = ticket.enter_context(locked_file(lasting, name))
                    break
            ticket.callback(_remove, lasting, name)
            _write(file, _note(what, count))
            return number, ticket.pop_all()

    def _describe_others(self, what: str) -> str:
        # Nobody is between locking a card and noting what for.
        with self._exclusive() as folder:
            listed = self._list(folder)
        others = [lease for lease in listed if (lease.pid, lease.what) != (os.getpid(), what)]
        return "; ".join(
            f"{'earlier in the queue' if lease.card is None else f'card {lease.card}'}: "
            f"{lease.what} ({lease.user}, pid {lease.pid})"
            for lease in others
        )

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[int]:
        """Keep every other process from changing leases, which takes milliseconds; the open folder."""
        with self._errors(), open_folder(self.folder) as folder, locked_file(folder, "book.lock", wait=True):
            yield folder

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InfrastructureError(
                "cards cannot be leased",
                where=Location(self.folder / (error.filename or "")),
                why=error.strerror or str(error),
                fix="make the folder writable for all users (mode 1777) and remove everything in it that is "
                f"not a file, or set {FOLDER_VARIABLE} to another folder, which must not be a link",
            ) from error


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


def _files(folder: int, pattern: str) -> list[str]:
    return sorted(fnmatch.filter(os.listdir(folder), pattern))


def _write(file: int, note: Mapping[str, object]) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(note).encode(), 0)


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _is_held(folder: int, name: str, *, tidy: bool = False) -> bool:
    """Whether a process holds the file's lock. With `tidy`, a file that no process holds is deleted."""
    try:
        with locked_file(folder, name):
            if tidy:
                _remove(folder, name)
            return False
    except BlockingIOError:
        return True


def _read(folder: int, name: str, card: int | None) -> CardLease | None:
    """The lease that a file records; None when no process holds the file, or it was deleted meanwhile."""
    try:
        if not _is_held(folder, name):
            return None
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            note = json.loads(os.pread(file, _LONGEST_NOTE, 0))
        finally:
            os.close(file)
        return CardLease(
            card=card,
            pid=int(note["pid"]),
            user=_user(int(note["uid"])),
            what=str(note["what"]),
            since=float(note["since"]),
            count=int(note["count"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return CardLease(card=card, pid=0, user="?", what="?", since=0.0)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _number(name: str) -> int | None:
    """The number in a file's name; None for a name that this module does not write."""
    digits = name.removesuffix(".lock").rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else None
