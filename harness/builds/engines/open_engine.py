"""Opens container engines by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from harness.builds.engines.engine import Engine
from harness.errors import InfrastructureError

DOCKER_SOCKET = Path("/var/run/docker.sock")


def open_engine(name: str, environ: Mapping[str, str] = os.environ) -> Engine:
    """The container engine `docker` or `podman`; InfrastructureError if the Docker SDK is not installed."""
    if not _sdk_installed():
        raise InfrastructureError(
            f"the engine {name} needs the Docker SDK, which is not installed",
            fix="pip install 'npu-matrix[docker]'",
        )
    # These modules need the Docker SDK, an optional dependency.
    from harness.builds.engines.docker_engine import DockerEngine
    from harness.builds.engines.podman_engine import PodmanEngine

    return PodmanEngine(environ) if name == "podman" else DockerEngine(environ)


def known_engines() -> tuple[Engine, ...]:
    """The container engines whose socket or program this host has."""
    if not _sdk_installed():
        return ()
    names = []
    if os.environ.get("DOCKER_HOST") or DOCKER_SOCKET.exists():
        names.append("docker")
    if shutil.which("podman"):
        names.append("podman")
    return tuple(open_engine(name) for name in names)


def _sdk_installed() -> bool:
    """Whether the Docker SDK is installed. `import docker` alone also imports any folder of that name."""
    try:
        import docker.errors  # noqa: F401
    except ImportError:
        return False
    return True
