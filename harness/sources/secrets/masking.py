"""Masks secret values in text, JSON and files, in every form in which tools print them."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeVar

from harness.sources.damaged_archive import UNREADABLE
from harness.sources.redact import MASK, mask_secrets, redact_text
from harness.sources.secrets.encoded_forms import PIECE, encoded_forms, without_space
from harness.sources.secrets.secret_values import secret_values
from harness.sources.secrets.stored_variables import is_credential_name

J = TypeVar("J")
_END = ""
_Trie = dict[str, "_Trie"]
#: The part of a text at whose end a secret can start that continues in the next text, with white space.
_OPEN_CHARACTERS = 8 * PIECE
_OPEN_KEY = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,16384}\Z")
#: Files and members of archives are searched up to this size.
MAX_BYTES = 64 << 20
#: Bytes of a member that are unpacked at a time; of a damaged one, so many can be lost.
UNPACKED_BYTES = 4096


class Masker:
    """Replaces secrets by `***`: the given values in all encodings, credentials of URLs, and known tokens.

    A secret is found also where a tool has wrapped it: white space inside it does not matter.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in encoded_forms(secret)}
        self._trie = _trie(forms)
        self._search = _search(self._trie)
        self._bytes = _search(
            _trie({form.encode("utf-8", "surrogateescape").decode("latin-1") for form in forms})
        )

    @classmethod
    def of_host(cls, environ: Mapping[str, str], public: str = "") -> Masker:
        """A masker for all secrets that programs with `environ` can know; see `secret_values`."""
        return _masker(secret_values(environ, public))

    @classmethod
    def of_command(cls, environ: Mapping[str, str]) -> Masker:
        """A masker for what this command prints; a value that is among its arguments is public."""
        return cls.of_host(environ, redact_text("\n".join(sys.argv)))

    def text(self, text: str) -> str:
        """`text` without secrets, with the same lines."""
        # The values come first: a password with a slash is no part of a URL for the other two.
        return mask_secrets(redact_text(self._without_values(text)))

    def setting(self, name: str, value: str) -> str:
        """The value of a setting or variable: masked as a whole if its name says that it is a credential."""
        return MASK if is_credential_name(name) else self.text(value)

    def stream(self) -> MaskedStream:
        """Masks a text that arrives in parts."""
        return MaskedStream(self)

    def json(self, value: J) -> J:
        """A JSON value in which all texts and names are masked."""
        if isinstance(value, str):
            return self.text(value)  # type: ignore[return-value]
        if isinstance(value, Mapping):
            return {self.text(name): self.json(item) for name, item in value.items()}  # type: ignore[return-value]
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.json, value))
        return value

    def file(self, path: Path) -> bool:
        """Mask a text file in place; False if it is not text and contains a secret."""
        data = path.read_bytes()
        text = text_of(data)
        if text is None:
            return not self.occurs_in(data)
        masked = self.text(text)
        if masked != text:
            temporary = path.with_name(f".{path.name}.masked")
            temporary.write_bytes(masked.encode())
            temporary.replace(path)
        return True

    def folder(self, folder: Path) -> list[Path]:
        """Mask all files below `folder`.

        Removes and returns those that contain a secret and are not text, and those above `MAX_BYTES`.
        """
        removed = []
        for parent, _folders, names in os.walk(folder):
            for path in (Path(parent, name) for name in names):
                # A file with several names also belongs to someone else, for example to the cache of uv.
                if path.is_symlink() or not path.is_file() or path.stat().st_nlink > 1:
                    continue
                if path.stat().st_size > MAX_BYTES or not self.file(path):
                    path.unlink()
                    removed.append(path)
        return removed

    def occurs_in(self, data: bytes) -> bool:
        """Whether a secret occurs in `data`, or in a member of it if it is a zip or gzip archive."""
        if self._bytes is None:
            return False
        return any(self._bytes.search(part.decode("latin-1")) for part in _with_members(data))

    def complete_lines(self, text: str) -> int:
        """The length of the lines of `text` after which no secret or private key continues."""
        key = _OPEN_KEY.search(text)
        end = min(next(self._open_places(text), len(text)), key.start() if key else len(text))
        if end == len(text):
            return end
        end = text.rfind("\n", 0, end) + 1
        for start, stop in reversed(self._spans(text)):
            if start < end < stop:
                end = text.rfind("\n", 0, start) + 1
        return end

    def _open_places(self, text: str) -> Iterator[int]:
        """The positions at the end of `text` where a secret may have started."""
        if self._trie:
            for place in range(max(0, len(text) - _OPEN_CHARACTERS), len(text)):
                if not text[place].isspace() and self._continues(without_space(text[place:])):
                    yield place

    def _continues(self, start: str) -> bool:
        """Whether more characters may follow `start` in a secret."""
        node = self._trie
        for character in start:
            if character not in node:
                return False
            node = node[character]
        return node.keys() != {_END}

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Where secrets start and end in `text`, in order, without overlaps."""
        found = (
            [(match.start(), match.end(1)) for match in self._search.finditer(without_space(text))]
            if self._search
            else []
        )
        if not found:
            return []
        places = [place for place, character in enumerate(text) if not character.isspace()]
        return _merged((places[start], places[end - 1] + 1) for start, end in found)

    def _without_values(self, text: str) -> str:
        parts, done = [], 0
        for start, end in self._spans(text):
            parts += [text[done:start], MASK, "\n" * text.count("\n", start, end)]
            done = end
        return "".join([*parts, text[done:]])


def text_of(data: bytes) -> str | None:
    """The text in the bytes of a file, None if they are not text."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


