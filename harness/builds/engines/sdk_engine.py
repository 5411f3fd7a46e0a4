"""Docker's API, which podman speaks too, through Docker's SDK: images by steps, containers, labels, logs."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import LogConfig
from docker.types import Mount as BindMount

from harness.builds.engines.engine import (
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
    full_daemon,
    layer_image,
    no_daemon,
    no_permission,
    no_shell,
    remote_daemon,
)
from harness.builds.engines.image_layers import Layer
from harness.builds.engines.sdk_archives import archive_of, secret_files, unpack
from harness.builds.engines.sdk_facts import container_of, image_of, network_of, stored_of
from harness.builds.upkeep.labels import OWNER, is_ours
from harness.devices.host.container_service import storage_folder
from harness.errors import InfrastructureError
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure

SHELL = ("/bin/bash", "-euo", "pipefail", "-c")
CALL_SECONDS = 60.0
# One call stores or removes a gigabyte, and says nothing until it is done.
STORE_SECONDS = 1800.0
TAIL_BYTES = 16 << 10
MOST_PROCESSES = 4096
LAST_LINES = 200
WAIT_SLICE_SECONDS = 1.0
FULL = ("no space left on device", "disk quota exceeded")
# Addresses that cannot lead to another host.
LOCAL = ("unix://", "http+unix://", "npipe://", "fd://", "/")


class SdkEngine:
    """`harness.builds.engines.engine.Engine` over a socket that speaks Docker's API.

    log_driver: how the daemon keeps a container's output, with the option that caps it.
    """

    name = "docker"
    log_driver = ("json-file", "max-size")

    def __init__(self, address: str) -> None:
        self.address = address
        self._opened: docker.DockerClient | None = None

    @property
    def client(self) -> docker.DockerClient:
        """The connection, made at first use; InfrastructureError for nobody, not us, or another machine."""
        if self._opened is None:
            if self.address.startswith("ssh://"):
                raise remote_daemon(self.name, self.address, "ssh leads to another machine")
            with self._errors("be spoken to"):
                opened = docker.DockerClient(base_url=self.address, version="auto", timeout=int(CALL_SECONDS))
                name = "" if self.address.startswith(LOCAL) else str(opened.api.info().get("Name", ""))
            if name and name != socket.gethostname():
                opened.close()
                raise remote_daemon(self.name, self.address, f"the daemon calls its host {name}")
            self._opened = opened
        return self._opened

    def facts(self) -> Facts:
        """Version and architecture."""
        with self._errors("tell its version"):
            found = self.client.version()
            version, arch = str(found["Version"]), str(found["Arch"])
        return Facts(version=version, arch=ARCHITECTURES.get(arch, arch), builder=self.builder)

    def storage(self) -> Path | None:
        """As the daemon tells it."""
        with self._errors("tell where it keeps images"):
            return storage_folder(self.client.info())

    @property
    def builder(self) -> str:
        """How layers are built when anything may be lent to them."""
        return "steps"

    def image(self, reference: str) -> Image | None:
        """By name or id, on this host."""
        with self._errors("look for an image"):
            try:
                return image_of(self.client.api.inspect_image(reference))
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
            mounts = [*lent.mounts, *stack.enter_context(secret_files(lent.secrets))]
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
                    self.client.api.put_archive(container, "/", archive_of(layer.files))
            with self._errors("start a layer's commands"):
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
        if error := storage_failure(self.name, "build a layer", tail):
            raise error
        raise BuildError(layer.name, tail)

    def _commit(self, container: str, layer: Layer) -> Image:
        repository, _, tag = layer_image(layer.key).partition(":")
        with self._errors("store a layer"), self._patience():
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

    def last_words(self, container: str) -> bytes:
        """Its last lines, from the engine's own log."""
        with self._errors("tell a container's last words"):
            return bytes(self.client.api.logs(container, tail=LAST_LINES))

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
                unpack(file, PurePosixPath(path).name, folder)
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
            containers = [container_of(one) for one in api.containers(all=True, filters=filters)]
            images = [stored_of(one) for one in api.images(filters=filters)]
            networks = [network_of(one) for one in api.networks(filters=filters)]
        return tuple(thing for thing in [*containers, *networks, *images] if is_ours(thing.labels))

    def remove(self, thing: Thing) -> None:
        """Remove it with force."""
        forgive = contextlib.suppress(NotFound, ImageNotFound)
        with self._errors(f"remove a {thing.kind}"), forgive, self._patience():
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

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """For calls that take as long as the daemon's disk."""
        api = self.client.api
        usual, api.timeout = api.timeout, STORE_SECONDS
        try:
            yield
        finally:
            api.timeout = usual

    def _remove_quietly(self, container: str) -> None:
        with contextlib.suppress(DockerException, requests.RequestException), self._patience():
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
        except (KeyError, TypeError) as error:
            raise InfrastructureError(
                f"{self.name} could not {what}: it answers in a way nobody here understands",
                why=f"{type(error).__name__}: {error}",
                fix=f"see whether {self.address} is Docker's API, and which version",
            ) from error

    def _error(self, what: str, error: Exception) -> InfrastructureError:
        reason = _reason(error)
        if isinstance(error, APIError):
            if SHELL[0] in reason and "no such file" in reason:
                return no_shell(self.name, what, reason)
            return storage_failure(self.name, what, reason) or InfrastructureError(
                f"{self.name} could not {what}", why=reason, fix="see the daemon's log, then run again"
            )
        if "PermissionError" in reason:
            return no_permission(self.name, self.address, reason)
        # What came from the daemon could not be stored here.
        return machine_failure(reason) or no_daemon(self.name, self.address, reason)


def storage_failure(engine: str, what: str, output: str) -> InfrastructureError | None:
    """An error when `output` speaks of a disk that does not take more; a build's files are the daemon's."""
    line = next((line for line in output.splitlines() if any(w in line.lower() for w in FULL)), None)
    return machine_failure(output) if line is None else full_daemon(engine, what, line.strip())


def _bind(mount: Mount) -> Any:
    return BindMount(mount.target, str(mount.source), type="bind", read_only=not mount.writable)


def _reason(error: BaseException) -> str:
    if isinstance(error, APIError) and error.explanation:
        return str(error.explanation)
    return f"{error}" or type(error).__name__
