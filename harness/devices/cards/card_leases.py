"""Exclusive use of a host's cards among all its processes and users, in the order in which they asked.

A card is a file; who holds its lock has the card. The kernel takes a lock back when its holder dies, so a
dead holder's lease is free at once and a live one's never is. Who waits holds the lock of a ticket; tickets
are numbered, and only the first that is still held may take cards: nobody is overtaken, a cell of eight cards
not even by eight cells of one. The files say who, what for and since when (`npu-matrix doctor` shows it).

`harness.fixtures.cell_leases` locks the same files from inside a cell.
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
#: Everybody on the host locks these files, whoever made them.
SHARED_FILE, SHARED_FOLDER = 0o666, 0o1777


@dataclass(frozen=True, kw_only=True)
class CardLease:
    """A card that is leased, or a place in the queue (`card` is None): by whom, what for, since when."""

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
        """The host's own, or the one the environment names."""
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
        """Lease `count` neighbouring cards of `cards` while the `with` block runs; waits for its turn.

        waiting: called once with a text that says who holds the cards. InfrastructureError when the host has
        fewer cards or the folder cannot be used, InterruptedRunError when `stopped()` becomes true during the
        wait.
        """
        if count > len(cards):
            raise InfrastructureError(
                f"{count} cards are wanted and {len(cards)} can be used here", fix="see `npu-matrix doctor`"
            )
        with contextlib.ExitStack() as held:
            number, ticket = self._ticket(what, count)
            held.enter_context(ticket)
            notified = False
            while (taken := self._try(number, cards, count, what)) is None:
                if stopped():
                    raise InterruptedRunError("the run was stopped while it waited for cards")
                if not notified:
                    notified = True
                    waiting(self._describe_others(what))
                time.sleep(POLL_SECONDS)
            ticket.close()
            held.enter_context(taken[1])
            yield taken[0]

    def list_leases(self) -> tuple[CardLease, ...]:
        """Who has which card, then who waits in which order; nothing when nobody ever leased one."""
        cards = [
            _read(path, number)
            for path in self._files("card-*.lock")
            if (number := _number(path)) is not None
        ]
        queue = [_read(path, None) for path in self._files("ticket-*.lock")]
        return tuple(sorted((one for one in cards if one), key=lambda one: one.card or 0)) + tuple(
            one for one in queue if one
        )

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
            chosen = closest_cards(free, count)
            if chosen is None:
                return None
            locks = contextlib.ExitStack()
            for card in chosen:
                locks.enter_context(_locked(self._card(card), _note(what, count)))
            return chosen, locks

    def _ticket(self, what: str, count: int) -> tuple[int, contextlib.ExitStack]:
        with self._exclusive():
            number = max((_number(path) or 0 for path in self._files("ticket-*.lock")), default=0) + 1
            path = self.folder / f"ticket-{number:08}.lock"
            ticket = contextlib.ExitStack()
            ticket.callback(path.unlink, missing_ok=True)
            ticket.enter_context(_locked(path, _note(what, count)))
            return number, ticket

    def _describe_others(self, what: str) -> str:
        others = [one for one in self.list_leases() if (one.pid, one.what) != (os.getpid(), what)]
        return "; ".join(
            f"{'card ' + str(one.card) if one.card is not None else 'before us in the queue'}: "
            f"{one.what} ({one.user}, pid {one.pid})"
            for one in others
        )

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One process at a time looks and takes; held for milliseconds."""
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
                fix="make the folder writable for everybody and remove what is no file there, or name "
                f"another one in {FOLDER_VARIABLE}",
            ) from error

    def _card(self, card: int) -> Path:
        return self.folder / f"card-{card}.lock"

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))


def closest_cards(free: Sequence[int], count: int) -> tuple[int, ...] | None:
    """`count` of the free cards that lie closest together, None when there are not so many.

    Cards next to each other share the fast links. Of equally close ones those that start at a multiple of
    `count` come first: that leaves the others whole.
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
    # A link that somebody put there is not followed: the folder is everybody's.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, SHARED_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # The umask took the bits of others away; who did not make the file cannot and need not set them.
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, SHARED_FILE)
        if note:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _is_held(path: Path, *, tidy: bool = False) -> bool:
    """Whether a live process holds the file's lock; with `tidy` one that nobody holds is removed."""
    try:
        with _locked(path, {}) if path.exists() else contextlib.nullcontext():
            if tidy:
                path.unlink(missing_ok=True)
            return False
    except BlockingIOError:
        return True


def _read(path: Path, card: int | None) -> CardLease | None:
    """Who holds the file; None when nobody does, or it went meanwhile."""
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
    """The number in a file's name; None in a name that is none of ours: the folder is everybody's."""
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else None
