"""An engine in memory for tests: images, layers and containers whose programs are Python functions.

It stores files of each layer, labels and history but no build-time files, refuses what a real engine refuses,
and records which layers it built.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.builds.engines.engine import (
    BuildError,
    BuildTimeFiles,
    ContainerExit,
    ContainerSpec,
    EngineInfo,
    EngineResource,
    Image,
    LogWriter,
    base_unavailable_error,
    full_disk_error,
    layer_image,
    no_daemon_error,
)
from harness.builds.engines.image_layers import Layer
from harness.builds.ownership.owner_labels import is_ours
from harness.digest import digest_json
from harness.errors import InfrastructureError

KILLED = 137


@dataclass(kw_only=True)
class MemoryProcess:
    """What a program in a container has: its spec, its output, and the signals sent to it."""

    spec: ContainerSpec
    write: Callable[[bytes], None]
    killed: threading.Event = field(default_factory=threading.Event)
    signals: list[str] = field(default_factory=list)


Program = Callable[[MemoryProcess], int]


@dataclass(kw_only=True)
class _StoredImage:
    image: Image
    files: Mapping[str, bytes]
    history: tuple[str, ...]
    created: float


@dataclass(kw_only=True)
class _MemoryContainer:
    spec: ContainerSpec
    process: MemoryProcess
    thread: threading.Thread
    created: float
    output: bytearray = field(default_factory=bytearray)
    ended: ContainerExit | None = None


class MemoryEngine:
    """`harness.builds.engines.engine.Engine` without a daemon.

    programs: first word of a command line -> function that returns the exit code; one that returns `KILLED`
    in a container with a memory limit was out of memory. `failing` names layers whose commands fail,
    `registry` is what can be pulled, `running` says whether the daemon does, `room` how many bytes of layers
    its disk still takes, `folder` where it would keep them.
    """

    name = "memory"

    def __init__(self, arch: str = "x86_64", programs: Mapping[str, Program] | None = None) -> None:
        self.arch = arch
        self.programs = dict(programs or {})
        self.registry: dict[str, Image] = {}
        self.failing: set[str] = set()
        self.running = True
        self.room = float("inf")
        self.folder: Path | None = None
        self.built: list[str] = []
        self._images: dict[str, _StoredImage] = {}
        self._names: dict[str, str] = {}
        self._containers: dict[str, _MemoryContainer] = {}
        self._networks: dict[str, EngineResource] = {}

    def info(self) -> EngineInfo:
        """Its architecture; it builds by steps."""
        self._require_running()
        return EngineInfo(version="1", arch=self.arch, builder="steps")

    def storage(self) -> Path | None:
        """`folder`."""
        self._require_running()
        return self.folder

    def add_base(self, reference: str, arch: str = "", digests: tuple[str, ...] = ()) -> Image:
        """Put an image onto this host, as `docker load` does."""
        identity = "sha256:" + digest_json(reference)
        image = Image(id=identity, arch=arch or self.arch, bytes=0, labels={}, digests=digests)
        self._images[identity] = _StoredImage(image=image, files={}, history=(), created=time.time())
        self._names[reference] = identity
        return image

    def image(self, reference: str) -> Image | None:
        """By name or id."""
        self._require_running()
        stored = self._images.get(self._names.get(reference, reference))
        return stored.image if stored else None

    def pull(self, reference: str) -> Image:
        """From `registry`."""
        self._require_running()
        if reference not in self.registry:
            raise base_unavailable_error(reference, "no such image in the registry")
        image = self.registry[reference]
        self._images[image.id] = _StoredImage(image=image, files={}, history=(), created=time.time())
        self._names[reference] = image.id
        return image

    def build(
        self,
        parent: str,
        layer: Layer,
        build_files: BuildTimeFiles,
        labels: Mapping[str, str],
        log: LogWriter,
    ) -> Image:
        """Files are kept, commands are noted in the history, build-time files are not."""
        self._require_running()
        below = self._images[self._names.get(parent, parent)]
        log(f"layer {layer.name}, build_files: {', '.join(sorted(build_files.secrets))}")
        if layer.name in self.failing:
            raise BuildError(layer.name, "error: the commands of this layer fail")
        size = sum(len(data) for data in layer.files.values())
        if size > self.room:
            raise full_disk_error(self.name, "store a layer", "no space left on device")
        self.room -= size
        self.built.append(layer.key)
        identity = "sha256:" + digest_json([below.image.id, layer.key])
        files = {**below.files, **layer.files}
        image = Image(
            id=identity,
            arch=below.image.arch,
            bytes=sum(len(data) for data in files.values()),
            labels={**below.image.labels, **labels},
        )
        history = (*below.history, *layer.commands)
        self._images[identity] = _StoredImage(image=image, files=files, history=history, created=time.time())
        self._names[layer_image(layer.key)] = identity
        return image

    def start(self, spec: ContainerSpec) -> str:
        """Run the program in a thread."""
        self._require_running()
        if self.image(spec.image) is None:
            raise InfrastructureError(f"there is no image {spec.image}", fix="build it")
        if spec.name in self._containers:
            raise InfrastructureError(f"a container {spec.name} is there already", fix="remove it")
        output = bytearray()
        process = MemoryProcess(spec=spec, write=output.extend)
        thread = threading.Thread(target=self._work, args=(spec.name, process), daemon=True)
        self._containers[spec.name] = _MemoryContainer(
            spec=spec, process=process, thread=thread, created=time.time(), output=output
        )
        thread.start()
        return spec.name

    def follow(self, container: str, write: Callable[[bytes], None]) -> None:
        """All of it once it has ended."""
        held = self._containers[container]
        held.thread.join()
        write(bytes(held.output))

    def last_lines(self, container: str) -> bytes:
        """Its last line."""
        return b"".join(bytes(self._containers[container].output).splitlines(keepends=True)[-1:])

    def wait(self, container: str, seconds: float) -> ContainerExit | None:
        """None while the program runs."""
        self._require_running()
        held = self._containers[container]
        held.thread.join(seconds)
        return held.ended

    def signal(self, container: str, name: str) -> None:
        """KILL ends it; others are handed to the program."""
        held = self._containers[container]
        held.process.signals.append(name)
        if name == "KILL":
            held.process.killed.set()

    def copy_out(self, image: str, path: str, folder: Path) -> bool:
        """Files below `path`."""
        stored = self._images[self._names.get(image, image)]
        found = False
        for name, data in stored.files.items():
            if name.startswith(path.rstrip("/") + "/"):
                found = True
                target = folder / name.removeprefix(path.rstrip("/") + "/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        return found

    def history(self, image: str) -> str:
        """Commands and labels."""
        stored = self._images[self._names.get(image, image)]
        return "\n".join([*stored.history, *(f"{k}={v}" for k, v in stored.image.labels.items())])

    def files(self, image: str) -> Mapping[str, bytes]:
        """Every file of an image."""
        return self._images[self._names.get(image, image)].files

    @property
    def containers(self) -> tuple[str, ...]:
        """Names of the containers that were not removed."""
        return tuple(self._containers)

    def add_network(self, name: str, labels: Mapping[str, str]) -> None:
        """Make a network, as multi-node cells do."""
        self._networks[name] = EngineResource(
            kind="network", id=name, name=name, labels=dict(labels), created=time.time()
        )

    def resources(self) -> tuple[EngineResource, ...]:
        """With our labels."""
        self._require_running()
        containers = [
            EngineResource(
                kind="container",
                id=name,
                name=name,
                labels=held.spec.labels,
                created=held.created,
                running=held.ended is None,
            )
            for name, held in self._containers.items()
        ]
        images = [
            EngineResource(
                kind="image",
                id=identity,
                name=next((name for name, at in self._names.items() if at == identity), ""),
                labels=stored.image.labels,
                created=stored.created,
                bytes=stored.image.bytes,
            )
            for identity, stored in self._images.items()
        ]
        return tuple(
            resource
            for resource in [*containers, *images, *self._networks.values()]
            if is_ours(resource.labels)
        )

    def remove(self, resource: EngineResource) -> None:
        """An image that another stands on stays, as with a real engine."""
        self._require_running()
        if resource.kind == "container" and resource.id in self._containers:
            held = self._containers.pop(resource.id)
            held.process.killed.set()
        elif resource.kind == "image":
            self._images.pop(resource.id, None)
            self._names = {name: at for name, at in self._names.items() if at != resource.id}
        elif resource.kind == "network":
            self._networks.pop(resource.id, None)

    def close(self) -> None:
        """Nothing is held."""

    def _work(self, name: str, process: MemoryProcess) -> None:
        program = self.programs.get(process.spec.argv[0])
        if program is None:
            process.write(f"{process.spec.argv[0]}: not found\n".encode())
            code = 127
        else:
            code = program(process)
        if process.killed.is_set():
            code = KILLED
        held = self._containers.get(name)
        if held is not None:
            limited = code == KILLED and not process.killed.is_set()
            held.ended = ContainerExit(code=code, out_of_memory=limited and process.spec.memory_bytes > 0)

    def _require_running(self) -> None:
        if not self.running:
            raise no_daemon_error(self.name, "memory", "it was stopped")
