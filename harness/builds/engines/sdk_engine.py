"""An engine that is used through the Docker SDK for Python. Podman offers the same API as Docker."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import LogConfig
from docker.types import Mount as BindMount

from harness.builds.engines.build_time_files import secret_files
from harness.builds.engines.engine import (
    ARCHITECTURES,
    BUILD_TIME_FOLDER,
    BuildError,
    ContainerExit,
    ContainerSpec,
    EngineInfo,
    EngineResource,
    Image,
    LayerBuild,
    Mount,
    base_unavailable_error,
    full_disk_error,
    layer_image,
    no_daemon_error,
    no_permission_error,
    remote_daemon_error,
)
from harness.builds.engines.image_layers import Layer
from harness.builds.ownership.owner_labels import KEY, OWNER, PARENT, has_owner_labels
from harness.devices.host.container_service import storage_folder
from harness.errors import InfrastructureError
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure
from harness.sources.tar_members import write_member

SHELL = ("/bin/bash", "-euo", "pipefail", "-c")
CALL_SECONDS = 60.0
# Storing or removing an image of some gigabytes is one call without progress.
STORE_SECONDS = 1800.0
TAIL_BYTES = 16 << 10
MOST_PROCESSES = 4096
LAST_LINES = 200
WAIT_SLICE_SECONDS = 1.0
FULL = ("no space left on device", "disk quota exceeded")
# Addresses that are always on this host.
LOCAL = ("unix://", "http+unix://", "npipe://", "fd://", "/")


class SdkEngine:
    """An `Engine` that is reached at a socket with Docker's API.

    log_driver: the driver with which the daemon stores output, and its option for the size limit.
    """

    name = "docker"
    log_driver = ("json-file", "max-size")

    def __init__(self, address: str) -> None:
        self.address = address
        self._opened: docker.DockerClient | None = None

    @property
    def client(self) -> docker.DockerClient:
        """The connection, opened at first use.

        InfrastructureError when no daemon responds, access is denied, or the daemon runs on another host.
        """
        if self._opened is None:
            if self.address.startswith("ssh://"):
                raise remote_daemon_error(self.name, self.address, "ssh leads to another machine")
            with self._errors("be reached"):
                opened = docker.DockerClient(base_url=self.address, version="auto", timeout=int(CALL_SECONDS))
                name = "" if self.address.startswith(LOCAL) else str(opened.api.info().get("Name", ""))
            if name and name != socket.gethostname():
                opened.close()
                raise remote_daemon_error(self.name, self.address, f"the daemon calls its host {name}")
            self._opened = opened
        return self._opened

    def info(self) -> EngineInfo:
        """Version, architecture and builder."""
        with self._errors("report its version"):
            versions = self.client.version()
            version, arch = str(versions["Version"]), str(versions["Arch"])
        return EngineInfo(version=version, arch=ARCHITECTURES.get(arch, arch), builder=self.builder)

    def storage(self) -> Path | None:
        """The folder that the daemon reports."""
        with self._errors("report where it stores images"):
            return storage_folder(self.client.info())

    @property
    def builder(self) -> str:
        """How layers are built: `steps` or `buildkit`."""
        return "steps"

    def image(self, reference: str) -> Image | None:
        """The image with this name or id on this host, or None."""
        with self._errors("look for an image"):
            try:
                return _read_image(self.client.api.inspect_image(reference))
            except (ImageNotFound, NotFound):
                return None

    def pull(self, reference: str) -> Image:
        """Pull the image from its registry."""
        try:
            self.client.api.pull(reference)
        except (DockerException, requests.RequestException) as error:
            raise base_unavailable_error(reference, _reason(error)) from error
        image = self.image(reference)
        if image is None:
            raise base_unavailable_error(reference, "the pull succeeded, but the image is not on this host")
        return image

    def save(self, reference: str) -> Iterator[bytes]:
        """The image as `docker save` writes it."""
        with self._errors(f"save the image {reference}"):
            yield from self.client.api.get_image(reference)

    def load(self, archive: Iterator[bytes]) -> None:
        """Store images as `docker load` does."""
        with self._errors("load an image"), self._store_timeout():
            for step in self.client.api.load_image(archive):
                if "error" in step:
                    raise InfrastructureError(f"{self.name} could not load an image", why=str(step["error"]))

    def tag(self, image: str, reference: str) -> None:
        """Name an image."""
        repository, _, tag = reference.rpartition(":")
        with self._errors("name an image"):
            self.client.api.tag(image, repository, tag, force=True)

    def build(self, request: LayerBuild) -> Image:
        """Run the layer's commands in a container and commit it as an image.

        Build-time files are mounted on a file system in memory, so the layer cannot contain them. Docker's
        classic builder has neither mounts nor secrets.
        """
        layer, build_files = request.layer, request.build_files
        with contextlib.ExitStack() as stack:
            mounts = [*build_files.mounts, *stack.enter_context(secret_files(build_files.secrets))]
            spec = ContainerSpec(
                name=f"npu-matrix-build-{layer.key[:12]}-{os.getpid()}-{time.monotonic_ns()}",
                image=request.parent,
                argv=(*SHELL, "\n".join(layer.commands) or "true"),
                labels=request.labels,
                mounts=tuple(mounts),
                network="host",
            )
            container = self._create(spec, tmpfs={BUILD_TIME_FOLDER: "size=1m"})
            stack.callback(self._remove_quietly, container)
            with self._errors("receive the files of a layer"):
                if layer.files:
                    self.client.api.put_archive(container, "/", _make_archive(layer.files))
            with self._errors("start a layer's commands"):
                self.client.api.start(container)
            tail = bytearray()

            def write(data: bytes) -> None:
                tail.extend(data)
                del tail[:-TAIL_BYTES]
                request.log(data.decode(errors="replace"))

            self.follow(container, write)
            self._require_built(container, layer, tail.decode(errors="replace"))
            return self._commit(container, layer)

    def _require_built(self, container: str, layer: Layer, tail: str) -> None:
        ended = self.wait(container, CALL_SECONDS)
        if ended is not None and ended.code == 0:
            return
        if failure := fetch_failure(tail):
            raise failure.error()
        if error := storage_failure(self.name, "build a layer", tail):
            raise error
        raise BuildError(layer.name, tail)

    def _commit(self, container: str, layer: Layer) -> Image:
        repository, _, tag = layer_image(layer.key).partition(":")
        with self._errors("store a layer"), self._store_timeout():
            made = self.client.api.commit(
                container, repository=repository, tag=tag, changes=['CMD ["/bin/bash"]', "WORKDIR /"]
            )
        image = self.image(made["Id"])
        if image is None:
            raise InfrastructureError(
                f"{self.name} built the layer {layer.name} but does not have it", fix="run again"
            )
        return image

    def start(self, spec: ContainerSpec) -> str:
        """Create and start a container."""
        container = self._create(spec)
        try:
            with self._errors("start a container"):
                self.client.api.start(container)
        except InfrastructureError:
            self._remove_quietly(container)
            raise
        return container

    def _create(self, spec: ContainerSpec, tmpfs: Mapping[str, str] | None = None) -> str:
        driver, cap = self.log_driver
        with self._errors("create a container"):
            host = self.client.api.create_host_config(
                mounts=[_bind(mount) for mount in spec.mounts],
                tmpfs=dict(tmpfs or {}),
                network_mode=spec.network,
                mem_limit=spec.memory_bytes or None,
                # No swap: a cell that needs more memory should fail, not become slow.
                memswap_limit=spec.memory_bytes or None,
                shm_size=spec.shm_bytes or None,
                pids_limit=MOST_PROCESSES,
                group_add=[str(group) for group in spec.groups],
                devices=[f"{device}:{device}:rwm" for device in spec.devices],
                log_config=LogConfig(type=driver, config={cap: str(spec.log_bytes)}),
                security_opt=["no-new-privileges"],
            )
            made = self.client.api.create_container(
                spec.image,
                command=list(spec.argv),
                entrypoint=[],
                name=spec.name,
                environment=dict(spec.env),
                labels=dict(spec.labels),
                working_dir=spec.workdir,
                user=spec.user or None,
                host_config=host,
            )
        return str(made["Id"])

    def follow(self, container: str, write: Callable[[bytes], None]) -> None:
        """Pass on standard output and standard error until the container ends."""
        with self._errors("pass on the output of a container"):
            # The log is read, because attaching to a container that has just ended blocks forever.
            for chunk in self.client.api.logs(container, stream=True, follow=True):
                write(chunk)

    def last_lines(self, container: str) -> bytes:
        """The last lines of the engine's log."""
        with self._errors("return the last lines of a container"):
            return bytes(self.client.api.logs(container, tail=LAST_LINES))

    def wait(self, container: str, seconds: float) -> ContainerExit | None:
        """Poll until the container has ended or the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            with self._errors("report how a container ended"):
                try:
                    state = self.client.api.inspect_container(container)["State"]
                except NotFound as error:
                    raise InfrastructureError(
                        "another process removed the container while it was in use", fix="run again"
                    ) from error
            if state["Status"] in ("exited", "dead", "stopped"):
                return ContainerExit(code=int(state["ExitCode"]), out_of_memory=bool(state.get("OOMKilled")))
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(WAIT_SLICE_SECONDS / 10, left))

    def signal(self, container: str, name: str) -> None:
        """KILL kills the container; other signals are sent to all processes in it except the first."""
        with self._errors("send a signal"), contextlib.suppress(NotFound):
            try:
                if name == "KILL":
                    self.client.api.kill(container)
                    return
                argv = ["/bin/bash", "-c", f"kill -s {name} -1"]
                self.client.api.exec_start(self.client.api.exec_create(container, argv)["Id"], detach=True)
            except APIError as error:
                # The container has ended in the meantime.
                if error.status_code not in (409, 500) or "running" not in str(error):
                    raise

    def copy_out(self, image: str, path: str, folder: Path) -> bool:
        """Copy the files below `path` into `folder`; links that lead outside are refused."""
        made = self._create(ContainerSpec(name="", image=image, argv=("true",), labels={}))
        try:
            with self._errors("copy files out"), tempfile.TemporaryFile() as file:
                try:
                    stream, _facts = self.client.api.get_archive(made, path)
                except NotFound:
                    return False
                for chunk in stream:
                    file.write(chunk)
                file.seek(0)
                _unpack_archive(file, PurePosixPath(path).name, folder)
                return True
        finally:
            self._remove_quietly(made)

    def resources(self) -> tuple[EngineResource, ...]:
        """Containers, networks and images with the labels of npu-matrix."""
        filters = {"label": OWNER}
        with self._errors("list containers, images and networks"):
            api = self.client.api
            containers = [_read_container_resource(one) for one in api.containers(all=True, filters=filters)]
            # The images below those of npu-matrix may be somebody else's.
            sizes = {_full_id(one["Id"]): int(one.get("Size") or 0) for one in api.images(all=True)}
            images = [_read_image_resource(one, sizes) for one in api.images(filters=filters)]
            networks = [_read_network_resource(one) for one in api.networks(filters=filters)]
        return tuple(
            resource for resource in [*containers, *networks, *images] if has_owner_labels(resource.labels)
        )

    def remove(self, resource: EngineResource) -> None:
        """Remove a container, network or image by force."""
        already_gone = contextlib.suppress(NotFound, ImageNotFound)
        with self._errors(f"remove a {resource.kind}"), already_gone, self._store_timeout():
            if resource.kind == "container":
                self.client.api.remove_container(resource.id, force=True, v=True)
            elif resource.kind == "network":
                self.client.api.remove_network(resource.id)
            elif resource.kind == "image":
                self.client.api.remove_image(resource.name or resource.id)

    def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @contextlib.contextmanager
    def _store_timeout(self) -> Iterator[None]:
        """A longer timeout for calls that store or remove images."""
        api = self.client.api
        usual, api.timeout = api.timeout, STORE_SECONDS
        try:
            yield
        finally:
            api.timeout = usual

    def _remove_quietly(self, container: str) -> None:
        with contextlib.suppress(DockerException, requests.RequestException), self._store_timeout():
            self.client.api.remove_container(container, force=True, v=True)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turns failures of the daemon or the connection into errors with a fix."""
        try:
            yield
        except NotFound:
            raise
        except (DockerException, requests.RequestException, OSError) as error:
            raise self._error(what, error) from error
        except (KeyError, TypeError) as error:
            raise InfrastructureError(
                f"{self.name} could not {what}: its response has an unknown form",
                why=f"{type(error).__name__}: {error}",
                fix=f"check that {self.address} is a Docker API, and its version",
            ) from error

    def _error(self, what: str, error: Exception) -> InfrastructureError:
        reason = _reason(error)
        if isinstance(error, APIError):
            if SHELL[0] in reason and "no such file" in reason:
                return InfrastructureError(
                    f"{self.name} could not {what}: the base image has no bash",
                    why=reason,
                    fix="use a base image with bash (--base-image); the CANN and Python images have it",
                )
            return storage_failure(self.name, what, reason) or InfrastructureError(
                f"{self.name} could not {what}", why=reason, fix="read the daemon's log, then run again"
            )
        if "PermissionError" in reason:
            return no_permission_error(self.name, self.address, reason)
        # Data from the daemon could not be stored on this host.
        return machine_failure(reason) or no_daemon_error(self.name, self.address, reason)


