"""Methods that a package calls on objects of another one, and that a later release of it does not have."""

import zipfile
from pathlib import Path

import pytest

from harness.compat.inspection.removed_names import removed_names
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, write_pack
from harness.compat.knowledge.surface_pack import SurfacePack
from harness.errors import InputError

BEFORE = "class Tokenizer:\n    def kept(self): ...\n    def dropped(self): ...\n"
NOW = "class Tokenizer:\n    def kept(self): ...\n"


def found(folder: Path, caller: str, now: str = NOW, other: str = "") -> list[str]:
    def release(text: str, version: str = "1.0") -> PackagedFiles:
        contents = {version: {"module.py": text.encode()}}
        return PackagedFiles(releases=(PackedRelease(version=version),), contents=contents)

    both = PackagedFiles(
        releases=(PackedRelease(version="1.0"), PackedRelease(version="2.0")),
        contents={"1.0": {"lower/a.py": BEFORE.encode()}, "2.0": {"lower/a.py": now.encode()}},
    )
    write_pack(folder / "surfaces.pack", {"lower": both, "other": release(other)})
    pack = SurfacePack(folder / "surfaces.pack")
    with zipfile.ZipFile(folder / "upper.zip", "w") as archive:
        archive.writestr("upper/__init__.py", caller)
    releases = [
        pack.release(name, version)
        for name, version in (("lower", "1.0"), ("lower", "2.0"), ("other", "1.0"))
    ]
    before, after, beside = (one for one in releases if one is not None)
    return list(map(str, removed_names(folder / "upper.zip", before, after, [beside])))


@pytest.mark.parametrize(
    "caller",
    [
        "import lower\n\ndef f(x):\n    return x.dropped()\n",
        # defined by the caller too, but the type of the parameter says whose it is
        (
            "from lower import Tokenizer\n\nclass Own:\n    def dropped(self): ...\n\n"
            "Any = Tokenizer | Own\n\ndef f(x: Any):\n    def g():\n        return x.dropped\n"
        ),
        "from lower.a import Tokenizer\n\nclass Own:\n    dropped = 1\n\ndef f(x: 'Tokenizer'):\n    x.dropped()\n",
    ],
)
def test_a_method_that_is_gone(tmp_path: Path, caller: str) -> None:
    line = caller[: caller.rindex("x.dropped")].count("\n") + 1
    assert found(tmp_path, caller) == [f"upper/__init__.py:{line} uses dropped"]


@pytest.mark.parametrize(
    "caller",
    [
        "import lower\n\ndef f(x):\n    return x.kept()\n",
        "def f(x):\n    return x.dropped()\n",
        "import lower\n\nclass Own:\n    def dropped(self): ...\n\ndef f(x):\n    return x.dropped()\n",
        "import lower\n\nclass Own:\n    def f(self):\n        return self.dropped()\n",
        "import lower\n\ndef f(x):\n    return x.dropped() if hasattr(x, 'dropped') else None\n",
        "from lower import Tokenizer\n\nclass Own:\n    dropped = 1\n\ndef f(x: Own):\n    x.dropped\n",
        "import lower\n\ndef f(x):\n    x.dropped = 1\n",
        "import lower\n\ndef f(x):\n    if x.kept():\n        x.dropped()\n",
        "import lower\n\ndef f(x):\n    return x.kept() and x.dropped()\n",
        "import lower\n\ndef f(x):\n    try:\n        x.dropped()\n    except AttributeError:\n        pass\n",
    ],
)
def test_what_may_be_something_else(tmp_path: Path, caller: str) -> None:
    assert found(tmp_path, caller) == []


def test_a_name_that_others_have(tmp_path: Path) -> None:
    caller = "import lower\n\ndef f(x):\n    return x.dropped()\n"
    assert found(tmp_path, caller, now=NOW + "\ndef dropped(x): ...\n") == []
    assert found(tmp_path, caller, other="class Other:\n    def dropped(self): ...\n") == []


def test_sources_that_are_no_archive(tmp_path: Path) -> None:
    found(tmp_path, "")
    (tmp_path / "upper.zip").write_bytes(b"PK")
    release = SurfacePack(tmp_path / "surfaces.pack").release("lower", "1.0")
    assert release is not None
    with pytest.raises(InputError):
        list(removed_names(tmp_path / "upper.zip", release, release, []))
