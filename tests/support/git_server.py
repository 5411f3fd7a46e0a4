"""A git server on 127.0.0.1: the program `git http-backend` behind HTTP, with the faults of real servers."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from git_command import git


def make_repository(folder: Path, files: Mapping[str, str]) -> str:
    """A repository with one commit on `main`; returns its id."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    return commit_files(folder, files)


def commit_files(folder: Path, files: Mapping[str, str]) -> str:
    """Commit files; returns the id of the commit."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "change")
    return git(folder, "rev-parse", "HEAD")


@dataclass
class GitServer:
    """A running server for the repositories below `root`.

    password: the password of the user `reader`, if one is needed. cut_after: bytes after which a pack is cut
    off. stalls: whether requests are never answered. stall_from: the number of the request from which on none is
    answered. requests: the paths that were asked for.
    """

    root: Path
    port: int = 0
    password: str = ""
    cut_after: int = 0
    stalls: bool = False
    stall_from: int = 1 << 30
    requests: list[str] = field(default_factory=list)

    def url(self, name: str) -> str:
        """The address of a repository."""
        return f"http://127.0.0.1:{self.port}/{name}"

    @property
    def packs(self) -> int:
        """How many requests asked for objects or references."""
        return sum(one.endswith("git-upload-pack") and one.startswith("POST") for one in self.requests)


class _Handler(BaseHTTPRequestHandler):
    served: GitServer

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        server = self.served
        path, _mark, query = self.path.partition("?")
        server.requests.append(f"{self.command} {path}")
        if server.stalls or len(server.requests) >= server.stall_from:
            time.sleep(60)
            return
        expected = "Basic " + base64.b64encode(f"reader:{server.password}".encode()).decode()
        if server.password and self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="private"')
            self.end_headers()
            return
        variables = {
            "GIT_PROJECT_ROOT": str(server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "uploadpack.allowFilter",
            "GIT_CONFIG_VALUE_0": "true",
            "GIT_CONFIG_KEY_1": "safe.directory",
            "GIT_CONFIG_VALUE_1": "*",
        }
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            env={**os.environ, **variables},
            capture_output=True,
            check=False,
        )
        head, _blank, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            cut = server.cut_after if b"packfile" in content[:200] else 0
            self.wfile.write(content[:cut] if cut else content)
            if cut:
                self.close_connection = True

    def log_message(self, *_args: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def git_server(root: Path) -> Iterator[GitServer]:
    """A server for the repositories below `root` while the block runs."""
    served = GitServer(root)
    handler = type("Handler", (_Handler,), {"served": served})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        http.block_on_close = False
        served.port = http.server_port
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            http.shutdown()