def storage_failure(engine: str, what: str, output: str) -> InfrastructureError | None:
    """An error when `output` reports a full disk; the files of a build are on the daemon's disk."""
    line = next((line for line in output.splitlines() if any(w in line.lower() for w in FULL)), None)
    return machine_failure(output) if line is None else full_disk_error(engine, what, line.strip())


def _bind(mount: Mount) -> Any:
    return BindMount(mount.target, str(mount.source), type="bind", read_only=not mount.writable)


def _reason(error: BaseException) -> str:
    if isinstance(error, APIError) and error.explanation:
        return str(error.explanation)
    return f"{error}" or type(error).__name__


def _make_archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of files by absolute path."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def _unpack_archive(file: Any, top: str, folder: Path) -> None:
    """Extract the members below `top` into `folder`; links that lead outside are refused."""
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            relative = PurePosixPath(member.name).relative_to(top)
            if str(relative) == ".":
                continue
            member.name = str(relative)
            write_member(archive, member, folder)


# Podman also gives local images a digest, but no registry has them.
LOCAL_DIGEST_PREFIX = "localhost/"


def _read_image(facts: Mapping[str, Any]) -> Image:
    """Read the result of `inspect_image`."""
    return Image(
        id=_full_id(facts["Id"]),
        arch=ARCHITECTURES.get(facts["Architecture"], facts["Architecture"]),
        bytes=int(facts.get("Size") or 0),
        labels=(facts.get("Config") or {}).get("Labels") or {},
        digests=tuple(
            one for one in facts.get("RepoDigests") or () if not one.startswith(LOCAL_DIGEST_PREFIX)
        ),
    )


