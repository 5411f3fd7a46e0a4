"""The bill of materials of a cell's image (CycloneDX) and the provenance statement of its build (in-toto)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import __version__
from harness.builds.engines.image_build import BuiltImage
from harness.builds.lock.cell_lock import CellLock
from harness.cell_program.built_environment import CellImage
from harness.serialisation import to_json
from harness.sources.packages.lockfile import normal_name

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "npu-matrix/cell-image/1"


def sbom(lock: CellLock, installed: Mapping[str, str], image: CellImage) -> str:
    """CycloneDX 1.6 as JSON: the packages in the image, each with the digests that its lock allows.

    installed: names and versions as the Python of the image reported them.
    """
    # The imports take 0.1 s, and only cells in containers need them.
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType, Patch, PatchClassification, Pedigree
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    locked = {package.name: package for package in lock.packages}
    patched = {file.id.partition("/")[0] for file in lock.patches}
    bom = Bom()
    bom.metadata.component = Component(
        name=lock.cell, type=ComponentType.CONTAINER, version=image.image, bom_ref="image"
    )
    bom.components.add(Component(name=image.base, type=ComponentType.CONTAINER, version=image.base_id))
    for name, version in sorted(installed.items()):
        package = locked.get(normal_name(name))
        hashes = package.hashes if package else ()
        component = Component(
            name=normal_name(name),
            version=version,
            type=ComponentType.LIBRARY,
            purl=PackageURL("pypi", None, normal_name(name), version),
            properties=[Property(name="npu-matrix:locked-hash", value=digest) for digest in hashes],
        )
        if normal_name(name) in patched:
            component.pedigree = Pedigree(patches=[Patch(type=PatchClassification.UNOFFICIAL)])
        bom.components.add(component)
    bom.register_dependency(bom.metadata.component, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=1))


def provenance(
    lock: CellLock, built: BuiltImage, image: CellImage, patched: Mapping[str, str]
) -> dict[str, Any]:
    """An in-toto statement with SLSA's provenance predicate: what the image was built from, and by what.

    patched: patched path -> digest of the patched file.
    """
    materials = [
        {"uri": image.base, "digest": {"sha256": image.base_id.removeprefix("sha256:")}},
        *({"uri": s.repository, "digest": {"gitCommit": s.commit}} for s in lock.from_source),
        *({"uri": patch.exported, "digest": {"sha256": patch.digest}} for patch in lock.patches),
    ]
    return {
        "_type": STATEMENT,
        "subject": [{"name": lock.cell, "digest": {"sha256": built.image.id.removeprefix("sha256:")}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "layers": to_json(image.layers),
                    "packages": {package.name: package.version for package in lock.packages},
                    "build_env": dict(lock.build_env),
                    "patched": dict(patched),
                },
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {
                    "id": f"npu-matrix {__version__}",
                    "version": {image.engine: image.version, "builder": image.builder},
                },
                "metadata": {"built": list(built.built), "reused": list(built.reused)},
            },
        },
    }
