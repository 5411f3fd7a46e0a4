"""The check `environment` with a container engine: builds the image of a cell in layers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import filelock

from harness.builds.cell.build_step_error import BuildStepError
from harness.builds.cell.cell_probe import probe_cell
from harness.builds.cell.disk_space import require_image_storage
from harness.builds.cell.environment_build import EnvironmentBuild, environment_evidence, make_runtime
from harness.builds.cell.environment_files import (
    IDENTITY,
    earlier_manifest,
    require_as_recorded,
    require_unchanged,
    runtime_folders,
    store_manifest,
    why_changed,
    with_folders,
    with_libraries,
    write_identity,
)
from harness.builds.cell.environment_spec import EnvironmentSpec
from harness.builds.engines.build_time_files import build_time_files
from harness.builds.engines.engine import BuildError, Engine, Image
from harness.builds.engines.image_build import BuiltImage, base_notices, build_image, find_base_image
from harness.builds.engines.image_layers import PREFIX, Layer, PatchedTree, image_layers
from harness.builds.engines.open_engine import open_engine
from harness.builds.export.bill_of_materials import provenance, sbom
from harness.builds.installed.file_manifest import FileManifest, WatchedFolder
from harness.builds.lock.cell_lock import CellLock, LockFacets, make_lock
from harness.builds.ownership.owner_labels import ProcessView, is_orphaned, make_labels, this_process
from harness.cell_program.built_environment import (
    CellImage,
    EnvironmentBuilt,
    EnvironmentLocation,
    EnvironmentNotBuilt,
    EnvironmentProbe,
    ImageLayer,
    VerifiedFiles,
    read_cell_device,
)
from harness.check import TaskContext
from harness.devices.cards.driver_files import driver_files
from harness.devices.host.soc import soc_family
from harness.devices.sim.runtime_build.stand_in_cann import install_runtime
from harness.devices.sim.start.sim_environment import DEFAULT_CANN
from harness.errors import HarnessError
from harness.outcome import Measured
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary
from harness.sources.redact import redact_text

SECONDS_TO_WAIT = 1800.0
EXPIRE_SECONDS = 14 * 86400.0
# The folder of an image's compiled modules is named by this many characters of the image's id.
BYTECODE_CHARACTERS = 32


def run(ctx: TaskContext) -> Measured[EnvironmentBuilt | EnvironmentNotBuilt]:
    """Build the image that the facets describe, and probe it.

    A build that fails is a measurement. InfrastructureError when the engine, the network or this host failed.
    """
    build = EnvironmentBuild(device=read_cell_device(ctx.facets["device"]))
    artifacts: dict[str, str] = {}
    engine = open_engine(build.device.engine)
    try:
        measured = build.measure(ctx, lambda spec: _build(ctx, engine, spec, build, artifacts))
    finally:
        engine.close()
    return Measured(measurements=measured, evidence=environment_evidence(measured), artifacts=artifacts)


def holds(measurements: EnvironmentBuilt, container: CellImage, *, full: bool = False) -> str:
    """Why an image can no longer be used, or "".

    The id of an image is the digest of its content, which the engine verified when it stored the layers. The
    compiled modules and the simulated runtime are on this host and are verified here.
    full: read every file, as always for a real device.
    """
    engine = open_engine(container.engine)
    try:
        if engine.image(container.image) is None:
            return f"the image {container.image[:19]} is gone from {engine.name}"
    finally:
        engine.close()
    if measurements.files is None:
        return "the environment was built without a list of its files"
    return why_changed(measurements.files, full=full or measurements.requested_device.kind == "npu")


def _remove_orphaned_containers(engine: Engine, ctx: TaskContext) -> None:
    """Remove containers whose owner is dead; `cleanup` handles those that cannot be removed now."""
    for resource in engine.resources():
        orphaned, reason = is_orphaned(resource.labels, ProcessView(), time.time())
        if resource.kind == "container" and orphaned:
            ctx.log(f"removing container {resource.name or resource.id}: {reason}")
            try:
                engine.remove(resource)
            except HarnessError as error:
                ctx.log(str(error))


def _build(
    ctx: TaskContext,
    engine: Engine,
    spec: EnvironmentSpec,
    build: EnvironmentBuild,
    artifacts: dict[str, str],
) -> EnvironmentBuilt:
    _remove_orphaned_containers(engine, ctx)
    lock = _lock(ctx, spec)
    reference = spec.device.base_image or lock.base
    base = find_base_image(engine, reference, lock.arch)
    notices = base_notices(reference, base)
    for notice in notices:
        ctx.log(notice)
    layers = image_layers(lock, base.id, _patched(spec))
    settings = index_environment(os.environ).with_indexes(spec.indexes)
    require_image_storage(engine, layers, lock)
    with build.step("build"):
        built = _image(ctx, engine, base, layers, lock, settings)
    info = engine.info()
    name = built.image.id.removeprefix("sha256:")[:BYTECODE_CHARACTERS]
    home = ctx.cache / "bytecode" / name
    image = CellImage(
        engine=engine.name,
        version=info.version,
        builder=info.builder,
        cell=spec.digest,
        base=reference,
        base_id=base.id,
        base_digests=base.digests,
        notices=notices,
        image=built.image.id,
        bytes=built.image.bytes,
        layers=tuple(ImageLayer(name=layer.name, key=layer.key) for layer in layers),
        built=built.built,
        layer_seconds=built.seconds,
        bytecode=str(home / "modules"),
    )
    home.parent.mkdir(exist_ok=True)
    with filelock.FileLock(home.parent / f".{name}.lock", timeout=SECONDS_TO_WAIT):
        location, probe, libraries = _probe(ctx, engine, spec, build, image, home)
    measured = build.finished(
        spec,
        location,
        probe,
        site_packages=f"{PREFIX}/lib/python{spec.minor}/site-packages",
        digest=layers[-1].key,
        reused=not built.built,
        image=image,
        libraries=libraries,
    )
    artifacts[IDENTITY] = IDENTITY
    _write_materials(ctx, lock, built, image, measured, artifacts)
    return measured


def _probe(
    ctx: TaskContext,
    engine: Engine,
    spec: EnvironmentSpec,
    build: EnvironmentBuild,
    image: CellImage,
    home: Path,
) -> tuple[EnvironmentLocation, EnvironmentProbe, VerifiedFiles | None]:
    """Probe the image. Its compiled modules and its simulated runtime are stored in `home` on this host.

    The files of this host that drive its NPU are those of the driver: the image has a CANN of its own.
    """
    site_packages = f"{PREFIX}/lib/python{spec.minor}/site-packages"
    manifest = earlier_manifest(home)
    compiles = manifest is None
    if manifest is None:
        shutil.rmtree(home, ignore_errors=True)
        Path(image.bytecode).mkdir(parents=True)
        manifest = FileManifest(folders=(), entries={})
    if spec.device.simulated:
        with build.step("runtime"):
            build.runtime = str(_simulated_runtime(ctx, engine, image.image, site_packages, spec, home))
            runtime = runtime_folders(build.runtime, spec.device.cann or DEFAULT_CANN)
            manifest = with_folders(manifest, runtime)
    if spec.device.rehearsed:
        install_runtime(Path(build.runtime), os.environ)
    location = EnvironmentLocation(
        requested_device=spec.device,
        python=f"{PREFIX}/bin/python",
        prefix=PREFIX,
        runtime=build.runtime,
        container=image,
    )
    with build.step("probe"):
        probe = probe_cell(ctx, spec, location, Path(site_packages), compiles=compiles)
    compared = probe.not_recorded is not None
    require_as_recorded(probe.not_recorded or () if compared else ["No file was compared with RECORD."])
    require_unchanged(manifest)
    manifest = with_folders(manifest, [WatchedFolder(path=image.bytecode)])
    mounted = [one for one in probe.libraries if any(Path(one).is_relative_to(at) for at in driver_files())]
    manifest, libraries = with_libraries(manifest, mounted, spec.device, home, ctx.cache)
    write_identity(manifest, home, ctx.workdir)
    return replace(location, files=store_manifest(manifest, home)), probe, libraries


def _image(
    ctx: TaskContext,
    engine: Engine,
    base: Image,
    layers: tuple[Layer, ...],
    lock: CellLock,
    settings: IndexSettings,
) -> BuiltImage:
    # Files that root in the container writes belong to this user only if it is root, or with rootless podman.
    shared = os.getuid() == 0 or engine.name == "podman"
    cache = Path(settings.uv_environment().get("UV_CACHE_DIR") or ctx.cache / "uv") if shared else None
    files = build_time_files(settings, Path(uv_binary()), sources=lock.from_source, cache=cache)
    labels = make_labels(
        owner=this_process(), expires=time.time() + EXPIRE_SECONDS, key=layers[-1].key, task="environment"
    )
    try:
        return build_image(
            engine,
            base,
            layers,
            build_files=files,
            labels=labels,
            locks=ctx.cache / "layers",
            log=lambda text: ctx.log(redact_text(text)),
        )
    except BuildError as error:
        step = "patch" if error.layer == "patches" else "install"
        reason = f"The image layer {error.layer} could not be built."
        raise BuildStepError(step, reason, tail=redact_text(error.tail)) from error


def _lock(ctx: TaskContext, spec: EnvironmentSpec) -> CellLock:
    lock = make_lock(
        LockFacets.read(ctx.facets),
        spec.lock.read_text("utf-8"),
        cell=spec.digest,
        title=spec.digest,
        axes={
            "cann": spec.device.cann,
            "soc": soc_family(spec.device.soc),
            "device": spec.device.kind,
        },
    )
    return replace(lock, packages=spec.packages, compiled=spec.built)


def _patched(spec: EnvironmentSpec) -> PatchedTree | None:
    if spec.patched is None:
        return None
    with zipfile.ZipFile(spec.patched) as archive:
        files = {
            name: archive.read(name) if expected.get("post") else None
            for name, expected in spec.manifest.items()
        }
    return PatchedTree(
        files=files, before={name: expected.get("pre") or "" for name, expected in spec.manifest.items()}
    )


def _simulated_runtime(
    ctx: TaskContext,
    engine: Engine,
    image: str,
    site_packages: str,
    spec: EnvironmentSpec,
    home: Path,
) -> Path:
    """Build the simulated runtime below `home` on this host, against the libraries of the image."""
    versions = {package.name: package.version for package in spec.packages}
    with tempfile.TemporaryDirectory(prefix=".libraries-", dir=ctx.cache) as name:
        folder = Path(name)
        for part in ("torch/lib", "torch_npu", "torch_npu.libs", "vllm_ascend"):
            (folder / part).mkdir(parents=True)
            if not engine.copy_out(image, f"{site_packages}/{part}", folder / part):
                (folder / part).rmdir()
        for package in ("torch", "torch-npu"):
            (folder / f"{package.replace('-', '_')}-{versions[package]}.dist-info").mkdir()
        return make_runtime(spec.device, folder, home)


def _write_materials(
    ctx: TaskContext,
    lock: CellLock,
    built: BuiltImage,
    image: CellImage,
    measured: EnvironmentBuilt,
    artifacts: dict[str, str],
) -> None:
    files = {
        "sbom.cdx.json": sbom(lock, measured.probe.packages, image),
        "provenance.json": json.dumps(provenance(lock, built, image, measured.patched), indent=1),
    }
    for name, text in files.items():
        ctx.workdir.joinpath(name).write_text(text, "utf-8")
        artifacts[name] = name
