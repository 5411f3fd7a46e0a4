"""Docker's API, which podman speaks too, through Docker's SDK: images by steps, containers, labels, logs."""

from __future__ import annotations

import contextlib
import io
import os
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

from harness.builds.engine import (
    ARCHITECTURES,
    LENT,
    BuildError,
    Ended,
    Facts,
    Image,
    Lent,
    Mount,
    Order,
    Tell,
    Thing,
    base_not_reachable,
    layer_image,
    no_daemon,
    no_permission,
)
from harness.builds.labels import KEY, OWNER, is_ours
from harness.builds.layers import Layer
from harness.errors import InfrastructureError
from harness.sources.fetch_failure import fetch_failure, machine_failure

SHELL = ("/bin/bash", "-euo", "pipefail", "-c")
CALL_SECONDS = 60.0
TAIL_BYTES = 16 << 10
MOST_PROCESSES = 4096
WAIT_SLICE_SECONDS = 1.0


class SdkEngine:
    """`harness.builds.engine.Engine` over a socket that speaks Docker's API.

    log_driver: how the daemon keeps a container's output, with the option that caps it.
    """

    name = "docker"
    log_driver = ("json-file", "max-size")

    def __init__(self, address: str) -> None:
        self.address = address
        self._opened: docker.DockerClient | None = None

    @property
    def client(self) -> docker.DockerClient:
        """The connection, made at first use; InfrastructureError when nobody answers, or not us."""
        if self._opened is None:
            with self._errors("be spoken to"):
                self._opened = docker.DockerClient(
                    base_url=self.address, version="auto", timeout=int(CALL_SECONDS)
                )
        return self._opened

    def facts(self) -> Facts:
        """Version and architecture."""
        with self._errors("tell its version"):
            found = self.client.version()
        arch = ARCHITECTURES.get(found["Arch"], found["Arch"])
        return Facts(version=found["Version"], arch=arch, builder=self.builder)

    @property
    def builder(self) -> str:
        """How layers are built when anything may be lent to them."""
        return "steps"

    def image(self, reference: str) -> Image | None:
        """By name or id, on this host."""
        with self._errors("look for an image"):
            try:
                return _image(self.client.api.inspect_image(reference))
            except (ImageNotFound, NotFound):
                return None

    def pull(self, reference: str) -> Image:
        """From its registry."""
        try:
            self.client.api.pull(reference)
        except (DockerException, requests.RequestException) as error:
            raise base_not_reachable(reference, _reason(error)) from error
        found = self.image(reference)
        if found is None:
            raise base_not_reachable(reference, "the registry answered, and the image is not here")
        return found

    def build(self, parent: str, layer: Layer, lent: Lent, labels: Mapping[str, str], tell: Tell) -> Image:
        """Run the layer's commands in a container and keep what they changed.

        What is lent is mounted on a file system in memory, so the layer cannot hold it; the classic builder
        of Docker has neither mounts nor secrets.
        """
        with contextlib.ExitStack() as stack:
            mounts = [*lent.mounts, *stack.enter_context(_secret_files(lent.secrets))]
            order = Order(
                name=f"npu-matrix-build-{layer.key[:12]}-{os.getpid()}-{time.monotonic_ns()}",
                image=parent,
                argv=(*SHELL, "\n".join(layer.commands) or "true"),
                labels=labels,
                mounts=tuple(mounts),
                network="host",
            )
            container = self._create(order, tmpfs={LENT: "size=1m"})
            stack.callback(self._remove_quietly, container)
            with self._errors("be given a layer's files"):
                if layer.files:
                    self.client.api.put_archive(container, "/", _archive(layer.files))
                self.client.api.start(container)
            tail = bytearray()

            def write(data: bytes) -> None:
                tail.extend(data)
                del tail[:-TAIL_BYTES]
                tell(data.decode(errors="replace"))

            self.follow(container, write)
            self._require_built(container, layer, tail.decode(errors="replace"))
            return self._commit(container, layer)

    def _require_built(self, container: str, layer: Layer, tail: str) -> None:
        ended = self.wait(container, CALL_SECONDS)
        if ended is not None and ended.code == 0:
            return
        if failure := fetch_failure(tail):
            raise failure.error()
        if error := machine_failure(tail):
            raise error
        raise BuildError(layer.name, tail)

    def _commit(self, container: str, layer: Layer) -> Image:
        repository, _, tag = layer_image(layer.key).partition(":")
        with self._errors("store a layer"):
            made = self.client.api.commit(
                container, repository=repository, tag=tag, changes=['CMD ["/bin/bash"]', "WORKDIR /"]
            )
        found = self.image(made["Id"])
        if found is None:
            raise InfrastructureError(f"{self.name} lost the layer {layer.name}", fix="run again")
        return found

    def start(self, order: Order) -> str:
        """Create and start a container."""
        container = self._create(order)
        try:
            with self._errors("start a container"):
                self.client.api.start(container)
        except InfrastructureError:
            self._remove_quietly(container)
            raise
        return container

    def _create(self, order: Order, tmpfs: Mapping[str, str] | None = None) -> str:
        driver, cap = self.log_driver
        with self._errors("create a container"):
            host = self.client.api.create_host_config(
                mounts=[_bind(mount) for mount in order.mounts],
                tmpfs=dict(tmpfs or {}),
                network_mode=order.network,
                mem_limit=order.memory_bytes or None,
                # No swap beyond the limit: a cell that needs more is to be told so, not to crawl.
                memswap_limit=order.memory_bytes or None,
                shm_size=order.shm_bytes or None,
                pids_limit=MOST_PROCESSES,
                devices=[f"{device}:{device}:rwm" for device in order.devices],
                log_config=LogConfig(type=driver, config={cap: str(order.log_bytes)}),
                security_opt=["no-new-privileges"],
            )
            made = self.client.api.create_container(
                order.image,
                command=list(order.argv),
                entrypoint=[],
                name=order.name,
                environment=dict(order.env),
                labels=dict(order.labels),
                working_dir=order.workdir,
                user=order.user or None,
                host_config=host,
            )
        return str(made["Id"])

    def follow(self, container: str, write: Callable[[bytes], None]) -> None:
        """Its output, standard error among it, until it ends."""
        with self._errors("hand on a container's output"):
            # Its log, not its streams: attaching to one that has just ended never comes back.
            for chunk in self.client.api.logs(container, stream=True, follow=True):
                write(chunk)

    def wait(self, container: str, seconds: float) -> Ended | None:
        """Ask until it has ended or the time is up."""
        deadline = time.monotonic() + seconds
        while True:
            with self._errors("tell how a container ended"):
                try:
                    state = self.client.api.inspect_container(container)["State"]
                except NotFound as error:
                    raise InfrastructureError(
                        "the container was removed by somebody else while it was needed", fix="run again"
                    ) from error
            if state["Status"] in ("exited", "dead", "stopped"):
                return Ended(code=int(state["ExitCode"]), out_of_memory=bool(state.get("OOMKilled")))
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(WAIT_SLICE_SECONDS / 10, left))

    def signal(self, container: str, name: str) -> None:
        """KILL ends the container; anything else is sent from inside to all but its first process."""
        with self._errors("send a signal"), contextlib.suppress(NotFound):
            try:
                if name == "KILL":
                    self.client.api.kill(container)
                    return
                argv = ["/bin/bash", "-c", f"kill -s {name} -1"]
                self.client.api.exec_start(self.client.api.exec_create(container, argv)["Id"], detach=True)
            except APIError as error:
                # It ended meanwhile.
                if error.status_code not in (409, 500) or "running" not in str(error):
                    raise

    def copy_out(self, image: str, path: str, folder: Path) -> bool:
        """Unpack what lies below `path` into `folder`; links that lead outside are refused."""
        made = self._create(Order(name="", image=image, argv=("true",), labels={}))
        try:
            with self._errors("copy files out"), tempfile.TemporaryFile() as file:
                try:
                    stream, _facts = self.client.api.get_archive(made, path)
                except NotFound:
                    return False
                for chunk in stream:
                    file.write(chunk)
                file.seek(0)
                _unpack(file, PurePosixPath(path).name, folder)
                return True
        finally:
            self._remove_quietly(made)

    def history(self, image: str) -> str:
        """Commands, environment and labels."""
        with self._errors("tell an image's history"):
            steps = [str(step) for step in self.client.api.history(image)]
            return "\n".join([*steps, str(self.client.api.inspect_image(image))])

    def things(self) -> tuple[Thing, ...]:
        """Containers, networks and images with our labels."""
        filters = {"label": OWNER}
        with self._errors("list what it holds"):
            api = self.client.api
            containers = [_container(one) for one in api.containers(all=True, filters=filters)]
            images = [_stored(one) for one in api.images(filters=filters)]
            networks = [_network(one) for one in api.networks(filters=filters)]
        return tuple(thing for thing in [*containers, *networks, *images] if is_ours(thing.labels))

    def remove(self, thing: Thing) -> None:
        """Remove it with force."""
        with self._errors(f"remove a {thing.kind}"), contextlib.suppress(NotFound, ImageNotFound):
            if thing.kind == "container":
                self.client.api.remove_container(thing.id, force=True, v=True)
            elif thing.kind == "network":
                self.client.api.remove_network(thing.id)
            elif thing.kind == "image":
                self.client.api.remove_image(thing.name or thing.id)

    def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _remove_quietly(self, container: str) -> None:
        with contextlib.suppress(DockerException, requests.RequestException):
            self.client.api.remove_container(container, force=True, v=True)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Failures of the daemon or the way to it, as errors with a fix."""
        try:
            yield
        except NotFound:
            raise
        except (DockerException, requests.RequestException, OSError) as error:
            raise self._error(what, error) from error

    def _error(self, what: str, error: Exception) -> InfrastructureError:
        reason = _reason(error)
        if isinstance(error, APIError):
            return machine_failure(reason) or InfrastructureError(
                f"{self.name} could not {what}", why=reason, fix="see the daemon's log, then run again"
            )
        if "PermissionError" in reason:
            return no_permission(self.name, self.address, reason)
        return no_daemon(self.name, self.address, reason)


@contextlib.contextmanager
def _secret_files(secrets: Mapping[str, bytes]) -> Iterator[list[Mount]]:
    """Secrets as files only this user can read, for as long as the build takes."""
    with tempfile.TemporaryDirectory(prefix="npu-matrix-build-") as folder:
        mounts = []
        for name, data in secrets.items():
            path = Path(folder) / name
            path.touch(mode=0o600)
            path.write_bytes(data)
            mounts.append(Mount(source=path, target=f"{LENT}/{name}"))
        yield mounts


def _archive(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def _unpack(file: Any, top: str, folder: Path) -> None:
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            relative = PurePosixPath(member.name).relative_to(top)
            if str(relative) == ".":
                continue
            member.name = str(relative)
            archive.extract(member, folder, filter="data")


def _bind(mount: Mount) -> Any:
    return BindMount(mount.target, str(mount.source), type="bind", read_only=not mount.writable)


def _image(facts: Mapping[str, Any]) -> Image:
    return Image(
        id=_full_id(facts["Id"]),
        arch=ARCHITECTURES.get(facts["Architecture"], facts["Architecture"]),
        bytes=int(facts.get("Size") or 0),
        labels=(facts.get("Config") or {}).get("Labels") or {},
        digests=tuple(facts.get("RepoDigests") or ()),
    )


def _full_id(identity: str) -> str:
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


def _container(facts: Mapping[str, Any]) -> Thing:
    return Thing(
        kind="container",
        id=facts["Id"],
        name=(facts.get("Names") or [""])[0].lstrip("/"),
        labels=facts.get("Labels") or {},
        created=float(facts["Created"]),
        running=facts.get("State") == "running",
    )


def _stored(facts: Mapping[str, Any]) -> Thing:
    labels = facts.get("Labels") or {}
    return Thing(
        kind="image",
        id=_full_id(facts["Id"]),
        # A layer's image is named by its key; without its name it is gone for us.
        name=layer_image(labels[KEY]) if KEY in labels else "",
        labels=labels,
        created=float(facts["Created"]),
        bytes=int(facts.get("Size") or 0),
    )


def _network(facts: Mapping[str, Any]) -> Thing:
    try:
        created = datetime.fromisoformat(facts["Created"][:19]).timestamp()
    except (KeyError, ValueError):
        created = 0.0
    return Thing(
        kind="network",
        id=facts["Id"],
        name=facts.get("Name", ""),
        labels=facts.get("Labels") or {},
        created=created,
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, APIError) and error.explanation:
        return str(error.explanation)
    return f"{error}" or type(error).__name__
