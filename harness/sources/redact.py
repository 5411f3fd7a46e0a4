"""Text without the credentials that stand in URLs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit


def redact_url(url: str) -> str:
    """`url` without its user name and password."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    user, _, host = parts.netloc.rpartition("@")
    name, colon, _secret = user.partition(":")
    # A name without a password is a token.
    return urlunsplit(parts._replace(netloc=f"{name}:****@{host}" if colon else f"****@{host}"))


def redact_text(text: str) -> str:
    """`text` with credentials removed from every URL in it."""
    words = []
    for word in _split_keeping_space(text):
        start = word.find("://")
        words.append(word if start < 0 or "@" not in word else _redact_word(word))
    return "".join(words)


def _redact_word(word: str) -> str:
    head, scheme, rest = word.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if not at:
        return word
    name, colon, _secret = user.partition(":")
    return f"{head}{scheme}{name + ':' if colon else ''}****@{host}{slash}{_redact_tail(path)}"


def _redact_tail(path: str) -> str:
    return redact_text(path) if "://" in path else path


def _split_keeping_space(text: str) -> Iterator[str]:
    start = 0
    for position, character in enumerate(text):
        if character.isspace() or character in "'\"`,()<>":
            yield text[start:position]
            yield character
            start = position + 1
    yield text[start:]
