"""Packages that cannot be used with NumPy 2, although their metadata does not say so."""

from pathlib import Path

import pytest

from harness.compat.inspection.numpy_majors import KnownCann, numpy_misfits
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, write_pack
from harness.compat.knowledge.surface_pack import SurfacePack

#: Release of the plugin -> the torch_npu that it pins, its requirement of numpy, and its CANN.
PLUGIN = {
    "0.7": ("2.5.1", "numpy<2.0.0", "8.1.RC1"),
    "0.9": ("2.5.1.post1", "numpy<2.0.0", "8.2.RC1"),
    "0.11": ("2.7.1", "numpy<2.0.0", "8.3.RC1"),
    "0.12": ("2.7.1", "numpy<2.0.0", "8.5.0"),
    "0.20": ("2.10.0", "numpy", "9.0.0"),
}


@pytest.fixture
def pack(tmp_path: Path) -> SurfacePack:
    def files(dates: dict[str, str], requires: dict[str, str] | None = None) -> PackagedFiles:
        return PackagedFiles(
            releases=tuple(PackedRelease(version=version, uploaded=day) for version, day in dates.items()),
            contents={one: {"METADATA": (requires or {}).get(one, "").encode()} for one in dates},
        )

    requires = {
        version: f"Requires-Dist: torch-npu=={npu}\nRequires-Dist: {numpy}\n"
        for version, (npu, numpy, _cann) in PLUGIN.items()
    }
    write_pack(
        tmp_path / "surfaces.pack",
        {
            "numpy": files({"1.25.0": "2023-06-17", "1.26.4": "2024-02-05", "2.0.0": "2024-06-16"}),
            "torch": files({"2.2.2": "2024-03-27", "2.3.0": "2024-04-24", "2.1.9": ""}),
            "vllm-ascend": files(dict.fromkeys(PLUGIN, "2025-01-01"), requires),
        },
    )
    return SurfacePack(tmp_path / "surfaces.pack")


def found(pack: SurfacePack, cann: str = "", **stated: str) -> list[str]:
    known = KnownCann(cann=cann, published={version: one[2] for version, one in PLUGIN.items()})
    versions = {name.replace("_", "-"): version for name, version in stated.items()}
    return [f"{one}; numpy {one.newest} fits" for one in numpy_misfits(pack, versions, known)]


def test_torch_that_was_published_before_numpy_2(pack: SurfacePack) -> None:
    (text,) = found(pack, torch="2.2.2+cpu", numpy="2.0.0")
    assert text == (
        "torch 2.2.2+cpu does not work with numpy 2.0.0: it was published on 2024-03-27, before there was a "
        "NumPy 2 to compile it with; numpy 1.26.4 fits"
    )


@pytest.mark.parametrize("version", ["2.7.1", "2.7.1.dev20250724", "2.7.1.post2"])
@pytest.mark.parametrize("cann", ["", "8.5.0", "8.3.RC1"])
def test_every_release_of_the_plugin_for_this_torch_npu_excludes_it(
    pack: SurfacePack, version: str, cann: str
) -> None:
    (text,) = found(pack, cann, torch_npu=version, numpy="2.1.0")
    assert "vllm-ascend 0.11 and every other release for this torch_npu require numpy<2.0.0" in text
    assert "because of CANN (before CANN 9.0.0)" in text


def test_a_torch_npu_between_two_that_exclude_it(pack: SurfacePack) -> None:
    (text,) = found(pack, torch_npu="2.6.0", numpy="2.1.0")
    assert "for the torch_npu before and after it" in text


@pytest.mark.parametrize(
    "stated",
    [
        {"torch": "2.2.2", "numpy": "1.26.4"},
        {"torch": "2.3.0", "numpy": "2.0.0"},
        {"torch": "2.1.9", "numpy": "2.0.0"},
        {"torch": "2.9.9", "numpy": "2.0.0"},
        {"torch": "2.2.2"},
        {"torch": "2.2.2", "numpy": "main"},
        {"torch_npu": "2.7.1", "numpy": "1.26.4"},
        {"torch_npu": "2.7.1", "numpy": "2.1.0", "cann": "9.0.0"},
        {"torch_npu": "2.10.0.post2", "numpy": "2.1.0"},
        {"torch_npu": "2.9.0", "numpy": "2.1.0"},
        {"torch_npu": "2.12.0", "numpy": "2.1.0"},
        {"torch_npu": "main", "numpy": "2.1.0"},
        {"numpy": "2.1.0"},
    ],
)
def test_what_is_not_refused(pack: SurfacePack, stated: dict[str, str]) -> None:
    assert found(pack, **stated) == []


def test_without_releases_of_the_plugin_nothing_is_said(tmp_path: Path) -> None:
    numpy = PackagedFiles(releases=(PackedRelease(version="1.26.4"),), contents={"1.26.4": {}})
    write_pack(tmp_path / "surfaces.pack", {"numpy": numpy})
    assert (
        found(SurfacePack(tmp_path / "surfaces.pack"), torch_npu="2.7.1", torch="2.2.2", numpy="2.1.0") == []
    )
