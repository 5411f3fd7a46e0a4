"""Building a cell's image: every distinct layer once, whoever else builds at the same time."""

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
    LogWriter,
    layer_image,
    missing_digest_notice,
    wrong_architecture_error,
)
from harness.builds.engines.image_layers import Layer
from harness.builds.ownership.owner_labels import KEY, PARENT
from harness.errors import InfrastructureError, Location

SECONDS_TO_WAIT = 3600.0


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image with what it took: names of layers that were built and that were there, seconds by layer."""

    image: Image
    base: Image
    built: tuple[str, ...]
    reused: tuple[str, ...]
    seconds: Mapping[str, float]


def find_base_image(engine: Engine, reference: str, arch: str) -> Image:
    """The base image, fetched when it is not here.

    InfrastructureError when it cannot be fetched; InputError when it is for another architecture.
    """
    image = engine.image(reference) or engine.pull(reference)
    if image.arch != arch:
        raise wrong_architecture_error(reference, image.arch, arch)
    return image


def base_notices(reference: str, image: Image) -> tuple[str, ...]:
    """What is to be said of a base image that nobody else could name."""
    return () if image.digests or "@sha256:" in reference else (missing_digest_notice(reference),)


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
    """The image with `layers` over `base`; only layers no image of this engine has yet are built.

    Two builders of one layer wait for each other through a file in `locks`. BuildError when commands fail.
    """
    present = len(layers) - len(missing_layers(engine, layers))
    parent = layers[present - 1] if present else None
    image = base
    if parent is not None:
        image = engine.image(layer_image(parent.key)) or base
    built, seconds = [], {}
    for layer in layers[present:]:
        started = time.monotonic()
        image, new = _build_one(engine, image, layer, build_files, labels, locks, log)
        if new:
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
    """Those above the highest one that an image of this engine ends with."""
    for count in range(len(layers), 0, -1):
        if engine.image(layer_image(layers[count - 1].key)) is not None:
            return layers[count:]
    return layers


def _build_one(
    engine: Engine,
    parent: Image,
    layer: Layer,
    build_files: BuildTimeFiles,
    labels: Mapping[str, str],
    locks: Path,
    log: LogWriter,
) -> tuple[Image, bool]:
    file = locks / f"{layer.key}.lock"
    try:
        locks.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(file, timeout=SECONDS_TO_WAIT):
            there = engine.image(layer_image(layer.key))
            if there is not None:
                return there, False
            log(f"building layer {layer.name} ({layer.key})")
            own = {**labels, KEY: layer.key, PARENT: parent.id}
            return engine.build(parent.id, layer, build_files, own, log), True
    except filelock.Timeout as error:
        raise InfrastructureError(
            "another process has been building this layer for too long",
            where=Location(file),
            fix="wait for it, or end it",
        ) from error
    except OSError as error:
        raise InfrastructureError(
            "a layer's lock cannot be written",
            where=Location(file),
            why=str(error),
            fix="free space, or set NPU_MATRIX_CACHE to a folder that can be written",
        ) from error
