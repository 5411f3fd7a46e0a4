"""Backslash escapes, as `$'...'`, `printf` and `echo -e` read them."""

from __future__ import annotations

import re

_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "?": "?"}
_CONTROL = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_CHARACTERS = {**_PLAIN, **_CONTROL}
_ESCAPE = re.compile(
    r"\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|[uU](?P<code>[0-9a-fA-F]{1,8})|(?P<octal>0?[0-7]{1,3})|(?P<letter>.))",
    re.DOTALL,
)


def decoded(text: str) -> str:
    """The text with the characters that its escapes stand for; an escape that bash does not have stays."""
    return _ESCAPE.sub(_character, text)


def quoted(text: str) -> str:
    """The text as `${name@Q}` quotes it."""
    if any(ord(char) < 32 for char in text):
        names = {char: f"\\{letter}" for letter, char in _CHARACTERS.items() if letter not in 'e?"'}
        return "$'" + "".join(names.get(char, char) for char in text) + "'"
    return "'" + text.replace("'", "'\\''") + "'"


def _character(found: re.Match[str]) -> str:
    if found["letter"] is not None:
        return _CHARACTERS.get(found["letter"], found[0])
    if found["code"] is not None:
        number = int(found["code"], 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else found[0]
    number = int(found["hex"], 16) if found["hex"] is not None else int(found["octal"], 8)
    return bytes([number & 0xFF]).decode("utf-8", "surrogateescape")
