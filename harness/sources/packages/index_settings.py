"""Package index settings: read from pip's configuration and passed on to uv as environment variables.

Users behind mirrors and private certificates have configured pip for them. uv does not read that
configuration, so every installation here uses `index_environment`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import ssl
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

import uv

from harness.errors import InfrastructureError, InputError
from harness.serialisation import JsonValue
from harness.sources.packages.pip_config import merged_settings
from harness.sources.packages.uv_config import uv_config_variables
from harness.sources.packages.uv_settings import SETTINGS_NAME
from harness.sources.redact import MASK, redact_text, redact_url
from harness.sources.secrets.stored_variables import stored_value
from harness.user_folders import exists, home_folder

# Alternative names of pip's options; its files and variables may use any of them.
ALIASES = {"pypi-url": "index-url", "default-timeout": "timeout"}
# pip splits these at white space; a source with higher priority replaces the whole list.
LISTS = ("extra-index-url", "find-links", "trusted-host", "use-feature")
SETTINGS = (
    *LISTS,
    "index-url",
    "no-index",
    "cert",
    "client-cert",
    "timeout",
    "retries",
    "proxy",
    "keyring-provider",
)
# Settings that would change what a cell resolves to. Pins come from the matrix, not from the machine.
NOT_APPLIED = ("constraint", "no-binary", "only-binary", "pre", "require-hashes", "no-deps")
# Sections of a pip configuration that `pip install` reads, lowest priority first.
SECTIONS = ("global", "install")

INHERITED = (
    "UV_CACHE_DIR",
    "UV_CONCURRENT_DOWNLOADS",
    "UV_CREDENTIALS_DIR",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_HTTP_CONNECT_TIMEOUT",
    "UV_HTTP_RETRIES",
    "UV_HTTP_TIMEOUT",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
    "UV_INSECURE_HOST",
    "UV_KEYRING_PROVIDER",
    "UV_LINK_MODE",
    "UV_NATIVE_TLS",
    "UV_OFFLINE",
    "UV_PYTHON_INSTALL_DIR",
    "UV_SYSTEM_CERTS",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "SSL_CLIENT_CERT",
    "NETRC",
    "HOME",
    "PATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)
CERTIFICATE_VARIABLES = {"SSL_CERT_FILE", "SSL_CERT_DIR", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS"}
PROXIES = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
TRUE_WORDS = ("y", "yes", "t", "true", "on", "1")
PYPI = "https://pypi.org/simple"
# The cache lifetimes of PyPI's index pages and files. Some proxies and mirrors send none, and uv would then
# request every package again in every resolution.
INDEX_CACHE_CONTROL = "max-age=600"
PYPI_FILE_CACHE_CONTROL = "max-age=365000000, immutable"


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Where packages come from. `origins`: the file or variable that each setting comes from.

    index_url: None for the default index. added_index_urls: indexes of a cell, not of this machine.
    inherited: environment variables that are passed to uv unchanged.
    """

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    added_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str = ""
    client_cert: str = ""
    timeout_s: int | None = None
    retries: int | None = None
    proxy: str = ""
    keyring: str = ""
    inherited: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def with_indexes(self, urls: tuple[str, ...]) -> IndexSettings:
        """These settings with additional indexes, for example a vendor's; `no_index` still disables all."""
        known = (self.index_url, *self.extra_index_urls, *self.added_index_urls)
        more = tuple(url for url in dict.fromkeys(urls) if url not in known)
        return replace(self, added_index_urls=(*self.added_index_urls, *more))

    def uv_environment(self) -> dict[str, str]:
        """Environment variables that make uv fetch what pip would. The user's UV_* settings have priority.

        uv reads the settings file of its working folder (`write_uv_settings`), and no other one.
        """
        variables = {**self.inherited, "UV_CONFIG_FILE": SETTINGS_NAME}

        def offer(name: str, value: str, *rivals: str) -> None:
            if value and not any(rival in self.inherited for rival in (name, *rivals)):
                variables[name] = value

        offer("UV_DEFAULT_INDEX", self.index_url or "", "UV_INDEX_URL")
        self._add_indexes(variables)
        offer("UV_FIND_LINKS", ",".join(self.find_links))
        offer("UV_INSECURE_HOST", " ".join(self.trusted_hosts))
        offer("UV_HTTP_TIMEOUT", "" if self.timeout_s is None else str(self.timeout_s))
        offer("UV_HTTP_RETRIES", "" if self.retries is None else str(self.retries))
        offer("UV_KEYRING_PROVIDER", self.keyring)
        # uv stops at the first index that has a package. pip, for which these settings were written, uses the
        # best version of all indexes and find-links folders.
        offer("UV_INDEX_STRATEGY", "unsafe-best-match")
        self._add_certificates(variables)
        for name in ("HTTPS_PROXY", "HTTP_PROXY") if self.proxy else ():
            variables[name] = self.proxy
        return variables

    def _add_indexes(self, variables: dict[str, str]) -> None:
        own = next((name for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL") if name in self.inherited), "")
        urls = variables[own].split() if own else [*self.extra_index_urls]
        urls += [url for url in self.added_index_urls if url not in urls]
        if urls:
            variables[own or "UV_INDEX"] = " ".join(urls)

    def _add_certificates(self, variables: dict[str, str]) -> None:
        if self.cert:
            variables.pop("SSL_CERT_DIR", None)
            variables["SSL_CERT_DIR" if Path(self.cert).is_dir() else "SSL_CERT_FILE"] = self.cert
        elif not CERTIFICATE_VARIABLES & set(variables) and _has_system_certificates():
            # Since 24.2 pip trusts the system's certificates; uv by default only trusts its own.
            variables["UV_SYSTEM_CERTS"] = "true"
        if self.client_cert:
            variables["SSL_CLIENT_CERT"] = self.client_cert

    @property
    def index_entries(self) -> tuple[str, ...]:
        """The indexes as uv's variables name them, `url` or `name=url`, the default one first."""
        variables = self.uv_environment()
        default = variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL") or PYPI
        others = f"{variables.get('UV_INDEX', '')} {variables.get('UV_EXTRA_INDEX_URL', '')}".split()
        return (default, *others)

    def uv_arguments(self) -> tuple[str, ...]:
        """Arguments for settings that uv has no environment variable for."""
        return ("--no-index",) if self.no_index else ()

    def uv_file(self) -> str:
        """A `uv.toml` with the cache lifetimes of these indexes, without credentials.

        Only PyPI guarantees that files never change; files of other indexes are cached as long as their
        pages.
        """
        # An entry may have the form `name=url`.
        default, *others = self.index_entries
        others = [url if url.startswith("http") else url.partition("=")[2] for url in others]
        tables = []
        for url in dict.fromkeys((default, *others)):
            if not url.startswith(("https://", "http://")) or "@" in url or self.no_index:
                continue
            files = PYPI_FILE_CACHE_CONTROL if url.rstrip("/") == PYPI else INDEX_CACHE_CONTROL
            tables.append(
                f"[[index]]\nurl = {json.dumps(url)}\n{'default = true' if url == default else ''}\n"
                f"cache-control = {{ api = {json.dumps(INDEX_CACHE_CONTROL)}, "
                f"files = {json.dumps(files)} }}\n"
            )
        return "\n".join(tables)

    def redacted(self) -> dict[str, JsonValue]:
        """The settings for logs and the ledger: addresses without credentials, queries and fragments.

        Of uv's variables, the values of those on the allow-list (`stored_variables`) are stored, and of the
        others only the names.
        """
        return {
            "index_url": redact_url(self.index_url) if self.index_url else None,
            "extra_index_urls": [redact_url(url) for url in self.extra_index_urls],
            "added_index_urls": [redact_url(url) for url in self.added_index_urls],
            "find_links": [redact_url(link) for link in self.find_links],
            "no_index": self.no_index,
            "trusted_hosts": [redact_text(f"://{host}")[3:] for host in self.trusted_hosts],
            "cert": self.cert,
            "timeout_s": self.timeout_s,
            "proxy": redact_url(self.proxy) if self.proxy else "",
            "uv": {
                name: MASK if (stored := stored_value(name, value)) is None else stored
                for name, value in self.inherited.items()
                if name.startswith("UV_")
            },
            "origins": dict(self.origins),
            "notices": list(self.notices),
        }


def index_environment(
    environ: Mapping[str, str],
    *,
    etc: Path = Path("/etc"),
    prefix: Path | None = None,
    cwd: Path | None = None,
) -> IndexSettings:
    """pip's settings as `pip install` would read them now, on Linux or macOS.

    `prefix` is the environment whose pip.conf is used (default: VIRTUAL_ENV, otherwise this interpreter's).
    Relative paths are relative to `cwd`. InputError if a configuration file cannot be read.
    """
    site = prefix or Path(environ.get("VIRTUAL_ENV") or sys.prefix)
    merged = merged_settings(environ, etc, site)
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    ignored: dict[str, str] = {}
    for section in (*SECTIONS, ":env:"):
        for (key_section, name), (value, origin) in merged.items():
            if key_section != section or not value:
                continue
            option = ALIASES.get(name, name)
            if option in SETTINGS:
                values[option], origins[option] = value, origin
            elif option in NOT_APPLIED:
                ignored[option] = origin
    notices = [
        f"pip's setting {name!r} ({origin}) is not used for cells: only the matrix defines their pins"
        for name, origin in sorted(ignored.items())
    ]
    pip_values = _PipValues(
        values=values, origins=origins, notices=notices, environ=environ, etc=etc, cwd=cwd or Path()
    )
    return pip_values.settings()


_UV_LOOKUP_LOCK = threading.Lock()


def uv_binary() -> str:
    """The uv program that this project pins; InfrastructureError if its package is installed without it."""
    try:
        # uv reads sysconfig. Before CPython 3.12, a second thread can see its variables half initialised
        # (_init_config_vars).
        with _UV_LOOKUP_LOCK:
            return str(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise InfrastructureError(
            "the uv program is missing",
            why=str(error),
            fix="reinstall this project: `pip install npu-matrix`",
        ) from error


def local_path(location: str) -> Path | None:
    """The local path that `location` names, or None if it is remote."""
    if location.startswith("file:"):
        return Path(os.fsdecode(unquote_to_bytes(urlsplit(location).path)))
    if "://" in location:
        return None
    return Path(location)


@dataclass(frozen=True, kw_only=True)
class _PipValues:
    """The values of pip's settings, and the file or variable that each comes from."""

    values: Mapping[str, str]
    origins: Mapping[str, str]
    notices: list[str]
    environ: Mapping[str, str]
    etc: Path
    cwd: Path

    def settings(self) -> IndexSettings:
        index_url = self.values.get("index-url")
        extras = self._existing_locations("extra-index-url")
        no_index = self._boolean("no-index")
        if index_url is not None:
            index_url = self._existing("index-url", index_url)
            if index_url is None and extras:
                # Without an index URL uv would use the default index, which the user has replaced.
                index_url = extras.pop(0)
            elif index_url is None:
                no_index = True
        proxy = self.values.get("proxy", "")
        keyring = self.values.get("keyring-provider", "")
        client_cert = self.values.get("client-cert", "")
        return IndexSettings(
            index_url=index_url,
            extra_index_urls=tuple(extras),
            find_links=tuple(link.replace(",", "%2C") for link in self._existing_locations("find-links")),
            no_index=no_index,
            trusted_hosts=tuple(self.values.get("trusted-host", "").split()),
            cert=self._certificate(),
            client_cert=str(self._path(client_cert)) if client_cert else "",
            timeout_s=self._number("timeout"),
            retries=self._number("retries"),
            proxy=proxy if not proxy or "://" in proxy else f"http://{proxy}",
            keyring=keyring if keyring == "subprocess" else "",
            inherited=_inherited(self.environ, self.etc),
            origins=dict(self.origins),
            notices=tuple(self.notices),
        )

    def _existing_locations(self, option: str) -> list[str]:
        locations = (self._existing(option, text) for text in self.values.get(option, "").split())
        return [location for location in locations if location is not None]

    def _existing(self, option: str, location: str) -> str | None:
        """The URL of a location, or None for a local path that does not exist."""
        path = local_path(location)
        if path is None:
            return location
        path = self._path(str(path))
        if not exists(path):
            # pip warns and continues; uv would stop.
            origin = self.origins.get(option, "")
            self.notices.append(f"{option} {location} ({origin}) does not exist and is ignored, as by pip")
            return None
        return path.as_uri()

    def _certificate(self) -> str:
        # pip uses its own setting first, then the variables of the requests library.
        candidates = [(self.values.get("cert", ""), self.origins.get("cert", ""))]
        candidates += [
            (self.environ.get(name, ""), name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
        ]
        for value, origin in candidates:
            if not value:
                continue
            path = self._path(value)
            if exists(path):
                return str(path)
            self.notices.append(f"the certificate bundle {value} ({origin}) does not exist and is ignored")
        return ""

    def _path(self, location: str) -> Path:
        """The absolute path of a location, which may start with `~`."""
        if location == "~" or location.startswith("~/"):
            location = f"{home_folder(self.environ)}{location[1:]}"
        path = self.cwd / location
        # A current folder that was deleted has no path.
        with contextlib.suppress(FileNotFoundError):
            return path.absolute()
        return path

    def _boolean(self, option: str) -> bool:
        value = self.values.get(option, "")
        if value and value.lower() not in (*TRUE_WORDS, "n", "no", "f", "false", "off", "0"):
            raise InputError(
                f"pip's setting {option} is {value!r}, not a boolean",
                why=f"set by {self.origins[option]}",
                fix="use true or false",
            )
        return value.lower() in TRUE_WORDS

    def _number(self, option: str) -> int | None:
        value = self.values.get(option)
        if value is None:
            return None
        try:
            return max(0, math.ceil(float(value)))
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"pip's setting {option} is {value!r}, not a number",
                why=f"set by {self.origins[option]}",
                fix="use whole seconds or a count",
            ) from error


def _inherited(environ: Mapping[str, str], etc: Path) -> dict[str, str]:
    names = [*INHERITED, *PROXIES, *(name.lower() for name in PROXIES)]
    credentials = [name for name in environ if name.startswith("UV_INDEX_") and name != "UV_INDEX_STRATEGY"]
    own = {name: environ[name] for name in dict.fromkeys([*names, *credentials]) if environ.get(name)}
    return {**uv_config_variables(environ, etc), **own}


def _has_system_certificates() -> bool:
    paths = ssl.get_default_verify_paths()
    return Path(paths.openssl_cafile).exists() or Path(paths.openssl_capath).is_dir()
