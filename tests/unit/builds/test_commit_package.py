"""Installing a package from a commit of a mirror into an environment, and which packages that cannot do."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from git_command import commit_all
from memory_tree import MemoryTree

from harness.builds.cell.build_step_error import HostLacksError
from harness.builds.cell.commit_package import CommitPackage, find_commit_package
from harness.builds.cell.host_requirements import available_commits
from harness.errors import InputError
from harness.matrix.model.environment_facets import PinnedSource, PinsFacet
from harness.sources.tree import TreeFile

FILES = {
    "verl/__init__.py": "ANSWER = 1\n",
    "recipe/dapo/main.py": "",
    "tests/test_it.py": "",
    "setup.py": """install_requires = ["ray>=2"]
setup(packages=find_packages(), install_requires=install_requires, entry_points={"a.b": ["x = verl:x"]})
raise RuntimeError("it ran")
""",
}


@pytest.fixture
def mirrors(tmp_path: Path) -> tuple[Path, str]:
    """A folder of clones, and the commit that one of them has."""
    clone = tmp_path / "mirrors" / "verl"
    for name, text in FILES.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    (clone / "verl" / "link.py").symlink_to("/etc/passwd")
    return tmp_path / "mirrors", commit_all(clone)


def find_verl(commit: str, mirrors: Path) -> CommitPackage | None:
    source = PinnedSource(package="verl", version="0.7.0.dev0", commit=commit)
    return find_commit_package(source, [mirrors])


def test_the_package_is_there_as_if_it_had_been_installed(mirrors: tuple[Path, str], tmp_path: Path) -> None:
    folder, commit = mirrors
    found = find_verl(commit, folder)
    assert found is not None
    site = tmp_path / "site-packages"
    site.mkdir()
    found.install(site)

    assert {path.name for path in site.iterdir()} == {"verl", "recipe", "verl-0.7.0.dev0.dist-info"}
    (known,) = importlib.metadata.distributions(path=[str(site)])
    assert (known.name, known.version, known.requires) == ("verl", "0.7.0.dev0", ["ray>=2"])
    assert [(point.group, point.name, point.value) for point in known.entry_points] == [
        ("a.b", "x", "verl:x")
    ]
    recorded = {str(file): file.hash for file in known.files or ()}
    assert all((site / name).is_file() for name in recorded)
    assert recorded["verl/__init__.py"] is not None
    assert not (site / "verl" / "link.py").exists()
    assert commit in found.identity


@pytest.mark.parametrize("commit", ["", "0" * 40])
def test_without_the_commit_there_is_none(mirrors: tuple[Path, str], commit: str) -> None:
    assert find_verl(commit, mirrors[0]) is None


def test_a_path_out_of_the_environment_is_refused(mirrors: tuple[Path, str], tmp_path: Path) -> None:
    folder, commit = mirrors
    found = find_verl(commit, folder)
    assert found is not None
    files = {"verl/../../out.py": "", "setup.py": "setup(packages=['verl'])"}
    hostile = MemoryTree(
        label="hostile",
        files={name: TreeFile(data=text.encode(), mode="100644") for name, text in files.items()},
    )
    object.__setattr__(found, "tree", hostile)
    with pytest.raises(InputError, match="cannot be checked out"):
        found.install(tmp_path)
    assert not (tmp_path.parent / "out.py").exists()


@pytest.mark.parametrize(
    ("setup", "lacks"),
    [
        ("", ""),
        ("setup(packages=['verl'], ext_modules=[Extension('x')])", "engine"),
        (None, "commits"),
    ],
)
def test_only_commits_of_pure_python_are_installed_without_a_container(
    setup: str | None, lacks: str, mirrors: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, commit = mirrors
    if setup:
        (folder / "verl" / "setup.py").write_text(setup)
        commit = commit_all(folder / "verl")
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(folder))
    source = PinnedSource(package="verl", version="1.0", commit="0" * 40 if setup is None else commit)
    pins = PinsFacet(from_source=(source,))
    if not lacks:
        assert [one.commit for one in available_commits(pins)] == [commit]
        return
    with pytest.raises(HostLacksError) as refused:
        available_commits(pins)
    assert refused.value.lacks.kind == lacks
