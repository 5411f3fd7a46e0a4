"""The variants that an index of wheel variants has of a release."""

from __future__ import annotations

import html.parser
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urljoin, urlsplit

from harness.errors import InfrastructureError, Location
from harness.sources.packages.index_settings import IndexSettings, local_path
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.remote_file import download
from harness.sources.packages.wheel_variants import Variants, read_variants
from harness.sources.redact import redact_text, redact_url

MAX_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class PublishedVariants:
    """The variants of a release, and the files that the index lists: name -> address.

    digests: name -> SHA-256, for files of which the index states it.
    """

    variants: Variants
    files: Mapping[str, str]
    digests: Mapping[str, str] = field(default_factory=dict)


def published_variants(
    index: str, package: str, version: str, settings: IndexSettings
) -> PublishedVariants | None:
    """What the index has of a release; None if it has no variants of it.

    InfrastructureError if the index cannot be reached, InputError if its description is damaged.
    """
    page = f"{index.rstrip('/')}/{normal_name(package)}/"
    links = _links(page, settings)
    files = {name: address for name, (address, _) in links.items()}
    name = f"{normal_name(package).replace('-', '_')}-{version}-variants.json"
    if name not in files:
        return None
    text = _read(files[name], settings).decode("utf-8", "replace")
    digests = {name: digest for name, (_, digest) in links.items() if digest}
    return PublishedVariants(
        variants=read_variants(text, Location(redact_url(files[name]))), files=files, digests=digests
    )


def _links(page: str, settings: IndexSettings) -> dict[str, tuple[str, str]]:
    """Name of a file -> its address, and its SHA-256 or ""."""
    folder = local_path(page)
    if folder is not None:
        if not folder.is_dir():
            raise _unreachable(page, "there is no such folder")
        return {file.name: (file.as_uri(), "") for file in sorted(folder.iterdir()) if file.is_file()}
    links = _Links()
    links.feed(_read(page, settings).decode("utf-8", "replace"))
    addresses = [urljoin(page, link) for link in links.found]
    found = {}
    for one in addresses:
        address, _, fragment = one.partition("#")
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        name = unquote(posixpath.basename(urlsplit(address).path))
        found[name] = (address, digest[1] if digest else "")
    return found


def _read(url: str, settings: IndexSettings) -> bytes:
    try:
        return download(url, settings, MAX_BYTES)
    except OSError as error:
        raise _unreachable(url, redact_text(str(error))) from error


def _unreachable(url: str, why: str) -> InfrastructureError:
    return InfrastructureError(
        "the index of wheel variants cannot be read", where=Location(redact_url(url)), why=why
    )


class _Links(html.parser.HTMLParser):
    """The links of an index page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