def _full_id(identity: str) -> str:
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


def _read_container_resource(facts: Mapping[str, Any]) -> EngineResource:
    """Read an entry of `containers`."""
    return EngineResource(
        kind="container",
        id=facts["Id"],
        name=(facts.get("Names") or [""])[0].lstrip("/"),
        labels=facts.get("Labels") or {},
        created=float(facts["Created"]),
        running=facts.get("State") == "running",
    )


def _read_image_resource(facts: Mapping[str, Any], sizes: Mapping[str, int]) -> EngineResource:
    """Read an entry of `images`. sizes: image id -> its size, which includes the images below it."""
    labels = facts.get("Labels") or {}
    below = sizes.get(_full_id(labels.get(PARENT) or ""), 0)
    return EngineResource(
        kind="image",
        id=_full_id(facts["Id"]),
        # The image of a layer is found by its name, which contains its key.
        name=layer_image(labels[KEY]) if KEY in labels else "",
        labels=labels,
        created=float(facts["Created"]),
        bytes=max(0, int(facts.get("Size") or 0) - below),
    )


def _read_network_resource(facts: Mapping[str, Any]) -> EngineResource:
    """Read an entry of `networks`."""
    try:
        created = datetime.fromisoformat(facts["Created"][:19]).timestamp()
    except (KeyError, ValueError):
        created = 0.0
    return EngineResource(
        kind="network",
        id=facts["Id"],
        name=facts.get("Name", ""),
        labels=facts.get("Labels") or {},
        created=created,
    )
