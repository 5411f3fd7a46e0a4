"""All releases of a package that an index lists, with the dates of their files.

uv and pip select one release; this reads the index page itself, in its JSON form
(https://packaging.python.org/en/latest/specifications/simple-repository-api/), because only that has dates.
"""

from __future__ import annotations

import urllib.error
from dataclasses import dataclass
from urllib.parse import urljoin

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pydantic import BaseModel, Field, ValidationError

from harness.errors import InfrastructureError, InputError
from harness.sources.packages.index_lookup import PublishedFile
from harness.sources.packages.index_settings import IndexSettings
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.remote_file import download
from harness.sources.redact import redact_text, redact_url

JSON_PAGE = "application/vnd.pypi.simple.v1+json"
MAX_PAGE_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class ListedRelease:
    """A release on an index. uploaded: the date of its first file, YYYY-MM-DD, "" if the index has none."""

    version: str
    uploaded: str
    files: tuple[PublishedFile, ...]
    yanked: bool = False


class _PageFile(BaseModel):
    filename: str
    url: str
    hashes: dict[str, str] = {}
    uploaded: str = Field(default="", alias="upload-time")
    yanked: bool | str = False


class _Page(BaseModel):
    files: list[_PageFile]


def listed_releases(package: str, settings: IndexSettings) -> tuple[ListedRelease, ...]:
    """The releases of a package on the first index that has it, oldest version first.

    InputError if no index has the package, InfrastructureError if an index cannot be reached or has no pages
    in JSON.
    """
    name = normal_name(package)
    absent = []
    for entry in settings.index_entries if not settings.no_index else ():
        address = entry if entry.startswith("http") else entry.partition("=")[2]
        if not address.startswith("http"):
            continue
        url = f"{address.rstrip('/')}/{name}/"
        try:
            page = _Page.model_validate_json(download(url, settings, MAX_PAGE_BYTES, accept=JSON_PAGE))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                absent.append(redact_url(address))
                continue
            raise _unreachable(name, address, str(error)) from error
        except OSError as error:
            raise _unreachable(name, address, str(error)) from error
        except ValidationError as error:
            raise _unreachable(name, address, "its page is not JSON of the simple repository API") from error
        return _releases(name, url, page)
    raise InputError(
        f"no package index has {name}",
        why=f"searched: {', '.join(absent) or 'no index over http is configured'}",
        fix="correct the name, or configure an index (`pip config list`)",
    )


def _unreachable(name: str, address: str, why: str) -> InfrastructureError:
    return InfrastructureError(
        f"the releases of {name} could not be listed",
        why=f"{redact_url(address)}: {redact_text(why)}",
        fix="check the network and pip's index settings (`pip config list`), then run again",
    )


def _releases(name: str, url: str, page: _Page) -> tuple[ListedRelease, ...]:
    files: dict[Version, list[_PageFile]] = {}
    for file in page.files:
        version = _version_of(file.filename)
        if version is not None:
            files.setdefault(version, []).append(file)
    return tuple(
        ListedRelease(
            version=str(version),
            uploaded=min((file.uploaded[:10] for file in found if file.uploaded), default=""),
            files=tuple(
                PublishedFile(
                    package=name,
                    version=str(version),
                    url=urljoin(url, file.url),
                    sha256=file.hashes.get("sha256", ""),
                )
                for file in found
            ),
            yanked=all(file.yanked is not False for file in found),
        )
        for version, found in sorted(files.items())
    )


def _version_of(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, ValueError):
        return None
