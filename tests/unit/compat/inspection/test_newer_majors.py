"""Major releases that came out after the release that requires the package."""

from pathlib import Path

import pytest

from harness.compat.inspection.newer_majors import newer_majors
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, write_pack
from harness.compat.knowledge.surface_pack import SurfacePack

REQUIRES = """Requires-Dist: lower>=1.2
Requires-Dist: optional; extra == "all"
Requires-Dist: other>=1; os_name == "nt"
"""
DATES = {"1.0": "2025-01-01", "1.9": "2025-06-01", "2.0": "2025-09-01", "2.1": "2026-01-01"}


@pytest.fixture
def pack(tmp_path: Path) -> SurfacePack:
    def files(dates: dict[str, str], requires: str = "") -> PackagedFiles:
        return PackagedFiles(
            releases=tuple(PackedRelease(version=version, uploaded=day) for version, day in dates.items()),
            contents={version: {"METADATA": requires.encode()} for version in dates},
        )

    packages = {name: files(DATES) for name in ("lower", "optional", "other")}
    upper = files({"5.0": "2025-07-01", "5.1": "2025-10-01", "5.2": ""}, REQUIRES)
    write_pack(tmp_path / "surfaces.pack", {**packages, "upper": upper})
    return SurfacePack(tmp_path / "surfaces.pack")


def found(pack: SurfacePack, **stated: str) -> list[str]:
    return list(map(str, newer_majors(pack, stated, {"os_name": "posix"})))


def test_a_major_release_that_did_not_exist(pack: SurfacePack) -> None:
    (text,) = found(pack, upper="5.0", lower="2.1")
    assert text == (
        "lower 2.1 is of a major release that did not exist when upper 5.0 was published (2025-07-01, newest "
        "lower 1.9); it requires lower>=1.2, and says nothing about later major releases"
    )


@pytest.mark.parametrize(
    "stated",
    [
        {"upper": "5.0", "lower": "1.9"},
        {"upper": "5.1", "lower": "2.1"},
        {"upper": "5.2", "lower": "2.1"},
        {"upper": "5.0", "lower": "1.0"},
        {"upper": "5.0", "optional": "2.1"},
        {"upper": "5.0", "other": "2.1"},
        {"upper": "5.0", "lower": "main"},
        {"upper": "9.9", "lower": "2.1"},
        {"upper": "5.0"},
        {"absent": "1.0", "lower": "2.1"},
    ],
)
def test_what_says_nothing_about_majors(pack: SurfacePack, stated: dict[str, str]) -> None:
    assert found(pack, **stated) == []


def test_markers_of_the_pack_stay(pack: SurfacePack) -> None:
    stated = {"upper": "5.0", "other": "2.1"}
    assert [one.requirement for one in newer_majors(pack, stated, {"os_name": "nt"})] == ["other>=1"]
    assert list(newer_majors(pack, stated, {"os_name": "posix"})) == []
