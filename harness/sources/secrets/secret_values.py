"""The secret values of this machine: of all variables that are not on the allow-list, and of known files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.sources.secrets.credential_files import file_secrets
from harness.sources.secrets.credential_text import (
    MINIMUM_SECRET,
    PUBLIC_USERS,
    address_secrets,
    certain_secrets,
    looks_random,
    parts_of,
    secrets_in,
)
from harness.sources.secrets.stored_variables import Storage, is_credential_name, storage_of

#: A variable that nobody has listed may hold anything; a short value of it is rather a word or a number.
MINIMUM_UNLISTED = 8
_NUMBER = re.compile(r"[vV]?\d[\d.,:_+-]*|[vV]?\d+(\.\d+)+([._+-]?[a-z]+\d*)*|0x[0-9a-fA-F]{1,8}")
_WORDS = re.compile(r"[a-z]{1,16}|[A-Z]{1,16}|[A-Z][a-z]{1,15}")


def secret_values(environ: Mapping[str, str], public: str = "") -> frozenset[str]:
    """All values that must be masked, for programs that run with `environ`.

    public: text that is stored anyway, such as the facets of a task and the names of its cells. Of a variable
    that nobody listed, neither the value nor a part of it is masked if it occurs there, because it is then
    no secret. What calls itself a credential is masked all the same.
    """
    known = "\n".join(value for name, value in environ.items() if storage_of(name) is Storage.VALUE)
    found: set[str] = set()
    for name, value in environ.items():
        storage = storage_of(name)
        if storage is Storage.URLS:
            found.update(address_secrets(value))
        elif storage is Storage.NAME and is_credential_name(name):
            found.update(secrets_in(value))
        elif storage is Storage.NAME:
            found.update(_unlisted_secrets(value.strip(), f"{known}\n{public}"))
    found.update(secret for _path, secret in file_secrets(environ))
    return frozenset(_maskable(found))


def _unlisted_secrets(value: str, public: str) -> Iterator[str]:
    """The secrets of a variable that nobody listed, such as the JSON of a job or a list of cells."""
    yield from certain_secrets(value, is_credential_name)
    if not _is_ordinary(value, public):
        yield value
        yield from (part for part in parts_of(value) if not _is_ordinary(part, public))


def _maskable(found: set[str]) -> Iterator[str]:
    for value in found:
        text = value.strip()
        if len(text) >= MINIMUM_SECRET and text.lower() not in PUBLIC_USERS and not _is_path(text):
            yield text


def _is_ordinary(value: str, public: str) -> bool:
    """Whether an unlisted variable holds no secret but a number, a version, a word, a path or public text.

    Several public names, such as a list of cells, are ordinary too; the words of a passphrase are no names.
    """
    return (
        len(value) < MINIMUM_UNLISTED
        or _NUMBER.fullmatch(value) is not None
        or _WORDS.fullmatch(value) is not None
        or _is_path(value)
        or value in public
        or all(looks_random(word) and word in public for word in value.split())
    )


def _is_path(value: str) -> bool:
    """Whether the value is a path of this machine, or several with colons between them."""
    try:
        return all(
            part.startswith("/") and part.count("/") > 1 and Path("/", part.split("/")[1]).is_dir()
            for part in value.split(":")
        )
    except (OSError, ValueError):
        return False
