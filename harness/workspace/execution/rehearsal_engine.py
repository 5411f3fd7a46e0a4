"""A container engine that sees a stand-in host, and stand-ins for the images of CANN.

The daemon of this machine does not see the mounts of a stand-in host. Therefore a daemon of Docker, or the
service of Podman, is started in a mount namespace with the same mounts. It has a store of images of its own:
in the usual one, cells that are not rehearsed would take a stand-in for the image of CANN whose name it has.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.builds.engines.engine import BuildTimeFiles, Engine, Image, LayerBuild, layer_image
from harness.builds.engines.image_layers import Layer
from harness.builds.engines.open_engine import open_engine
from harness.builds.lock.base_image import default_base_image
from harness.builds.ownership.owner_labels import make_labels, this_process
from harness.devices.sim.runtime_build.stand_in_cann import ASCEND, write_cann
from harness.devices.stand_in.enter_host import unshare_command
from harness.devices.stand_in.host_tree import StandIn
from harness.digest import digest_bytes, digest_json
from harness.errors import HarnessError, InfrastructureError, Location
from harness.matrix.model.cell import Cell

#: Long, because a daemon on a loaded machine can take minutes to start.
_SECONDS_TO_START = _SECONDS_TO_STOP = 300.0
_EXPIRE_SECONDS = 14 * 86400.0
#: Where Debian and Ubuntu install the daemon; a user's PATH often lacks the first.
_SEARCH_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
_ARCHIVE = "/tmp/npu-matrix-cann.tar"  # noqa: S108 - a path in the image
#: A container that runs in the image sources the scripts of CANN itself (see `cann_environment.py`).
_UNPACK = (
    f"mkdir -p {ASCEND}",
    f"tar -C {ASCEND} -xf {_ARCHIVE}",
    f"rm {_ARCHIVE}",
)


@dataclass(frozen=True, kw_only=True)
class CannImage:
    """An image of CANN below those of cells. reference: its published name. system: what it is made from."""

    reference: str
    system: str


def cann_images(cells: Sequence[Cell], system: str) -> tuple[CannImage, ...]:
    """The images of CANN that the cells name.

    system: the image below CANN, "" for that of the Python in the published image.
    """
    found = {}
    for cell in cells:
        image = default_base_image(cell.axes, cell.axes.get("python", ""))
        below = system or f"python:{image.python}-slim"
        found[image.reference] = CannImage(reference=image.reference, system=below)
    return tuple(found.values())


@contextlib.contextmanager
def engine_on_stand_in(
    name: str,
    place: Path,
    host: StandIn,
    images: Sequence[CannImage],
    notify: Callable[[str], None],
) -> Iterator[Mapping[str, str]]:
    """The variables with which commands on the stand-in host reach an engine that sees it and has the images.

    place: the folder of the stand-in host, which has been written. InfrastructureError without the engine, or
    if an image that those of CANN are made from cannot be had.
    """
    if name not in _SERVICES:
        yield {}
        return
    with contextlib.ExitStack() as stack:
        own = {_SERVICES[name].variable: stack.enter_context(_service(name, place))}
        engine = open_engine(name, {**os.environ, **own})
        stack.callback(engine.close)
        for image in images:
            notify(f"{image.reference}: a stand-in, made from {image.system}")
            _make_cann_image(engine, image, host, notify)
        yield own


def _dockerd(folder: Path, short: Path) -> list[str]:
    argv = ["--host", f"unix://{short}/socket", "--data-root", str(folder / "data")]
    argv += ["--exec-root", f"{short}/exec", "--pidfile", f"{short}/pid"]
    # Cells have the network of the host or none, and no rule of its firewall must be changed.
    return [*argv, "--bridge", "none", "--iptables=false", "--ip6tables=false"]


def _podman(folder: Path, short: Path) -> list[str]:
    # In containers, systemd is often not there to make control groups.
    argv = ["--root", str(folder / "data"), "--runroot", f"{short}/run", "--cgroup-manager", "cgroupfs"]
    return [*argv, "system", "service", "--time", "0", f"unix://{short}/socket"]


@dataclass(frozen=True, kw_only=True)
class _Service:
    """A service of an engine. arguments: (folder of its store, a short folder for its socket) -> argv.

    variable: names its address to the engine's clients.
    """

    program: str
    arguments: Callable[[Path, Path], list[str]]
    variable: str


_SERVICES = {
    "docker": _Service(program="dockerd", arguments=_dockerd, variable="DOCKER_HOST"),
    "podman": _Service(program="podman", arguments=_podman, variable="CONTAINER_HOST"),
}


@contextlib.contextmanager
def _service(name: str, place: Path) -> Iterator[str]:
    """The address of an engine's service on the stand-in host. Its images stay in the rehearsal's folder."""
    service = _SERVICES[name]
    program = shutil.which(service.program, path=f"{os.environ.get('PATH', '')}{os.pathsep}{_SEARCH_PATH}")
    if program is None or os.getuid() != 0:
        raise InfrastructureError(
            f"{name} cannot be started on a stand-in host",
            why=f"there is no program {service.program}" if program is None else "only root can start it",
            fix=f"install {name} and run as root, or rehearse with --engine venv",
        )
    folder = place.parent.parent / name
    folder.mkdir(exist_ok=True)
    # A path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="npu-matrix-daemon-") as short:
        address, log = f"unix://{short}/socket", folder / "log"
        argv = [program, *service.arguments(folder, Path(short))]
        with log.open("ab") as output:
            process = subprocess.Popen(unshare_command(place, argv), stdout=output, stderr=output)
        try:
            _wait_for_service(name, address, process, log)
            yield address
        finally:
            process.terminate()
            process.wait(_SECONDS_TO_STOP)


def _wait_for_service(name: str, address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while True:
        engine = open_engine(name, {**os.environ, _SERVICES[name].variable: address})
        try:
            engine.info()
        except HarnessError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise InfrastructureError(
                    f"{name} did not start on the stand-in host",
                    where=Location(log),
                    why=log.read_text("utf-8", errors="replace")[-1000:].strip(),
                    fix="read its log, or rehearse with --engine venv",
                ) from error
            time.sleep(0.2)
        else:
            return
        finally:
            engine.close()


def _make_cann_image(engine: Engine, image: CannImage, host: StandIn, notify: Callable[[str], None]) -> None:
    """Give the engine an image with the published name: the system below, and a stand-in for CANN."""
    below = engine.image(image.system) or _copied(engine, image.system) or engine.pull(image.system)
    archive = _cann_archive(host)
    content = {"below": below.id, "archive": digest_bytes(archive), "commands": list(_UNPACK)}
    key = digest_json(content)[:32]
    made = engine.image(layer_image(key))
    if made is None:
        layer = Layer(name="cann", key=key, below=below.id, files={_ARCHIVE: archive}, commands=_UNPACK)
        labels = make_labels(owner=this_process(), expires=time.time() + _EXPIRE_SECONDS, key=key)
        made = engine.build(
            LayerBuild(parent=below.id, layer=layer, build_files=BuildTimeFiles(), labels=labels, log=notify)
        )
    engine.tag(made.id, image.reference)


def _copied(engine: Engine, reference: str) -> Image | None:
    """The image from the engine of this machine, or None if that does not have it."""
    usual = open_engine(engine.name)
    try:
        if usual.image(reference) is None:
            return None
        engine.load(usual.save(reference))
    except InfrastructureError:
        # This machine may have no daemon of its own.
        return None
    finally:
        usual.close()
    return engine.image(reference)


def _cann_archive(host: StandIn) -> bytes:
    """The files of CANN below /usr/local/Ascend, as a tar archive that is the same each time."""
    stream = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="npu-matrix-cann-") as name:
        write_cann(Path(name), host.cann, host.shape.runtime_name, host.shape.devices)
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for path in sorted(Path(name).rglob("*")):
                archive.add(path, str(path.relative_to(name)), recursive=False, filter=_same_each_time)
    return stream.getvalue()


def _same_each_time(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "root", "root"
    return entry
