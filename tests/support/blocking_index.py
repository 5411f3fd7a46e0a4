"""A local package index in which the download of one wheel blocks until the test releases it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

SECONDS_AT_MOST = 600


class BlockingIndex:
    """Serves the wheels of a folder. Requests for the wheel `blocked` are answered after `release`.

    requested: set when the first request for that wheel arrives. environ: pip's variables that make this the
    only index.
    """

    def __init__(self, folder: Path, blocked: str) -> None:
        self.folder, self.blocked = folder, blocked
        self.requested, self._released = threading.Event(), threading.Event()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, *_arguments: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PIP_NO_INDEX": "",
            "PIP_FIND_LINKS": "",
            "PIP_INDEX_URL": f"http://127.0.0.1:{self._server.server_port}",
            "UV_HTTP_TIMEOUT": str(SECONDS_AT_MOST),
        }

    def release(self) -> None:
        self._released.set()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.strip("/")
        file = self.folder / name.rpartition("/")[2]
        if name.endswith(".whl") and file.is_file():
            if file.name == self.blocked:
                self.requested.set()
                self._released.wait(SECONDS_AT_MOST)
            body, kind = file.read_bytes(), "application/octet-stream"
        else:
            wheels = sorted(self.folder.glob(f"{name}-*.whl"))
            body = "".join(f'<a href="/files/{wheel.name}">{wheel.name}</a>\n' for wheel in wheels).encode()
            kind = "text/html"
        try:
            request.send_response(200)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
        except OSError:
            # The client was stopped meanwhile.
            return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
