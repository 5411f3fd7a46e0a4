"""The user name and password for a file of a package index, from where pip and uv read them.

These are the address of the index, uv's variables for a named index, and netrc. They are used for the request
only, and are part of no address, argument or message.
"""

from __future__ import annotations

import base64
import netrc
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from harness.sources.packages.index_settings import IndexSettings
from harness.user_folders import home_folder

LISTS = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


class Login(NamedTuple):
    """A user name and a password."""

    user: str
    password: str


def authenticated_request(url: str, settings: IndexSettings) -> urllib.request.Request:
    """A request for `url` with the credentials that `settings` has for it; a redirect does not get them."""
    parts = urlsplit(url)
    login = _login_of(parts) or _login_for(parts, settings)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(plain)  # noqa: S310 - the caller has checked that it is http or https
    if login is not None:
        encoded = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    return request


def is_valid_url(url: str) -> bool:
    """Whether an address can be parsed, with its port."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _login_for(url: SplitResult, settings: IndexSettings) -> Login | None:
    """The login of the index on the same host whose path has the longest common start with that of `url`."""
    here = [
        (_common(index.path, url.path), login)
        for index, login in _logins(settings)
        if (index.scheme, index.hostname, index.port) == (url.scheme, url.hostname, url.port)
    ]
    return max(here, key=lambda one: one[0])[1] if here else _netrc_login(url, settings)


def _logins(settings: IndexSettings) -> Iterator[tuple[SplitResult, Login]]:
    variables = settings.uv_environment()
    for entry in (entry for name in LISTS for entry in re.split(r"[\s,]+", variables.get(name, ""))):
        named = re.fullmatch(r"(?P<name>[\w.-]+)=(?P<url>[a-z]+://.*)", entry)
        url = named["url"] if named else entry
        if not is_valid_url(url):
            continue
        index = urlsplit(url)
        login = _login_of(index)
        if named and login is None:
            prefix = f"UV_INDEX_{re.sub('[^A-Z0-9]', '_', named['name'].upper())}"
            user, password = (variables.get(f"{prefix}_{part}", "") for part in ("USERNAME", "PASSWORD"))
            login = Login(user, password) if user or password else None
        if login is not None:
            yield index, login


def _login_of(url: SplitResult) -> Login | None:
    user, colon, password = url.netloc.rpartition("@")[0].partition(":")
    return Login(unquote(user), unquote(password)) if user or colon else None


def _netrc_login(url: SplitResult, settings: IndexSettings) -> Login | None:
    variables = settings.uv_environment()
    file = Path(variables.get("NETRC") or home_folder(variables) / ".netrc")
    try:
        found = netrc.netrc(file).authenticators(url.hostname or "") if file.is_file() else None
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
    return Login(found[0], found[2] or "") if found else None


def _common(first: str, second: str) -> int:
    """How many characters both paths have in common at the start."""
    differing = (n for n, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differing, min(len(first), len(second)))
