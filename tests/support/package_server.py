"""A package index on this machine that serves the files of a folder, with or without range requests."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

JSON_PAGE = "application/vnd.pypi.simple.v1+json"


class PackageServer:
    """A small package index: its files, whether it supports range requests, and the requests it got.

    digests: whether its pages state the SHA-256 of each file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranges = True
        self.digests = False
        self.cut = 0
        self.sent = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def do_HEAD(self) -> None:
                path = outer.folder / self.path.lstrip("/")
                self.send_response(200 if path.is_file() else 404)
                self.send_header("Content-Length", str(path.stat().st_size if path.is_file() else 0))
                self.send_header("Accept-Ranges", "bytes")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def link(self, file: Path) -> str:
        is_archive = self.digests and file.suffix in {".whl", ".gz"}
        digest = f"#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}" if is_archive else ""
        return f'<a href="/{file.relative_to(self.folder)}{digest}">{file.name}</a>'

    def page(self, folder: Path) -> bytes:
        """The page of a package as JSON, which has the dates of its files."""
        files = [
            {
                "filename": file.name,
                "url": f"/{file.relative_to(self.folder)}",
                "hashes": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
                "upload-time": "2025-03-01T00:00:00Z",
            }
            for file in sorted(folder.iterdir())
        ]
        return json.dumps({"files": files}).encode()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path = self.folder / request.path.lstrip("/")
        if path.is_dir() and request.headers["Accept"] == JSON_PAGE:
            data, kind = self.page(path), JSON_PAGE
        elif path.is_dir():
            data, kind = "".join(map(self.link, path.iterdir())).encode(), "text/html"
        elif path.is_file():
            data, kind = path.read_bytes(), "application/octet-stream"
        else:
            request.send_error(404)
            return
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range", ""))
        code, total = 200, len(data)
        if span and self.ranges and path.is_file():
            start = int(span[1]) if span[1] else max(0, total - int(span[2]))
            end = int(span[2]) + 1 if span[1] and span[2] else total
            data, code = data[start:end], 206
        request.send_response(code)
        request.send_header("Content-Type", kind)
        if code == 206:
            request.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{total}")
        data = data[: self.cut] if self.cut and code == 206 else data
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        # uv requests the metadata itself.
        self.sent += len(data) if "urllib" in request.headers["User-Agent"] else 0
        request.wfile.write(data)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PackageServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    made = PackageServer(folder)
    yield made
    made.http.shutdown()
    made.http.server_close()
    made.thread.join()


@pytest.fixture
def index(server: PackageServer, wheels: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Generates wheels in the folder of the server, and sets pip's index to it."""
    wheels.folder = server.folder / "big"
    wheels.folder.mkdir()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    return wheels
