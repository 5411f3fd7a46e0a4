"""The check `environment` with a container engine: the cell as an image, built by layers and looked into."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.builds.cell.cell_probe import probe_cell
from harness.builds.cell.disk_space import require_image_storage
from harness.builds.cell.environment_spec import BuildStepError, EnvironmentSpec, environment_spec
from harness.builds.cell.venv_environment import EnvironmentBuild, evidence, make_runtime
from harness.builds.engines.build_time_files import build_time_files
from harness.builds.engines.engine import BuildError, Engine, Image
from harness.builds.engines.image_build import BuiltImage, base_notices, build_image, find_base_image
from harness.builds.engines.image_layers import PREFIX, Layer, PatchedTree, image_layers
from harness.builds.engines.open_engine import open_engine
from harness.builds.export.bill_of_materials import provenance, sbom
from harness.builds.lock.cell_lock import CellLock, make_lock
from harness.builds.ownership.owner_labels import ProcessView, is_orphaned, make_labels, this_process
from harness.check import TaskContext
from harness.errors import HarnessError
from harness.outcome import Measured, Outcome
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary

EXPIRE_SECONDS = 14 * 86400.0
# How much of an image's id names the folder of its compiled modules.
BYTECODE_CHARACTERS = 32


def run(ctx: TaskContext) -> Measured:
    """Build the image of the facets and look inside; measures what `environment.run` does, and the image.

    InfrastructureError when the engine, the network or this machine failed.
    """
    device = dict(ctx.facets["device"])
    progress = EnvironmentBuild(
        facts={
            "built": False,
            "unsupported": False,
            "requested_device": device,
            "expected": {},
            "python": f"{PREFIX}/bin/python",
            "prefix": PREFIX,
            "left_out": {},
            "built_here": [],
            "runtime": "",
            "probe": None,
        }
    )
    artifacts: dict[str, str] = {}
    engine = open_engine(device["engine"])
    try:
        spec = environment_spec(ctx)
        progress.facts |= {
            "expected": {package.name: package.version for package in spec.packages},
            "left_out": dict(spec.omitted),
            "built_here": list(spec.built),
        }
        _reap(engine, ctx)
        _build(ctx, engine, spec, progress, artifacts)
    except BuildStepError as error:
        ctx.log(f"{error.step}: {error.reason}")
        progress.fail(error)
    finally:
        engine.close()
    progress.facts["seconds"] = progress.seconds
    return Measured(measurements=progress.facts, evidence=evidence(progress.facts), artifacts=artifacts)


def holds(outcome: Outcome) -> str:
    """Why an earlier image can no longer be used, or ""."""
    facts = outcome.measurements
    if not facts.get("built"):
        return ""
    container = facts["container"]
    engine = open_engine(container["engine"])
    try:
        if engine.image(container["image"]) is None:
            return f"the image {container['image'][:19]} is gone from {engine.name}"
    finally:
        engine.close()
    if facts["runtime"] and not Path(facts["runtime"]).is_dir():
        return f"the simulated runtime in {facts['runtime']} is gone"
    return ""


def _reap(engine: Engine, ctx: TaskContext) -> None:
    """Containers of dead owners go before new ones come; what fails to go is for `cleanup`."""
    for found in engine.resources():
        orphaned, reason = is_orphaned(found.labels, ProcessView(), time.time())
        if found.kind == "container" and orphaned:
            ctx.log(f"removing container {found.name or found.id}: {reason}")
            try:
                engine.remove(found)
            except HarnessError as error:
                ctx.log(str(error))


def _build(
    ctx: TaskContext,
    engine: Engine,
    spec: EnvironmentSpec,
    progress: EnvironmentBuild,
    artifacts: dict[str, str],
) -> None:
    lock, device = _lock(ctx, spec), spec.device
    reference = device["base_image"] or lock.base
    base = find_base_image(engine, reference, lock.arch)
    for notice in base_notices(reference, base):
        ctx.log(notice)
    layers = image_layers(lock, base.id, _patched(spec))
    settings = index_environment(os.environ).with_indexes(spec.indexes)
    require_image_storage(engine, layers, lock)
    with progress.step("build"):
        built = _image(ctx, engine, base, layers, lock, settings)
    facts = engine.info()
    site_packages = f"{PREFIX}/lib/python{spec.minor}/site-packages"
    bytecode = ctx.cache / "bytecode" / built.image.id.removeprefix("sha256:")[:BYTECODE_CHARACTERS]
    bytecode.mkdir(parents=True, exist_ok=True)
    progress.facts |= {
        "site_packages": site_packages,
        "digest": layers[-1].key,
        "reused": not built.built,
        "container": {
            "engine": engine.name,
            "version": facts.version,
            "builder": facts.builder,
            "cell": spec.digest,
            "base": reference,
            "base_id": base.id,
            "base_digests": list(base.digests),
            "notices": list(base_notices(reference, base)),
            "image": built.image.id,
            "bytes": built.image.bytes,
            "layers": [{"name": layer.name, "key": layer.key} for layer in layers],
            "built": list(built.built),
            "layer_seconds": dict(built.seconds),
            "bytecode": str(bytecode),
        },
    }
    if spec.device["kind"] == "sim":
        with progress.step("runtime"):
            progress.facts["runtime"] = str(_simulated_runtime(ctx, engine, built.image, site_packages, spec))
    with progress.step("probe"):
        progress.facts["probe"] = probe_cell(ctx, spec, progress.facts, Path(site_packages))
    progress.facts |= {
        "built": True,
        "patched": {name: expected.get("post") or "" for name, expected in spec.manifest.items()},
        "step": "",
        "reason": "",
        "tail": "",
    }
    _write_materials(ctx, lock, built, progress.facts, artifacts)


def _image(
    ctx: TaskContext,
    engine: Engine,
    base: Image,
    layers: tuple[Layer, ...],
    lock: CellLock,
    settings: IndexSettings,
) -> BuiltImage:
    # Root inside is this user outside only for root itself and in rootless podman.
    shared = os.getuid() == 0 or engine.name == "podman"
    cache = Path(settings.uv_environment().get("UV_CACHE_DIR") or ctx.cache / "uv") if shared else None
    build_files = build_time_files(settings, Path(uv_binary()), sources=lock.from_source, cache=cache)
    labels = make_labels(
        owner=this_process(), expires=time.time() + EXPIRE_SECONDS, key=layers[-1].key, task="environment"
    )
    try:
        return build_image(
            engine,
            base,
            layers,
            build_files=build_files,
            labels=labels,
            locks=ctx.cache / "layers",
            log=lambda text: ctx.log(settings.hide(text)),
        )
    except BuildError as error:
        step = "patch" if error.layer == "patches" else "install"
        reason = f"The layer {error.layer} cannot be built."
        raise BuildStepError(step, reason, tail=settings.hide(error.tail)) from error


def _lock(ctx: TaskContext, spec: EnvironmentSpec) -> CellLock:
    device = ctx.facets["device"]
    cell = {"id": spec.digest, "title": spec.digest, "axes": {"cann": device.get("cann", "")}}
    patches = [*ctx.facets["patches[verl]"], *ctx.facets["patches[vllm_ascend]"]]
    text = spec.lock.read_text("utf-8")
    made = make_lock(cell, ctx.facets["pins"], ctx.facets["platform"], patches, text)
    return replace(made, packages=spec.packages, compiled=spec.built)


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
    ctx: TaskContext, engine: Engine, image: Image, site_packages: str, spec: EnvironmentSpec
) -> Path:
    """The runtime is compiled here, against the libraries that are in the image."""
    versions = {package.name: package.version for package in spec.packages}
    with tempfile.TemporaryDirectory(prefix=".libraries-", dir=ctx.cache) as name:
        folder = Path(name)
        for part in ("torch/lib", "torch_npu", "torch_npu.libs", "vllm_ascend"):
            (folder / part).mkdir(parents=True)
            if not engine.copy_out(image.id, f"{site_packages}/{part}", folder / part):
                (folder / part).rmdir()
        for package in ("torch", "torch-npu"):
            (folder / f"{package.replace('-', '_')}-{versions[package]}.dist-info").mkdir()
        return make_runtime(ctx, spec, folder)


def _write_materials(
    ctx: TaskContext, lock: CellLock, built: BuiltImage, facts: Mapping[str, Any], artifacts: dict[str, str]
) -> None:
    files = {
        "sbom.cdx.json": sbom(lock, facts["probe"]["packages"], facts["container"]),
        "provenance.json": json.dumps(provenance(lock, built, facts), indent=1),
    }
    for name, text in files.items():
        ctx.workdir.joinpath(name).write_text(text, "utf-8")
        artifacts[name] = name
