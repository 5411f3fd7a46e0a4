"""Lower bounds of optional requirements, for packages that are there."""

from pathlib import Path

import pytest

from harness.compat.inspection.extra_floors import below_floors
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, write_pack
from harness.compat.knowledge.surface_pack import SurfacePack

REQUIRES = """Requires-Dist: hard>=2
Requires-Dist: torch!=2.5,<3,>=2.4; extra == "torch"
Requires-Dist: vllm==0.24.0; extra == "vllm"
Requires-Dist: ray<=2.9; extra == "ray"
Requires-Dist: peft>=0.18; extra == "all"
Requires-Dist: Megatron_Core>=0.12; extra == "megatron-core"
Requires-Dist: numpy>=2; os_name == "nt" and extra == "numpy"
"""


@pytest.fixture
def pack(tmp_path: Path) -> SurfacePack:
    files = PackagedFiles(
        releases=(PackedRelease(version="5.0"),), contents={"5.0": {"METADATA": REQUIRES.encode()}}
    )
    write_pack(tmp_path / "surfaces.pack", {"upper": files})
    return SurfacePack(tmp_path / "surfaces.pack")


def found(pack: SurfacePack, **stated: str) -> list[str]:
    versions = {"upper": "5.0", **{name.replace("_", "-"): version for name, version in stated.items()}}
    return list(map(str, below_floors(pack, versions, {"os_name": "posix"})))


@pytest.mark.parametrize("version", ["2.2.0", "2.3.1+cpu"])
def test_a_release_below_the_bound(pack: SurfacePack, version: str) -> None:
    assert found(pack, torch=version) == [
        f"upper 5.0 can be used with torch>=2.4 (its extra 'torch'), but torch {version} is stated"
    ]


def test_names_are_normalised(pack: SurfacePack) -> None:
    assert found(pack, megatron_core="0.11.0")


@pytest.mark.parametrize(
    "stated",
    [
        {"torch": "2.4.0"},
        {"torch": "2.4.0.dev20250101"},
        {"torch": "2.4.0a0+gitabc"},
        {"torch": "2.5"},
        {"torch": "3.1"},
        {"torch": "main"},
        {"vllm": "0.23.0"},
        {"ray": "2.55.1"},
        {"peft": "0.17.0"},
        {"hard": "1.0"},
        {"numpy": "1.26.4"},
        {},
    ],
)
def test_what_is_not_refused(pack: SurfacePack, stated: dict[str, str]) -> None:
    assert found(pack, **stated) == []
