"""Registrations that a later release of a package refuses, because it has the key itself."""

import zipfile
from pathlib import Path

import pytest

from harness.compat.inspection.taken_keys import taken_keys
from harness.compat.knowledge.module_outline import outline
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, write_pack
from harness.compat.knowledge.surface_pack import ReleaseSurface, SurfacePack
from harness.compat.uses.package_pairs import Package

REGISTRY = """
NAMES = {{{names}}}
class AutoConfig:
    @staticmethod
    def register(key, value, {parameter}=False):
        if key in NAMES and not {parameter}:
            raise ValueError(key)
"""
INIT = "from lower.auto import AutoConfig\n"
OWN = """
from lower import AutoConfig
class Config: ...
AutoConfig.register({arguments})
"""


def releases(folder: Path, before: str, now: str, parameter: str = "exist_ok") -> list[ReleaseSurface]:
    def content(names: str) -> dict[str, bytes]:
        text = REGISTRY.format(names=names, parameter=parameter)
        return {"lower/__init__.py": outline(INIT.encode()), "lower/auto.py": outline(text.encode())}

    files = PackagedFiles(
        releases=(PackedRelease(version="1.0"), PackedRelease(version="1.1")),
        contents={"1.0": content(before), "1.1": content(now)},
    )
    write_pack(folder / "surfaces.pack", {"lower": files})
    pack = SurfacePack(folder / "surfaces.pack")
    found = [pack.release("lower", version) for version in ("1.0", "1.1")]
    assert all(found)
    return [one for one in found if one]


def package(folder: Path, files: dict[str, str]) -> Package:
    file = folder / "upper.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return Package(name="upper", version="5.0", file=file)


def found(
    folder: Path, files: dict[str, str], before: str, now: str, parameter: str = "exist_ok"
) -> list[str]:
    old, new = releases(folder, before, now, parameter)
    keys = taken_keys(package(folder, files), old, new)
    return [f"{one}{'' if one.is_imported else ', later'}" for one in keys]


def files(arguments: str, init: str = "from upper import own\n") -> dict[str, str]:
    return {"upper/__init__.py": init, "upper/own.py": OWN.format(arguments=arguments)}


def test_a_key_that_the_later_release_has(tmp_path: Path) -> None:
    assert found(tmp_path, files('"fresh", Config'), '"old": 0', '"old": 0, "fresh": 0') == [
        "upper/own.py:4 registers 'fresh' with lower.AutoConfig"
    ]


def test_a_module_that_the_start_does_not_import(tmp_path: Path) -> None:
    (text,) = found(tmp_path, files('"fresh", Config', init=""), "", '"fresh": 0')
    assert text.endswith(", later")


@pytest.mark.parametrize(
    ("arguments", "before", "now"),
    [
        ('"fresh", Config', "", '"other": 0'),
        ('"fresh", Config', '"fresh": 0', '"fresh": 0'),
        ('"fresh", Config, exist_ok=True', "", '"fresh": 0'),
        ('"fresh", Config, **options', "", '"fresh": 0'),
        ("Config.key, Config", "", '"fresh": 0'),
    ],
)
def test_what_is_not_refused(tmp_path: Path, arguments: str, before: str, now: str) -> None:
    assert found(tmp_path, files(arguments), before, now) == []


def test_a_registry_that_replaces_keys(tmp_path: Path) -> None:
    assert found(tmp_path, files('"fresh", Config'), "", '"fresh": 0', parameter="force") == []


@pytest.mark.parametrize(
    "line",
    ["if flag:\n    AutoConfig.register('fresh', 0)", "def later():\n    AutoConfig.register('fresh', 0)"],
)
def test_a_registration_under_a_condition_is_not_judged(tmp_path: Path, line: str) -> None:
    own = {"upper/__init__.py": f"from lower import AutoConfig\n{line}\n"}
    assert found(tmp_path, own, "", '"fresh": 0') == []
