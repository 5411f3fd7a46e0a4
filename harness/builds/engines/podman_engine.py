"""Podman, used through its Docker-compatible API service. The service is started if none runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import docker

from harness.builds.engines.engine import no_daemon_error
from harness.builds.engines.sdk_engine import SdkEngine
from harness.builds.ownership.temporary_folders import make_temporary_folder

SECONDS_TO_START = 20.0
# The service ends by itself when it was idle for so long.
IDLE_SECONDS = 300


class PodmanEngine(SdkEngine):
    """Podman of this user: at CONTAINER_HOST, its default socket, or a service that this class starts."""

    name = "podman"
    log_driver = ("k8s-file", "max-size")

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        super().__init__(environ.get("CONTAINER_HOST") or _usual_socket(environ))
        self._service: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> docker.DockerClient:
        """The connection; starts a service when none runs."""
        if self._opened is None and not self.address:
            self._serve()
        return super().client

    def close(self) -> None:
        """Close the connection and stop the service that was started."""
        super().close()
        if self._service is not None:
            self._service.terminate()
            self._service.wait()
            self._service = None
            shutil.rmtree(self.address.removeprefix("unix://").rpartition("/")[0], ignore_errors=True)
            self.address = ""

    def _serve(self) -> None:
        program = shutil.which("podman", path=self._environ.get("PATH"))
        if program is None:
            raise no_daemon_error(self.name, "this host", "there is no program podman")
        folder = make_temporary_folder()
        address = f"unix://{folder}/podman.sock"
        argv = [program, "system", "service", "--time", str(IDLE_SECONDS), address]
        # Podman's monitor reports an out-of-memory kill as a file in its working directory.
        self._service = subprocess.Popen(
            argv, env=self._environ, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + SECONDS_TO_START
        while not (folder / "podman.sock").exists():
            if self._service.poll() is not None or time.monotonic() > deadline:
                raise no_daemon_error(self.name, address, "its service did not start")
            time.sleep(0.05)
        self.address = address


def _usual_socket(environ: Mapping[str, str]) -> str:
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    sockets = [Path(runtime) / "podman/podman.sock"]
    if os.getuid() == 0:
        sockets.append(Path("/run/podman/podman.sock"))
    for socket in sockets:
        with contextlib.suppress(OSError):
            if socket.is_socket():
                return f"unix://{socket}"
    return ""
