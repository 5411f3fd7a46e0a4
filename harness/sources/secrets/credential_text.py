"""Finds the secrets inside a value or a file: passwords in URLs, JSON leaves, header words, encoded pairs."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote, unquote_plus, urlsplit

#: Shorter values occur in ordinary text too, and masking them would garble the log.
MINIMUM_SECRET = 6
#: User names that are documented for tokens, and common ones. They are no secrets.
PUBLIC_USERS = frozenset(
    {
        *("__token__", "oauth2", "oauth2accesstoken", "x-access-token", "x-token-auth", "x-oauth-basic"),
        *("gitlab-ci-token", "token", "aws", "git", "root", "admin", "user", "username", "login", "nobody"),
        "anonymous",
    }
)
URL = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*:/{1,2}[^\s'"`<>]+""")
# curl and pip accept a proxy without a scheme.
NO_SCHEME = re.compile(r"(?:^|(?<=[\s,=]))(?P<user>[^\s,=/@]+)@(?=[^\s,@]+)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CHANGE = re.compile(r"[a-zA-Z](?=\d)|\d(?=[a-zA-Z])")
_WORD_BREAKS = re.compile(r"[\s;,&\"'{}()\[\]]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")


def secrets_in(text: str) -> Iterator[str]:
    """The secret text itself and every part of it that is secret on its own."""
    text = text.strip()
    yield text
    yield from parts_of(text)


def parts_of(text: str) -> Iterator[str]:
    """The parts of `text` that are secret on their own, for example the password of a URL."""
    yield from _json_leaves(text)
    yield from url_secrets(text)
    for word in _words(text):
        # `AccountKey=...`, `password: ...`, the words of an `Authorization` header.
        value = word.partition("=")[2]
        for part in (word, value):
            if part != text and looks_random(part):
                yield part
            yield from _pair(part)


def certain_secrets(text: str, is_credential_name: Callable[[str], bool]) -> Iterator[str]:
    """The parts of `text` that say themselves that they are secret.

    Passwords of URLs, encoded pairs, and what has the name of a credential: members of JSON, and words as in
    `AccountKey=...` or `password: ...`.
    """
    yield from url_secrets(text)
    for name, leaf in _json_members(text):
        yield from _pair(leaf)
        if is_credential_name(name):
            yield from secrets_in(leaf)
    words = _words(text)
    for before, word in zip(("", *words), words, strict=False):
        name, _equals, value = word.partition("=")
        if is_credential_name(name):
            yield value
        if is_credential_name(before):
            yield word
        yield from _pair(word)
        yield from _pair(value)


def address_secrets(value: str) -> Iterator[str]:
    """The secrets of a variable that contains addresses, also of one without a scheme.

    A segment of a path is secret if it looks like a token: some indexes document addresses with one.
    """
    yield from url_secrets(NO_SCHEME.sub(r"any://\g<user>@", value))
    if "@" in value and len(value.split()) == 1 and value.count("://") < 2:
        # One address, whose password may contain any character.
        yield from _userinfo(value.partition("://")[2] or value)
    for match in URL.finditer(value):
        if not match[0].startswith("file:"):
            yield from token_segments(match[0])


def token_segments(url: str) -> Iterator[str]:
    """The segments of the path of `url` that look like tokens: digits and letters in frequent change."""
    for segment in re.split(r"[/?#,]", url)[3:]:
        plain = segment.replace("-", "") if _UUID.fullmatch(segment) else segment
        if plain.isalnum() and len(plain) >= 16 and len(_CHANGE.findall(plain)) >= 4:
            yield segment


def _userinfo(address: str) -> Iterator[str]:
    """User name and password before the last `@` of an address, also if they are not encoded."""
    name, colon, password = address.rpartition("@")[0].partition(":")
    if colon and not re.match(r"\d{1,5}([/?#]|$)|.*\]", password):
        yield from (f"{name}:{password}", password, f"{unquote(name)}:{unquote(password)}", unquote(password))
        # Tools take its first part for a port or a path, and print parts.
        yield from (part for part in re.split(r"[/?#@:,]", password) if looks_random(part))


def url_secrets(text: str) -> Iterator[str]:
    """User names, passwords, and the values of queries and fragments in the URLs of `text`."""
    # Certificates have no address, and the search takes long in them.
    for match in URL.finditer(text) if ":/" in text else ():
        for url in (match[0], *match[0].split(",")):
            yield from _secrets_of_url(url)


def _secrets_of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    name, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    if ":" in parts.netloc and "@" in url.partition(parts.netloc)[2] and url.count("://") == 1:
        yield from _userinfo(url.partition("://")[2])
    if name:
        yield f"{unquote(name)}:{unquote(password)}"
    for part in (*(() if name.lower() in PUBLIC_USERS else (name,)), password if colon else ""):
        yield from (part, unquote(part))
    for pairs in (parts.query, parts.fragment):
        for pair in pairs.split("&"):
            value = pair.partition("=")[2] if "=" in pair else pair
            if looks_random(value):
                yield from (value, unquote_plus(value))


def _json_leaves(text: str) -> Iterator[str]:
    for _name, value in _json_members(text):
        yield value
        yield from url_secrets(value)
        yield from _pair(value)


def _json_members(text: str) -> Iterator[tuple[str, str]]:
    """(names of the members around it, text) for all texts in a JSON text."""
    if not text.startswith(("{", "[")):
        return
    try:
        pending = [("", json.loads(text))]
    except (ValueError, RecursionError):
        return
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += ((f"{name}.{inner}", item) for inner, item in value.items())
        elif isinstance(value, list):
            pending += ((name, item) for item in value)
        elif isinstance(value, str) and value.lower() not in PUBLIC_USERS:
            yield name, value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip(":") for word in _WORD_BREAKS.split(text) if word)


def _pair(word: str) -> Iterator[str]:
    """User name and password of `base64(user:password)`."""
    if not _BASE64.fullmatch(word):
        return
    try:
        decoded = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_").decode()
    except (binascii.Error, ValueError):
        return
    name, colon, password = decoded.partition(":")
    if colon and decoded.isprintable():
        yield from (decoded, password, *(() if name.lower() in PUBLIC_USERS else (name,)))


def looks_random(word: str) -> bool:
    """Whether a word is rather a token than a word of a language or a number."""
    return len(word) >= 8 and not word.isalpha() and not re.fullmatch(r"[\d.:,_+-]+", word)
