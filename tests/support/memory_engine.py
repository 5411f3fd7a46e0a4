"""A container engine in memory for tests: the programs of its containers are Python functions.

It stores the files, labels and commands of each layer, but no build-time files. It raises the same errors as a
real engine, and records which layers it built.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.builds.engines.engine import (
    BuildError,
    ContainerExit,
    ContainerSpec,
    EngineInfo,
    EngineResource,
    Image,
    LayerBuild,
    base_unavailable_error,
    full_disk_error,
    layer_image,
    no_daemon_error,
)
from harness.builds.ownership.owner_labels import has_owner_labels
from harness.digest import digest_json
from harness.errors import InfrastructureError

KILLED = 137


@dataclass(kw_only=True)
class MemoryProcess:
    """What a program in a container sees: the spec, its output, and the signals sent to it."""

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

    programs: first word of a command line -> function that returns the exit code. A program that returns
    `KILLED` in a container with a memory limit counts as out of memory. failing: names of layers whose
    commands fail. registry: images that can be pulled. running: whether the daemon responds. free_bytes: free
    space on its disk. folder: where it would store images.
    """

    name = "memory"

    def __init__(self, arch: str = "x86_64", programs: Mapping[str, Program] | None = None) -> None:
        self.arch = arch
        self.programs = dict(programs or {})
        self.registry: dict[str, Image] = {}
        self.failing: set[str] = set()
        self.running = True
        self.free_bytes = float("inf")
        self.folder: Path | None = None
        self.built: list[str] = []
        self._images: dict[str, _StoredImage] = {}
        self._names: dict[str, str] = {}
        self._containers: dict[str, _MemoryContainer] = {}
        self._networks: dict[str, EngineResource] = {}

    def info(self) -> EngineInfo:
        """The architecture; layers are built by steps."""
        self._require_running()
        return EngineInfo(version="1", arch=self.arch, builder="steps")

    def storage(self) -> Path | None:
        """The attribute `folder`."""
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
        """An image by its name or id."""
        self._require_running()
        stored = self._images.get(self._names.get(reference, reference))
        return stored.image if stored else None

    def pull(self, reference: str) -> Image:
        """Pull an image from `registry`."""
        self._require_running()
        if reference not in self.registry:
            raise base_unavailable_error(reference, "no such image in the registry")
        image = self.registry[reference]
        self._images[image.id] = _StoredImage(image=image, files={}, history=(), created=time.time())
        self._names[reference] = image.id
        return image

    def build(self, request: LayerBuild) -> Image:
        """Store the files and commands of the layer; build-time files are not stored."""
        self._require_running()
        layer = request.layer
        below = self._images[self._names.get(request.parent, request.parent)]
        request.log(f"layer {layer.name}, build_files: {', '.join(sorted(request.build_files.secrets))}")
        if layer.name in self.failing:
            raise BuildError(layer.name, "error: the commands of this layer fail")
        size = sum(len(data) for data in layer.files.values())
        if size > self.free_bytes:
            raise full_disk_error(self.name, "store a layer", "no space left on device")
        self.free_bytes -= size
        self.built.append(layer.key)
        identity = "sha256:" + digest_json([below.image.id, layer.key])
        files = {**below.files, **layer.files}
        image = Image(
            id=identity,
            arch=below.image.arch,
            bytes=sum(len(data) for data in files.values()),
            labels={**below.image.labels, **request.labels},
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
        """Pass on the whole output when the program has ended."""
        stored = self._containers[container]
        stored.thread.join()
        write(bytes(stored.output))

    def last_lines(self, container: str) -> bytes:
        """The last line of the output."""
        return b"".join(bytes(self._containers[container].output).splitlines(keepends=True)[-1:])

    def wait(self, container: str, seconds: float) -> ContainerExit | None:
        """How the program ended; None while it runs."""
        self._require_running()
        stored = self._containers[container]
        stored.thread.join(seconds)
        return stored.ended

    def signal(self, container: str, name: str) -> None:
        """KILL ends the program; other signals are passed to it."""
        stored = self._containers[container]
        stored.process.signals.append(name)
        if name == "KILL":
            stored.process.killed.set()

    def copy_out(self, image: str, path: str, folder: Path) -> bool:
        """Copy the files below `path`."""
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
        """The commands and labels of an image."""
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
        """Create a network, like multi-node cells do."""
        self._networks[name] = EngineResource(
            kind="network", id=name, name=name, labels=dict(labels), created=time.time()
        )

    def resources(self) -> tuple[EngineResource, ...]:
        """Everything with the labels of npu-matrix."""
        self._require_running()
        containers = [
            EngineResource(
                kind="container",
                id=name,
                name=name,
                labels=stored.spec.labels,
                created=stored.created,
                running=stored.ended is None,
            )
            for name, stored in self._containers.items()
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
            if has_owner_labels(resource.labels)
        )

    def remove(self, resource: EngineResource) -> None:
        """Remove a container, image or network."""
        self._require_running()
        if resource.kind == "container" and resource.id in self._containers:
            stored = self._containers.pop(resource.id)
            stored.process.killed.set()
        elif resource.kind == "image":
            self._images.pop(resource.id, None)
            self._names = {name: at for name, at in self._names.items() if at != resource.id}
        elif resource.kind == "network":
            self._networks.pop(resource.id, None)

    def close(self) -> None:
        """Nothing has to be closed."""

    def _work(self, name: str, process: MemoryProcess) -> None:
        program = self.programs.get(process.spec.argv[0])
        if program is None:
            process.write(f"{process.spec.argv[0]}: not found\n".encode())
            code = 127
        else:
            code = program(process)
        if process.killed.is_set():
            code = KILLED
        stored = self._containers.get(name)
        if stored is not None:
            limited = code == KILLED and not process.killed.is_set()
            stored.ended = ContainerExit(code=code, out_of_memory=limited and process.spec.memory_bytes > 0)

    def _require_running(self) -> None:
        if not self.running:
            raise no_daemon_error(self.name, "memory", "it was stopped")
