"""`npu-matrix api check CONSUMER PROVIDER...`: any packages, without a cell and without a lock."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.app import main

USER = {
    "user/__init__.py": "",
    "user/a.py": "from lib import make\nmake(size=1)\nimport torch_npu\ntorch_npu.npu_gone(1)\n",
    "user/b.py": "from shared.other import thing\n",
}


@pytest.fixture
def packages(wheels: Any) -> Any:
    wheels.add("user", "1.0", files=USER)
    wheels.add("lib", "1.0", files={"lib/__init__.py": "def make(size): ...\n"})
    wheels.add("lib", "2.0", files={"lib/__init__.py": "def make(length): ...\n"})
    shared = {"shared/core/__init__.py": "", "shared/core/a.py": "", "shared/core/b.py": ""}
    wheels.add("shared", "1.0", files=shared)
    with zipfile.ZipFile(wheels.folder / "shared-1.0-py3-none-any.whl") as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name != "shared/__init__.py"}
    record = "shared-1.0.dist-info/RECORD"
    kept[record] = b"".join(row for row in kept[record].splitlines(True) if b"shared/__init__.py" not in row)
    with zipfile.ZipFile(wheels.folder / "shared-1.0-py3-none-any.whl", "w") as archive:
        for name, data in kept.items():
            archive.writestr(name, data)
    return wheels


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., int]:
    def run(*arguments: str) -> int:
        options = ("--root", str(tmp_path), "--cache", str(tmp_path / "cache"))
        with pytest.raises(SystemExit) as stopped:
            main([*options, "api", "check", "--no-history", *arguments])
        return int(str(stopped.value.code))

    return run


def test_releases_are_compared_without_a_cell(packages, check, capsys):
    assert check("user==1.0", "lib==1.0") == 0
    assert "checked user 1.0 with lib 1.0\n2 uses were checked" in capsys.readouterr().out
    assert check("user==1.0", "lib==2.0", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["file"], found["line"]) == ("user/a.py", 2)
    assert "size" in found["text"]


def test_a_folder_that_several_packages_share_says_nothing_of_the_others(packages, check, capsys):
    assert check("user==1.0", "shared==1.0") == 0
    assert "uses were checked" in capsys.readouterr().out


def test_a_consumer_that_uses_nothing_is_no_green(packages, check, capsys):
    assert check("lib==1.0", "user==1.0") == 1
    assert "no use of user 1.0 was found, so nothing is known of it" in capsys.readouterr().out
    # Uses of another provider do not cover for it.
    packages.add("other", "1.0", files={"other/__init__.py": ""})
    assert check("user==1.0", "lib==1.0", "other==1.0") == 1
    assert "no use of other 1.0 was found" in capsys.readouterr().out


def test_a_package_that_others_use_is_a_consumer_too(wheels, check, capsys):
    wheels.add("vllm", "1.0", files={"vllm/__init__.py": "from transformers import gone\n"})
    wheels.add("transformers", "1.0", files={"transformers/__init__.py": ""})
    assert check("vllm==1.0", "transformers==1.0") == 1
    assert "error    vllm/__init__.py:1: transformers has no gone" in capsys.readouterr().out


def test_an_argument_that_moved_since_the_pinned_release_is_found(wheels, check, capsys):
    wheels.add("user", "1.0", "lib==1.0", files={"user/a.py": "import lib\nlib.make(1, 2)\n"})
    wheels.add("lib", "1.0", files={"lib/__init__.py": "def make(size, kind): ...\n"})
    wheels.add("lib", "2.0", files={"lib/__init__.py": "def make(kind, size): ...\n"})
    assert check("user==1.0", "lib==1.0") == 0
    assert check("user==1.0", "lib==2.0") == 1
    assert "make takes 'kind' as positional argument 1, which was 'size'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("user==1.0",), "name at least one provider"),
        (("user==1.0", "lib"), "'lib' names neither a release nor a commit"),
        (("user==1.0", "lib==3.0"), "no lib 3.0"),
        (("user@1234567", "lib==1.0"), "no mirror has the commit 1234567 of user"),
        (("a-cell", "lib==1.0"), "providers are for a release"),
    ],
)
def test_bad_input_is_told(packages, check, capsys, arguments, what):
    assert check(*arguments) == 2
    assert what in capsys.readouterr().err
