"""The protocol of container engines, its types, and the errors that engines raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.builds.engines.image_layers import Layer
from harness.devices.host.container_service import storage_remedy
from harness.errors import DiskSpaceError, InfrastructureError

# Folder of the build-time files in a build: a file system in memory, which no layer contains.
BUILD_TIME_FOLDER = "/run/npu-matrix"
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
LogWriter = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of this host that is mounted at `target` in a container."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildTimeFiles:
    """Files that a build can read below `BUILD_TIME_FOLDER`, but that no layer contains.

    secrets: name -> content (index settings with their credentials, certificates, netrc).
    mounts: folders and programs of this host (find-links folders, caches, mirrors, the installer).
    """

    secrets: Mapping[str, bytes] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerBuild:
    """A layer to build on the image with the id `parent`.

    labels: the labels of the new image. log: receives the output of the commands.
    """

    parent: str
    layer: Layer
    build_files: BuildTimeFiles
    labels: Mapping[str, str]
    log: LogWriter


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image on this host.

    id: digest of its content. arch: such as `x86_64`. digests: its digests in registries.
    """

    id: str
    arch: str
    bytes: int
    labels: Mapping[str, str]
    digests: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container to run.

    memory_bytes, shm_bytes: 0 means the engine's default. log_bytes: limit of the engine's log of its output.
    groups: ids of groups, in addition to that of `user`. network: `none` or `host`.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    workdir: str = "/"
    user: str = ""
    groups: tuple[int, ...] = ()
    memory_bytes: int = 0
    shm_bytes: int = 0
    log_bytes: int = 20 << 20
    devices: tuple[str, ...] = ()
    network: str = "none"


@dataclass(frozen=True, kw_only=True)
class ContainerExit:
    """How a container ended. out_of_memory: the kernel killed a process in it for exceeding its limit."""

    code: int
    out_of_memory: bool


@dataclass(frozen=True, kw_only=True)
class EngineResource:
    """A container, image or network (see `kind`) that npu-matrix created, recognised by its labels."""

    kind: str
    id: str
    name: str
    labels: Mapping[str, str]
    created: float
    bytes: int = 0
    running: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """An engine: its version, its architecture, and how it builds layers (`buildkit` or `steps`)."""

    version: str
    arch: str
    builder: str


class Engine(Protocol):
    """Builds images and runs containers. Every method raises InfrastructureError when it fails."""

    @property
    def name(self) -> str:
        """`docker` or `podman`."""

    def info(self) -> EngineInfo:
        """Version and architecture; InfrastructureError when the daemon cannot be reached."""

    def storage(self) -> Path | None:
        """The folder of this host in which the engine stores images; None if that is not known."""

    def image(self, reference: str) -> Image | None:
        """The image with this name or id on this host, or None."""

    def pull(self, reference: str) -> Image:
        """Fetch an image."""

    def save(self, reference: str) -> Iterator[bytes]:
        """The image as an archive that `load` reads; InfrastructureError when this host does not have it."""

    def load(self, archive: Iterator[bytes]) -> None:
        """Store the images of an archive that `save` wrote."""

    def tag(self, image: str, reference: str) -> None:
        """Give the image with this id the name `reference`, also if another image has it."""

    def build(self, request: LayerBuild) -> Image:
        """Build the image `layer_image(request.layer.key)`; BuildError if a command fails."""

    def start(self, spec: ContainerSpec) -> str:
        """Start a container and return its id."""

    def follow(self, container: str, write: Callable[[bytes], None]) -> None:
        """Pass the output of a container to `write` until it ends."""

    def last_lines(self, container: str) -> bytes:
        """The last lines of the output of a container that has ended, from the engine's log."""

    def wait(self, container: str, seconds: float) -> ContainerExit | None:
        """How a container ended; None if it still runs after `seconds`."""

    def signal(self, container: str, name: str) -> None:
        """Send a signal to every process in a container; without effect if it has ended."""

    def copy_out(self, image: str, path: str, folder: Path) -> bool:
        """Copy the files of an image below `path` into `folder`; False when the image has no such path."""

    def resources(self) -> tuple[EngineResource, ...]:
        """All containers, images and networks that npu-matrix created, running or not."""

    def remove(self, resource: EngineResource) -> None:
        """Remove a resource, running or not; without effect if it does not exist any more."""

    def close(self) -> None:
        """Close the connection."""


class BuildError(Exception):
    """The commands of a layer failed because of the cell; `tail` is the end of their output."""

    def __init__(self, layer: str, tail: str) -> None:
        super().__init__(f"layer {layer} cannot be built")
        self.layer, self.tail = layer, tail


def layer_image(key: str) -> str:
    """The name of the image whose last layer has this key."""
    return f"npu-matrix-layer:{key}"


def no_daemon_error(engine: str, address: str, why: str) -> InfrastructureError:
    """The daemon does not respond."""
    return InfrastructureError(
        f"{engine} does not respond at {address}",
        why=why,
        fix=f"start it, set DOCKER_HOST to its address, or run without --engine {engine}: "
        "virtual environments need no daemon",
    )


def no_permission_error(engine: str, address: str, why: str) -> InfrastructureError:
    """This user has no access to the daemon."""
    return InfrastructureError(
        f"this user has no permission to use {engine} at {address}",
        why=why,
        fix="join the group that owns the socket and log in again, or use --engine podman without a group",
    )


def remote_daemon_error(engine: str, address: str, why: str) -> InfrastructureError:
    """The daemon runs on another host."""
    return InfrastructureError(
        f"{engine} at {address} runs on another host",
        why=f"{why}; cells need bind mounts of this host, and a daemon mounts only its own folders",
        fix="run npu-matrix on that host, or add it to a Ray cluster and use npu-matrix run --executor ray",
    )


def full_disk_error(engine: str, what: str, why: str) -> InfrastructureError:
    """The disk with the engine's images is full."""
    return DiskSpaceError(
        f"{engine} could not {what}: its disk is full",
        why=why,
        fix=storage_remedy(engine),
    )


def base_unavailable_error(reference: str, why: str) -> InfrastructureError:
    """The base image is not on this host and cannot be pulled."""
    return InfrastructureError(
        f"the base image {reference} is not on this host and cannot be pulled",
        why=why,
        fix="pull it on another host and copy it here (`docker save`, `docker load`), or use an image of "
        "this host: --base-image NAME@sha256:DIGEST (NPU_MATRIX_BASE_IMAGE)",
    )
