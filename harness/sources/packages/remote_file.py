"""A remote file read with HTTP range requests, to fetch a few members of a large wheel.

The PyPI library remotezip is not used: it sends one request per member and needs `requests`. Here, members
that are close to each other share a request, and pip's certificates and proxy apply.
"""

from __future__ import annotations

import io
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.digest import CHUNK_BYTES
from harness.sources.packages.index_credentials import authenticated_request, is_valid_url
from harness.sources.packages.index_settings import IndexSettings, local_path

TIMEOUT_S = 60.0
#: Bytes to fetch from the end of a zip archive, for its directory. A larger one needs another request.
TAIL_BYTES = 512 << 10
#: Members closer than this are cheaper to fetch with one request than with two.
MERGE_GAP_BYTES = 256 << 10
MIN_REQUEST_BYTES = 64 << 10
TOO_LARGE = "it is larger than"


class NoRangesError(Exception):
    """The server does not support range requests for this file."""


class RemoteFile(io.RawIOBase):
    """A seekable, read-only remote file. OSError for network errors, NoRangesError without range support.

    `prefetch` fetches byte ranges in few requests; everything else is fetched when it is read.
    """

    def __init__(self, url: str, settings: IndexSettings) -> None:
        super().__init__()
        self._url, self._settings = url, settings
        self._opener = _opener(settings)
        self._spans: list[tuple[int, bytes]] = []
        self._position = 0
        self.requests = 0
        self.received = 0
        self.size = self._fetch_tail()

    def prefetch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Fetch byte ranges (start, end), clipped to the file; ranges close to each other share a request."""
        merged: list[list[int]] = []
        for start, end in sorted(spans):
            if merged and start - merged[-1][1] <= MERGE_GAP_BYTES:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        for start, end in ((start, min(end, self.size)) for start, end in merged):
            if self._buffered(start, end) is None:
                self._spans.append((start, self._fetch(start, end)))

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, like `io.IOBase.seek`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes from the current position."""
        end = self.size if size < 0 else min(self.size, self._position + size)
        if end <= self._position:
            return b""
        data = self._buffered(self._position, end)
        if data is None:
            start = self._position
            self._spans.append(
                (start, self._fetch(start, min(self.size, max(end, start + MIN_REQUEST_BYTES))))
            )
            data = self._buffered(start, end) or b""
        self._position += len(data)
        return data

    def _buffered(self, start: int, end: int) -> bytes | None:
        for first, data in self._spans:
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        return None

    def _fetch_tail(self) -> int:
        with self._request(f"bytes=-{TAIL_BYTES}") as response:
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status != 206 or not total.isdigit():
                raise NoRangesError(self._url)
            data = response.read(TAIL_BYTES)
        self.received += len(data)
        self._spans.append((int(total) - len(data), data))
        return int(total)

    def _fetch(self, start: int, end: int) -> bytes:
        with self._request(f"bytes={start}-{end - 1}") as response:
            if response.status != 206:
                raise NoRangesError(self._url)
            data: bytes = response.read(end - start)
        if len(data) != end - start:
            raise OSError(f"the connection ended after {len(data)} of {end - start} bytes")
        self.received += len(data)
        return data

    def _request(self, span: str) -> Any:
        self.requests += 1
        # With transfer compression the ranges would refer to the compressed file.
        request = authenticated_request(self._url, self._settings)
        request.add_header("Range", span)
        request.add_header("Accept-Encoding", "identity")
        try:
            return self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (405, 416, 501):
                raise NoRangesError(self._url) from error
            raise


def open_remote(url: str, settings: IndexSettings) -> RemoteFile:
    """Open a remote file. OSError if it is missing, NoRangesError without range support."""
    _require_http(url)
    return RemoteFile(url, settings)


def download_file(url: str, settings: IndexSettings, target: Path, limit: int | None = None) -> None:
    """Download a file to `target`; OSError if that fails or it is larger than `limit` bytes."""
    _require_http(url)
    received = 0
    with (
        _opener(settings).open(authenticated_request(url, settings), timeout=TIMEOUT_S) as response,
        target.open("wb") as stream,
    ):
        while chunk := response.read(CHUNK_BYTES):
            received += len(chunk)
            if limit is not None and received > limit:
                raise OSError(f"{TOO_LARGE} {limit >> 20} MiB")
            stream.write(chunk)
        size = response.headers.get("Content-Length", "")
        if size.isdigit() and received != int(size):
            raise OSError(f"the connection ended after {received} of {size} bytes")


def download(url: str, settings: IndexSettings, limit: int, accept: str = "") -> bytes:
    """The content of a local or remote file; OSError if that fails or it is larger than `limit` bytes.

    accept: the media type to request.
    """
    path = local_path(url)
    if path is not None:
        data = Path(path).read_bytes()
    else:
        _require_http(url)
        request = authenticated_request(url, settings)
        if accept:
            request.add_header("Accept", accept)
        with _opener(settings).open(request, timeout=TIMEOUT_S) as response:
            data = response.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{TOO_LARGE} {limit >> 20} MiB")
    return data


def _require_http(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise OSError(f"{url.partition(':')[0]} is not a protocol of a package index")
    if not is_valid_url(url):
        raise OSError("its address on the package index is not a valid URL")


def _opener(settings: IndexSettings) -> urllib.request.OpenerDirector:
    cert = Path(settings.cert) if settings.cert else None
    context = ssl.create_default_context(
        cafile=str(cert) if cert and cert.is_file() else None,
        capath=str(cert) if cert and cert.is_dir() else None,
    )
    if settings.client_cert:
        context.load_cert_chain(settings.client_cert)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if settings.proxy:
        handlers.append(urllib.request.ProxyHandler({"http": settings.proxy, "https": settings.proxy}))
    return urllib.request.build_opener(*handlers)
