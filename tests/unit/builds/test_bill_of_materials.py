from __future__ import annotations

import json

import pytest

from harness.builds.engines.engine import Image
from harness.builds.engines.image_build import BuiltImage
from harness.builds.export.bill_of_materials import provenance, sbom
from harness.builds.lock.cell_lock import CellLock, LockFacets, PatchFile, make_lock
from harness.cell_program.built_environment import CellImage, ImageLayer
from harness.matrix.model.environment_facets import PinnedSource, PinsFacet, PlatformFacet

LOCK = "torch==2.9.0 --hash=sha256:aa\n    # via verl\nverl==0.9.1 --hash=sha256:bb --hash=sha256:cc\n"
IMAGE = CellImage(
    base="ascend/cann:9",
    base_id=f"sha256:{'ab' * 32}",
    base_digests=(),
    notices=(),
    image=f"sha256:{'cd' * 32}",
    engine="docker",
    cell="d",
    bytecode="/b",
    version="28",
    builder="steps",
    bytes=1,
    layers=(ImageLayer(name="torch", key="k"),),
    built=("torch",),
    layer_seconds={},
)


def lock() -> CellLock:
    source = PinnedSource(package="vllm", version="1", commit="c0ffee", repository="https://g.example/v")
    facets = LockFacets(
        pins=PinsFacet(from_source=(source,)),
        platform=PlatformFacet(python="3.11", arch="x86_64"),
        patches=(PatchFile(id="verl/fix", file="patches/verl/fix.patch", digest="e" * 64),),
    )
    return make_lock(facets, LOCK, cell="a-cell", title="", axes={})


def test_the_bill_of_materials_lists_what_was_found_with_what_was_locked() -> None:
    pytest.importorskip(
        "cyclonedx.model.bom", reason="cyclonedx-python-lib is not installed: nox -s containers"
    )
    bill = json.loads(sbom(lock(), {"torch": "2.9.0", "verl": "0.9.1", "stray": "1"}, IMAGE))
    found = {one["name"]: one for one in bill["components"]}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert found["torch"]["purl"] == "pkg:pypi/torch@2.9.0"
    assert {one["value"] for one in found["verl"]["properties"]} == {"sha256:bb", "sha256:cc"}
    assert found["verl"]["pedigree"]["patches"]
    assert "pedigree" not in found["torch"]
    # A package that is not locked is listed too, without a digest.
    assert "properties" not in found["stray"]
    assert found["ascend/cann:9"]["version"] == IMAGE.base_id


def test_provenance_names_the_image_and_all_it_was_made_of() -> None:
    image = Image(id=IMAGE.image, arch="x86_64", bytes=1, labels={})
    built = BuiltImage(image=image, base=image, built=("torch",), reused=(), seconds={})
    statement = provenance(lock(), built, IMAGE, {"verl/a.py": "f" * 64})
    digests = [one["digest"] for one in statement["predicate"]["buildDefinition"]["resolvedDependencies"]]
    assert digests == [{"sha256": "ab" * 32}, {"gitCommit": "c0ffee"}, {"sha256": "e" * 64}]
    assert statement["subject"][0]["digest"] == {"sha256": "cd" * 32}
    assert statement["predicate"]["buildDefinition"]["externalParameters"]["packages"] == {
        "torch": "2.9.0",
        "verl": "0.9.1",
    }
