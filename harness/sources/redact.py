"""Removing credentials from text: those in URLs, and tokens and keys of a known form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

MASK = "***"
# As documented by their issuers: Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, JSON Web Token, PEM. An
# identifier such as `hf_config_path` does not match: a Hugging Face token has no second underscore.
SECRET_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{12,}\b(?!_)|\bgh[pousr]_[A-Za-z0-9]{12,}|\bgithub_pat_\w{12,}|\bglpat-[\w-]{12,}"
    r"|\bsk-[\w-]{16,}|\bxox[abeprs]-[\w-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\beyJ[\w-]{8,200}\.[\w-]{8,4000}\.[\w-]*"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)


def mask_secrets(text: str) -> str:
    """`text` without tokens and keys of a known form."""
    return SECRET_SHAPES.sub(MASK, text)


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
