"""Builds the image of a cell. Concurrent builds share layers, so each distinct layer is built once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from harness.builds.engines.engine import (
    BuildTimeFiles,
    Engine,
    Image,
    LayerBuild,
    LogWriter,
    layer_image,
)
from harness.builds.engines.image_layers import Layer
from harness.builds.ownership.owner_labels import KEY, PARENT
from harness.errors import InfrastructureError, InputError, Location

SECONDS_TO_WAIT = 3600.0


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """A built image. built, reused: names of its layers. seconds: build duration by layer."""

    image: Image
    base: Image
    built: tuple[str, ...]
    reused: tuple[str, ...]
    seconds: Mapping[str, float]


def find_base_image(engine: Engine, reference: str, arch: str) -> Image:
    """The base image, pulled when it is not on this host.

    InfrastructureError when it cannot be pulled; InputError when it is for another architecture.
    """
    image = engine.image(reference) or engine.pull(reference)
    if image.arch != arch:
        raise InputError(
            f"the image {reference} is for {image.arch}, the cell is for {arch}",
            fix=f"use an image for {arch}, or run this cell on a host with that architecture",
        )
    return image


def base_notices(reference: str, image: Image) -> tuple[str, ...]:
    """A notice if the base image has no registry digest, so that others cannot use exactly the same image."""
    if image.digests or "@sha256:" in reference:
        return ()
    notice = (
        f"The base image {reference} has no registry digest, so others cannot use exactly the same image. "
        "Push it to a registry and refer to it by digest."
    )
    return (notice,)


def build_image(
    engine: Engine,
    base: Image,
    layers: Sequence[Layer],
    *,
    build_files: BuildTimeFiles,
    labels: Mapping[str, str],
    locks: Path,
    log: LogWriter,
) -> BuiltImage:
    """The image with `layers` on `base`. Only layers that the engine does not have are built.

    Concurrent builds of a layer wait for each other with a lock file in `locks`. BuildError when a command
    fails.
    """
    present = len(layers) - len(missing_layers(engine, layers))
    parent = layers[present - 1] if present else None
    image = base
    if parent is not None:
        image = engine.image(layer_image(parent.key)) or base
    built, seconds = [], {}
    for layer in layers[present:]:
        started = time.monotonic()
        request = LayerBuild(
            parent=image.id,
            layer=layer,
            build_files=build_files,
            labels={**labels, KEY: layer.key, PARENT: image.id},
            log=log,
        )
        image, is_new = _build_one(engine, request, locks)
        if is_new:
            built.append(layer.name)
            seconds[layer.name] = round(time.monotonic() - started, 3)
    return BuiltImage(
        image=image,
        base=base,
        built=tuple(built),
        reused=tuple(layer.name for layer in layers if layer.name not in built),
        seconds=seconds,
    )


def missing_layers(engine: Engine, layers: Sequence[Layer]) -> Sequence[Layer]:
    """The layers above the highest one for which the engine has an image."""
    for count in range(len(layers), 0, -1):
        if engine.image(layer_image(layers[count - 1].key)) is not None:
            return layers[count:]
    return layers


def _build_one(engine: Engine, request: LayerBuild, locks: Path) -> tuple[Image, bool]:
    """The image of a layer, and whether it was built now."""
    layer = request.layer
    file = locks / f"{layer.key}.lock"
    try:
        locks.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(file, timeout=SECONDS_TO_WAIT):
            existing = engine.image(layer_image(layer.key))
            if existing is not None:
                return existing, False
            request.log(f"building layer {layer.name} ({layer.key})")
            return engine.build(request), True
    except filelock.Timeout as error:
        raise InfrastructureError(
            "another process has been building this layer for too long",
            where=Location(file),
            fix="wait for that process, or stop it",
        ) from error
    except OSError as error:
        raise InfrastructureError(
            "the lock file of a layer cannot be written",
            where=Location(file),
            why=str(error),
            fix="free space, or set NPU_MATRIX_CACHE to a folder that can be written",
        ) from error