@functools.lru_cache(maxsize=8)
def _masker(secrets: frozenset[str]) -> Masker:
    return Masker(secrets)


class MaskedStream:
    """Masks lines that arrive one after the other. A secret may be distributed over several lines."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._rest = ""

    def feed(self, text: str) -> str:
        """The masked lines that can be written now; a line in which a secret may have started comes later."""
        text = self._rest + text
        end = self._masker.complete_lines(text)
        self._rest = text[end:]
        return self._masker.text(text[:end])

    def finish(self) -> str:
        """The remaining lines, masked."""
        rest, self._rest = self._rest, ""
        return self._masker.text(rest)


def _trie(forms: Iterable[str]) -> _Trie:
    trie: _Trie = {}
    for form in forms:
        node = trie
        for character in form:
            node = node.setdefault(character, {})
        node[_END] = {}
    return trie


def _search(trie: _Trie) -> re.Pattern[str] | None:
    """Finds the longest form at every position, also where forms overlap; None if there are no forms."""
    return re.compile(f"(?=({_pattern(trie)}))", re.DOTALL) if trie else None


def _pattern(node: _Trie) -> str:
    branches = [re.escape(character) + _pattern(after) for character, after in node.items() if character]
    if not branches:
        return ""
    together = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{together})?" if _END in node else together


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _with_members(data: bytes) -> Iterator[bytes]:
    """The data, and the content of its members if it is a zip or gzip archive, as far as they can be read."""
    yield data
    with contextlib.suppress(*UNREADABLE):
        if data.startswith(b"\x1f\x8b"):
            yield _readable_part(gzip.GzipFile(fileobj=io.BytesIO(data)))
        elif data.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for member in archive.infolist():
                    with contextlib.suppress(*UNREADABLE), archive.open(member) as opened:
                        yield _readable_part(opened)


def _readable_part(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    """The start of an unpacked stream, to where it is damaged, and at most `MAX_BYTES` of it."""
    found = bytearray()
    with contextlib.suppress(*UNREADABLE):
        while len(found) < MAX_BYTES and (chunk := stream.read(UNPACKED_BYTES)):
            found += chunk
    return bytes(found)
