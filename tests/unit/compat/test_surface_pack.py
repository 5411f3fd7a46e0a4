"""Surface packs: outlines answer like sources, and packs are reproducible, verified and honest."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from source_zip import write_zip

from harness.compat.knowledge import pack_file
from harness.compat.knowledge.module_outline import outline
from harness.compat.knowledge.pack_build import NOT_YET, BuildPlan, PackageBuild
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, PackFile, write_pack
from harness.compat.knowledge.raised_messages import RAISED
from harness.compat.knowledge.surface_pack import InRelease, SurfacePack, signatures_of
from harness.compat.surface.api_surface import ApiSurface
from harness.errors import InfrastructureError, InputError
from harness.sources.packages.index_listing import ListedRelease
from harness.sources.packages.release_fetcher import Sources

SOURCES = {
    "lib/__init__.py": "from .core import *\nfrom . import lazy\nimport os\nX = os.environ.get('LIB_FAST')\n",
    "lib/core.py": (
        "__all__ = ['make', 'Model']\n"
        "def make(a, b=1, /, *rest, c, d='x', **more):\n    local = 1\n    other.word = 2\n"
        "class Base:\n    def __init__(self, size): self.size = size; hidden = 3\n    def run(self, x): ...\n"
        "class Model(Base):\n    limit: int = 3\n    @classmethod\n    def load(cls, name): ...\n"
        "class Open:\n    def __getattr__(self, n): ...\n"
        "class Data:\n    def __init__(self, v):\n        for k in v: setattr(self, k, v)\n"
    ),
    "lib/lazy.py": "def __getattr__(name): ...\n",
    "lib/table.py": "for name in 'abc':\n    globals()[name] = 1\n",
    "lib/torn.py": "def broken(:\n",
}
NAMES = (
    *("lib.make", "lib.Model.size", "lib.Model.run", "lib.Model.limit", "lib.Model.gone", "lib.Model.hidden"),
    *("lib.core.Open.any", "lib.core.Data.any", "lib.lazy.any", "lib.table.a", "lib.core.local", "lib.gone"),
    *("lib.core.word", "lib.torn.broken", "lib.nowhere.x", "lib.core.__doc__"),
)


def outlined(files: dict[str, str]) -> dict[str, bytes]:
    return {path: outline(text.encode()) for path, text in files.items()}


def packed(*versions: tuple[str, dict[str, bytes] | None]) -> PackagedFiles:
    return PackagedFiles(
        releases=tuple(
            PackedRelease(version=version, unread="" if files is not None else "not read yet")
            for version, files in versions
        ),
        contents={version: files for version, files in versions if files is not None},
    )


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    later = outlined(SOURCES | {"lib/core.py": "def make(a, c): ...\n"})
    files = packed(
        ("1.0", outlined({"lib/__init__.py": "", "lib/core.py": ""})),
        ("1.1", None),
        ("2.0", {**outlined(SOURCES), "METADATA": b"Requires-Dist: dep>=2\nRequires-Python: >=3.9\n"}),
        ("3.0", later),
    )
    write_pack(tmp_path / "s.pack", {"lib": files})
    return tmp_path / "s.pack"


@pytest.mark.parametrize("name", NAMES)
def test_an_outline_answers_like_its_source(name: str, tmp_path: Path) -> None:
    source = ApiSurface(write_zip(tmp_path / "s.zip", SOURCES))
    outlines = ApiSurface(write_zip(tmp_path / "o.zip", outlined(SOURCES)))
    expected = "unknown" if name == "lib.torn.broken" else source.find(name).presence.value
    assert outlines.find(name).presence.value == expected
    assert list(map(str, signatures_of(outlines, name))) == list(map(str, signatures_of(source, name)))


def test_local_variables_of_methods_are_no_attributes(tmp_path: Path) -> None:
    source = ApiSurface(write_zip(tmp_path / "s.zip", SOURCES))
    assert source.find("lib.Model.hidden").presence.value == "missing"


def test_a_release_that_was_not_read_is_never_one_without_the_name(pack: Path) -> None:
    history = SurfacePack(pack).history("lib", "lib.core.Model")
    assert [state for _version, state in history.releases] == [
        *(InRelease.MISSING, InRelease.NOT_READ, InRelease.FOUND, InRelease.MISSING)
    ]
    assert (history.since, history.since_is_exact) == ("2.0", False)
    assert (history.until, history.until_is_exact) == ("2.0", True)
    assert history.in_release("9.9") is InRelease.NOT_READ
    assert (history.last_before("3.0"), history.first_after("1.0")) == ("2.0", "2.0")


def test_parameters_requirements_and_environment(pack: Path) -> None:
    opened = SurfacePack(pack)
    states = dict(opened.parameter_history("lib", "lib.core.make", "zzz").releases)
    assert states["2.0"] is InRelease.UNKNOWN
    assert states["3.0"] is InRelease.MISSING
    release = opened.release("lib", "2.0")
    assert release is not None
    assert release.python_range == ">=3.9"
    assert list(release.environment_variables()) == ["LIB_FAST"]
    assert [(one.package, one.version) for one in opened.requirers("Dep")] == [("lib", "2.0")]
    assert opened.package_of("lib.core.make") == "lib"
    assert opened.find("lib", "1.1", "lib.core")[0] is InRelease.NOT_READ


def test_equal_inputs_give_an_equal_digest_and_other_inputs_another(tmp_path: Path, pack: Path) -> None:
    first = PackFile(pack)
    again = write_pack(tmp_path / "again.pack", {"lib": first.package("lib").files()})
    assert again == first.digest
    assert write_pack(tmp_path / "kept.pack", {}, first) == first.digest
    other = packed(("1.0", outlined({"lib/__init__.py": "x = 1\n"})))
    assert write_pack(tmp_path / "other.pack", {"lib": other}) != first.digest


def test_the_order_of_reading_does_not_change_the_digest(tmp_path: Path) -> None:
    zips = {
        v: write_zip(tmp_path / f"{v}.zip", {"lib/__init__.py": f"v{v[0]} = 1\n"}) for v in ("1.0", "2.0")
    }
    listed = [ListedRelease(version=v, uploaded="2025-01-01", files=()) for v in zips]

    def add(known: PackagedFiles | None, *releases: ListedRelease) -> PackagedFiles:
        plan = BuildPlan(since="2024-01-01")
        build = PackageBuild("lib", known, lambda one: Sources(file=zips[one.version]), plan, lambda _: None)
        build.add(releases)
        return build.files()

    at_once = write_pack(tmp_path / "a.pack", {"lib": add(None, *listed)})
    in_steps = write_pack(tmp_path / "b.pack", {"lib": add(add(None, listed[1]), *listed)})
    assert at_once == in_steps


def test_of_old_releases_the_last_of_each_minor_release_is_read(tmp_path: Path) -> None:
    file = write_zip(tmp_path / "lib.zip", {"lib/__init__.py": "v = 1\n"})
    dates = {"0.8.0": "2021-01-01", "0.9.0": "2023-01-01", "0.9.1": "2023-02-01", "1.0.0": "2024-02-01"}
    listed = [ListedRelease(version=v, uploaded=day, files=()) for v, day in dates.items()]
    plan = BuildPlan(since="2024-01-01", minors_since="2022-01-01")
    build = PackageBuild("lib", None, lambda _one: Sources(file=file), plan, lambda _: None)
    build.add(listed)
    assert [one.version for one in build.files().releases] == ["0.9.1", "1.0.0"]


def test_messages_are_those_of_the_last_release_of_each_minor_version(tmp_path: Path) -> None:
    file = write_zip(
        tmp_path / "vllm.zip", {"vllm/a.py": "def f():\n    raise ValueError('the value is refused')\n"}
    )
    listed = {
        version: ListedRelease(version=version, uploaded="2025-01-01", files=())
        for version in ("0.8.0", "0.8.1", "0.9.0", "0.9.1")
    }

    def add(known: PackagedFiles | None, *versions: str) -> PackagedFiles:
        plan = BuildPlan(since="2024-01-01")
        build = PackageBuild("vllm", known, lambda _one: Sources(file=file), plan, lambda _: None)
        build.add([listed[version] for version in versions])
        return build.files()

    def spoken(files: PackagedFiles) -> list[str]:
        return [version for version, names in files.contents.items() if any(map(is_message, names))]

    first = add(None, "0.8.0", "0.8.1", "0.9.0")
    assert sorted(spoken(first)) == ["0.8.1", "0.9.0"]
    # A later patch release replaces those of the one before it, as if all had been read at once.
    later = add(first, *listed)
    assert sorted(spoken(later)) == ["0.8.1", "0.9.1"]
    assert later == add(None, *listed)


def is_message(path: str) -> bool:
    return path.endswith(RAISED)


def test_an_update_that_is_out_of_time_loses_no_release(tmp_path: Path) -> None:
    file = write_zip(
        tmp_path / "vllm.zip", {"vllm/a.py": "def f():\n    raise ValueError('the value is refused')\n"}
    )
    known = PackagedFiles(
        releases=(PackedRelease(version="0.9.1"),), contents={"0.9.1": {"vllm/a.py": b"def f():...\n"}}
    )
    plan = BuildPlan(since="2024-01-01", deadline=0.0)
    build = PackageBuild("vllm", known, lambda _one: Sources(file=file), plan, lambda _: None)
    build.add([ListedRelease(version="0.9.1", uploaded="2025-01-01", files=())])
    assert build.files() == known


def test_a_release_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "no.whl").write_bytes(b"not a wheel")
    listed = [ListedRelease(version="1.0", uploaded="2025-01-01", files=())]
    plan = BuildPlan(since="2024-01-01")
    build = PackageBuild("lib", None, lambda _one: Sources(file=tmp_path / "no.whl"), plan, lambda _: None)
    build.add(listed)
    found = build.files()
    assert found.releases[0].unread
    assert not found.contents


def test_an_index_that_cannot_be_reached_says_nothing_about_a_release() -> None:
    def fetch(_release: ListedRelease) -> Sources:
        raise InfrastructureError("the index cannot be reached")

    told: list[str] = []
    build = PackageBuild("lib", None, fetch, BuildPlan(since="2024-01-01"), told.append)
    build.add([ListedRelease(version="1.0", uploaded="2025-01-01", files=())])
    assert build.files().releases[0].unread == NOT_YET
    assert "cannot be reached" in told[0]


@pytest.mark.parametrize("damage", ["text", "truncated", "version", "chunk", "directory", "absent"])
def test_a_damaged_pack_is_not_used(damage: str, pack: Path) -> None:
    data = pack.read_bytes()
    if damage in ("version", "chunk", "directory"):
        database = sqlite3.connect(pack)
        statement = {
            "version": "UPDATE meta SET value = '999' WHERE key = 'version'",
            "chunk": "UPDATE chunk SET data = x'00'",
            "directory": "UPDATE package SET directory = x'789c030000000001'",
        }[damage]
        database.execute(statement)
        database.commit()
        database.close()
    elif damage == "absent":
        pack.unlink()
    else:
        pack.write_bytes(b"hello" if damage == "text" else data[: len(data) // 2])
    with pytest.raises(InputError) as caught:
        SurfacePack(pack).history("lib", "lib.core.Model")
    assert caught.value.exit_code == 2


def test_what_is_kept_of_a_large_package_is_bounded_and_changes_no_answer(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pack_file, "CHUNK_BYTES", 2_000)
    modules = {f"lib/m{at}.py": f"def f{at}(): ...\nword_{at} = {'x' * 900!r}\n" for at in range(40)}
    contents = {path: text.encode() for path, text in modules.items()}
    write_pack(tmp_path / "large.pack", {"lib": packed(("1.0", contents))})
    whole = SurfacePack(tmp_path / "large.pack")
    monkeypatch.setattr(pack_file, "MAX_KEPT_BYTES", 5_000)
    bounded = SurfacePack(tmp_path / "large.pack")
    for at in (0, 39, 20, 0):
        assert bounded.word_history("lib", f"word_{at}") == whole.word_history("lib", f"word_{at}")
        assert bounded.history("lib", f"lib.m{at}.f{at}").since == "1.0"
    part = bounded._part("lib")
    assert len(part._chunk_digests) > 5
    assert sum(map(len, part._chunks.values())) == part._chunk_bytes <= 5_000
    assert part.unpacked < sum(map(len, contents.values()))
