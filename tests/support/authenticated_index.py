"""A package index on this machine that requires a user name and a password."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self


class AuthenticatedIndex:
    """Serves the wheels of a folder to requests with one of `accepted` (`user:password`), others get `refusal`.

    users: the credentials of successful requests.
    """

    def __init__(self, folder: Path, accepted: Collection[str] = (), *, refusal: int = 401) -> None:
        self.refusal = refusal
        self.folder, self.accepted = folder, set(accepted)
        self.users: set[str] = set()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def do_HEAD(self) -> None:
                index.answer(self)

            def log_message(self, *_arguments: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def url(self, credentials: str = "", name: str = "main") -> str:
        return f"http://{credentials}{'@' if credentials else ''}{self.host}/{name}/simple"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        kind, _, encoded = request.headers.get("Authorization", "").partition(" ")
        try:
            user = base64.b64decode(encoded).decode() if kind == "Basic" else ""
        except (binascii.Error, UnicodeDecodeError):
            user = ""
        name = request.path.partition("?")[0].strip("/").rpartition("/")[2]
        file = self.folder / name
        status, content, body = 200, "text/html", b""
        if user not in self.accepted:
            status = self.refusal
        elif name.endswith(".whl"):
            status = 200 if file.is_file() else 404
            content, body = "application/octet-stream", file.read_bytes() if file.is_file() else b""
        else:
            wheels = sorted(self.folder.glob(f"{name.replace('-', '_')}-*.whl"))
            status = 200 if wheels else 404
            body = "".join(
                f'<a href="../../files/{wheel.name}">{wheel.name}</a>\n' for wheel in wheels
            ).encode()
        if status == 200:
            self.users.add(user)
        request.send_response(status)
        if status == 401:
            request.send_header("WWW-Authenticate", 'Basic realm="test"')
        request.send_header("Content-Type", content)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
