"""Releases that are tags of a clone: which tags count, and that the pack has what they contain."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.compat.knowledge.surface_pack import SurfacePack
from harness.sources.packages.index_settings import index_environment
from harness.workspace.knowledge.pack_update import UpdateRequest, update_pack
from harness.workspace.knowledge.tagged_releases import tag_version, tagged_releases


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("v2.2.0_core_r0.12.1", "2.2.0+core.r0.12.1"),
        ("v1.0.RC3_core_r0.6.0", "1.0rc3+core.r0.6.0"),
        ("v1.1.0", "1.1.0"),
        ("2.0", "2.0"),
        ("core_r0.12.1", ""),
        ("nightly", ""),
        ("v1..2", ""),
    ],
)
def test_which_tags_are_versions(tag: str, version: str) -> None:
    assert tag_version(tag) == version


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "mirrors" / "any-name"
    (folder / "mindspeed").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for tag, text in (("v1.0.0_core_r0.6.0", "def early(): ...\n"), ("v2.0.0", "def late(): ...\n")):
        (folder / "mindspeed/__init__.py").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", tag)
        git(folder, "tag", "-a", tag, "-m", tag)
    return folder


def test_the_tags_of_a_clone_are_read_into_the_pack(clone: Path, tmp_path: Path) -> None:
    request = UpdateRequest(packages=("mindspeed",), mirrors=(clone.parent,))
    done = update_pack(tmp_path / "s.pack", None, request, index_environment({}), lambda *_texts: None)
    assert done[0].added == ["1.0.0+core.r0.6.0", "2.0.0"]
    pack = SurfacePack(tmp_path / "s.pack")
    history = pack.history("mindspeed", "mindspeed.late")
    assert (history.since, history.since_is_exact) == ("2.0.0", True)


def test_a_package_without_a_clone_is_read_from_the_index(tmp_path: Path, clone: Path) -> None:
    assert tagged_releases("mindspeed", [tmp_path / "absent"]) is None
    assert tagged_releases("vllm", [clone.parent]) is None
