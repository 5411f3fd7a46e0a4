"""The wheel for the NPU of a host: a variant that fits, or why the ordinary wheel must not be used."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness.builds.lock.cell_lock import CellLock
from harness.builds.lock.lock_notices import lock_notices
from harness.errors import InfrastructureError, Location
from harness.matrix.reading.load_matrix import load_matrix
from harness.plan.feasibility.stack_advice import AdviceRequest, advise_stacks
from harness.sources.packages.index_settings import uv_binary
from harness.sources.packages.variant_index import PublishedVariants
from harness.sources.packages.wheel_variants import VariantWheel, read_variants
from harness.workspace.planning.host_wheels import (
    HostWheel,
    Lookup,
    asking_once,
    host_wheels,
    variants_for,
)

MATRIX = load_matrix(Path(__file__).parents[3] / "matrix.yaml")


def published(*labels: str, python: str = "cp312") -> PublishedVariants:
    document = {
        "default-priorities": {"namespace": ["ascend"]},
        "variants": {label: {"ascend": {"npu_type": [label]}} for label in labels},
    }
    names = [f"vllm_ascend-0.23.0-{python}-{python}-manylinux_2_34_aarch64-{label}.whl" for label in labels]
    return PublishedVariants(
        variants=read_variants(json.dumps(document), Location("x")),
        files={name: f"https://example.org/{name}" for name in names},
    )


def wheel(soc: str, lookup: Lookup | None, device: str = "npu") -> HostWheel | None:
    request = AdviceRequest(soc=soc, cann="9.1.0", device=device)
    stack = advise_stacks(MATRIX, request).stacks[0]
    found = list(host_wheels(MATRIX, stack.values, "26.0", lookup))
    return found[0] if found else None


@pytest.mark.parametrize(("soc", "label"), [("a2", "910b"), ("a3", "a3")])
def test_the_variant_for_the_soc_is_named_with_its_file(soc: str, label: str) -> None:
    found = wheel(soc, lambda _index, _package, _version: published("310p", "910b", "a3"))
    assert found is not None
    assert (found.package, found.problem) == ("vllm-ascend", "")
    assert [(one.label, one.name.endswith(f"-{label}.whl")) for one in found.variants] == [(label, True)]


def test_without_a_variant_the_ordinary_wheel_is_a_problem_for_another_soc_only() -> None:
    def unreachable(_index: str, _package: str, _version: str) -> PublishedVariants | None:
        raise InfrastructureError("cannot be read", where=Location("https://example.org"))

    lookups: list[tuple[Lookup | None, str]] = [
        (None, "was not asked"),
        (unreachable, "cannot be read: https://example.org"),
        (lambda _index, _package, _version: None, "has no variants of vllm-ascend 0.23.0"),
        (lambda _index, _package, _version: published("910b"), "910b needs ascend :: npu_type :: 910b"),
        (lambda _index, _package, _version: published("a3", python="cp310"), "a3 has no wheel for 3.12"),
    ]
    for lookup, why in lookups:
        found = wheel("a3", lookup)
        assert found is not None
        assert found.problem.startswith("the wheels of vllm-ascend on the package index are built for a2")
        assert why in found.problem
        assert "from source" in found.mend
    plain = wheel("a2", None)
    assert plain is not None
    assert plain.problem == ""


def test_an_index_that_could_not_be_read_is_not_asked_again() -> None:
    asked = []

    def unreachable(index: str, _package: str, version: str) -> PublishedVariants | None:
        asked.append(version)
        raise InfrastructureError("cannot be read", where=Location(index))

    lookup = asking_once(unreachable)
    for version in ("0.23.0", "0.22.0"):
        with pytest.raises(InfrastructureError):
            lookup("https://example.org", "vllm-ascend", version)
    assert asked == ["0.23.0"]


def test_simulated_devices_have_no_variant() -> None:
    assert wheel("a3", None, device="sim") is None


def test_a_lock_names_the_variant_of_a_package_that_it_compiles() -> None:
    name = "vllm_ascend-0.23.0-cp312-cp312-manylinux_2_34_{}-a3.whl"
    files = {name.format(arch): f"https://example.org/{name.format(arch)}" for arch in ("aarch64", "x86_64")}
    index = published("310p", "910b", "a3")
    asked = []

    def lookup(_index: str, _package: str, version: str) -> PublishedVariants:
        asked.append(version)
        return PublishedVariants(
            variants=index.variants, files=files, digests={name.format("aarch64"): "a" * 64}
        )

    values = advise_stacks(MATRIX, AdviceRequest(soc="a3", cann="9.1.0")).stacks[0].values
    assert variants_for(MATRIX, values, ["torch"], "aarch64", lookup) == {}
    assert asked == []
    (wheel,) = variants_for(MATRIX, values, ["vllm-ascend"], "aarch64", lookup).values()
    assert (wheel.label, wheel.sha256) == ("a3", "a" * 64)
    assert wheel.address == files[name.format("aarch64")]
    assert wheel.plain_name == "vllm_ascend-0.23.0-cp312-cp312-manylinux_2_34_aarch64.whl"
    a2 = {**values, "soc": "a2"}
    assert variants_for(MATRIX, a2, ["vllm-ascend"], "aarch64", lookup) == {}
    lock = CellLock(
        cell="c",
        title="t",
        axes=values,
        python="3.12",
        arch="aarch64",
        image="i",
        image_digest="",
        packages=(),
        from_source=(),
        overrides=(),
        patches=(),
        build_env={},
        compiled=("vllm-ascend",),
        inconsistencies=(),
        variants={"vllm-ascend": wheel},
    )
    [notice] = [one for one in lock_notices(lock) if "variant" in one]
    assert f"download {wheel.address} (sha256 {'a' * 64}) and save it as {wheel.plain_name}." in notice


def test_pip_and_uv_refuse_a_variant_until_the_commands_gave_it_an_ordinary_name(tmp_path: Path) -> None:
    index, here = tmp_path / "index with 'quotes'", tmp_path / "here"
    name = "vllm_ascend-0.23.0-py3-none-any-a3.whl"
    index.mkdir()
    here.mkdir()
    info = "vllm_ascend-0.23.0.dist-info"
    with zipfile.ZipFile(index / name, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.23.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    digest = hashlib.sha256((index / name).read_bytes()).hexdigest()
    variant = VariantWheel(label="a3", address=(index / name).as_uri(), sha256=digest)
    installers = (
        [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(here / "pip")],
        [uv_binary(), "pip", "install", "--no-deps", "--target", str(here / "uv")],
    )
    fetch, verify, install = variant.installation
    subprocess.run(f"{fetch} && {verify}", shell=True, cwd=here, check=True, capture_output=True)
    for installer in installers:
        refused = subprocess.run([*installer, str(index / name)], capture_output=True, text=True)
        assert refused.returncode != 0, refused.stdout
        done = subprocess.run([*installer, install.split()[-1]], cwd=here, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert sorted(one.name for one in here.glob("*/*.dist-info")) == [info, info]
    (here / variant.plain_name).write_bytes(b"another")
    assert subprocess.run(verify, shell=True, cwd=here, capture_output=True).returncode != 0
