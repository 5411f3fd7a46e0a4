"""What a container engine does for us: one small protocol, and the words it is spoken in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.builds.engines.image_layers import Layer
from harness.devices.host.container_service import storage_remedy
from harness.errors import InfrastructureError, InputError

# What a build is build_files and does not keep: a file system in memory hides it from every layer.
BUILD_TIME_FOLDER = "/run/npu-matrix"
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
LogWriter = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of this host inside a container, at `target`."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildTimeFiles:
    """What reaches a build and stays out of its layers, all below `LENT`.

    secrets: name -> content (index settings with their credentials, certificates, netrc).
    mounts: folders and programs of this host (find-links folders, caches, mirrors, the installer).
    """

    secrets: Mapping[str, bytes] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image on this host: its id by content, its architecture (`x86_64`), its registry digests."""

    id: str
    arch: str
    bytes: int
    labels: Mapping[str, str]
    digests: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container to run.

    `memory_bytes` and `shm_bytes` 0 mean the engine's default; `log_bytes` caps what the engine keeps of its
    output; `network` is `none` or `host`.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    workdir: str = "/"
    user: str = ""
    memory_bytes: int = 0
    shm_bytes: int = 0
    log_bytes: int = 20 << 20
    devices: tuple[str, ...] = ()
    network: str = "none"


@dataclass(frozen=True, kw_only=True)
class ContainerExit:
    """How a container ended; `out_of_memory` when the kernel killed something in it for its limit."""

    code: int
    out_of_memory: bool


@dataclass(frozen=True, kw_only=True)
class EngineResource:
    """Something with our labels that an engine holds: kind is `container`, `image` or `network`."""

    kind: str
    id: str
    name: str
    labels: Mapping[str, str]
    created: float
    bytes: int = 0
    running: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """An engine: version, architecture, and how it builds (`buildkit` or `steps`)."""

    version: str
    arch: str
    builder: str


class Engine(Protocol):
    """It builds images and runs containers; every method raises InfrastructureError when it fails."""

    @property
    def name(self) -> str:
        """What users call it."""

    def info(self) -> EngineInfo:
        """What it is; InfrastructureError names a daemon that is not there or may not be spoken to."""

    def storage(self) -> Path | None:
        """The folder of this machine that takes its images; None where that cannot be told."""

    def image(self, reference: str) -> Image | None:
        """The image of that name or id on this host."""

    def pull(self, reference: str) -> Image:
        """Fetch an image."""

    def build(
        self,
        parent: str,
        layer: Layer,
        build_files: BuildTimeFiles,
        labels: Mapping[str, str],
        log: LogWriter,
    ) -> Image:
        """`parent` and one layer more, named `layer_image(layer.key)`; BuildError when its commands fail."""

    def start(self, spec: ContainerSpec) -> str:
        """Start a container and return its id."""

    def follow(self, container: str, write: Callable[[bytes], None]) -> None:
        """Hand on its output until it ends."""

    def last_lines(self, container: str) -> bytes:
        """The end of its output as the engine kept it, whole lines; for one that has ended."""

    def wait(self, container: str, seconds: float) -> ContainerExit | None:
        """How it ended; None when it has not after `seconds`."""

    def signal(self, container: str, name: str) -> None:
        """Send a signal to every process in it; nothing when it has ended."""

    def copy_out(self, image: str, path: str, folder: Path) -> bool:
        """Files of an image below `path` into `folder`; False when the image has no such path."""

    def history(self, image: str) -> str:
        """All that the image tells of its making: commands, environment, labels."""

    def resources(self) -> tuple[EngineResource, ...]:
        """Everything with our labels, running or not."""

    def remove(self, resource: EngineResource) -> None:
        """Remove it, running or not; nothing when it is gone already."""

    def close(self) -> None:
        """Nothing more is asked of it."""


class BuildError(Exception):
    """The commands of a layer failed, which says something of the cell; `tail` is the end of their output."""

    def __init__(self, layer: str, tail: str) -> None:
        super().__init__(f"layer {layer} cannot be built")
        self.layer, self.tail = layer, tail


def layer_image(key: str) -> str:
    """What an image that ends with this layer is called."""
    return f"npu-matrix-layer:{key}"


def no_daemon_error(engine: str, address: str, why: str) -> InfrastructureError:
    """Nobody answers."""
    return InfrastructureError(
        f"{engine} does not answer at {address}",
        why=why,
        fix=f"start it, or point DOCKER_HOST at it, or run without --engine {engine}: "
        "the embedded engine needs no daemon",
    )


def no_permission_error(engine: str, address: str, why: str) -> InfrastructureError:
    """It answers others."""
    return InfrastructureError(
        f"this user may not speak to {engine} at {address}",
        why=why,
        fix="join the group that owns the socket and log in again, or use --engine podman: it needs no group",
    )


def remote_daemon_error(engine: str, address: str, why: str) -> InfrastructureError:
    """It answers, and its files are not ours."""
    return InfrastructureError(
        f"{engine} at {address} is on another machine",
        why=f"{why}; cells see folders of this host through bind mounts, which a daemon takes from its own",
        fix="run npu-matrix on that machine, or let it take part as a node: npu-matrix run --executor ray",
    )


def full_disk_error(engine: str, what: str, why: str) -> InfrastructureError:
    """The disk of its images is full."""
    return InfrastructureError(
        f"{engine} could not {what}: its disk is full",
        why=why,
        fix=storage_remedy(engine),
    )


def no_shell_error(engine: str, what: str, why: str) -> InfrastructureError:
    """The image lacks what starts every command of ours."""
    return InfrastructureError(
        f"{engine} could not {what}: the base image has no bash",
        why=why,
        fix="name one that has: --base-image (NPU_MATRIX_BASE_IMAGE); those of CANN and of Python do",
    )


def wrong_architecture_error(reference: str, image: str, wanted: str) -> InputError:
    """The image's programs cannot run for this cell."""
    return InputError(
        f"the image {reference} is for {image}, the cell is for {wanted}",
        fix=f"name an image for {wanted}, or run this cell on a host of its architecture",
    )


def base_unavailable_error(reference: str, why: str) -> InfrastructureError:
    """The base image is not here and cannot be fetched."""
    return InfrastructureError(
        f"the base image {reference} is not on this host and cannot be fetched",
        why=why,
        fix="fetch it on a host that can and bring it here (`docker save`, `docker load`), "
        "or name one that is here: --base-image NAME@sha256:DIGEST (NPU_MATRIX_BASE_IMAGE)",
    )


def missing_digest_notice(reference: str) -> str:
    """What is said of a base image that is named by a tag alone: what it is may change any day."""
    return (
        f"The base image {reference} has no registry digest, so nobody else can name the same one: "
        "push it to a registry and name it by digest."
    )
