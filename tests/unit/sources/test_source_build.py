"""Whether a source package is pure Python, and what it installs, by its own files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from memory_tree import MemoryTree

from harness.sources.packages.source_build import source_build
from harness.sources.tree import REGULAR, TreeFile

# The end of MindSpeed's setup.py at v2.2.0_core_r0.12.1.
MINDSPEED = """
import os, setuptools
cmd_class = {}
exts = []
def package_files(directory):
    paths = []
    for path, directories, filenames in os.walk(directory):
        paths.append(path)
    return paths
setuptools.setup(
    name="mindspeed",
    install_requires=Path("requirements.txt").read_text().splitlines(),
    packages=setuptools.find_packages(),
    package_data={"": package_files("mindspeed")},
    cmdclass={},
    entry_points={"console_scripts": ["mindspeed = mindspeed.run.run:main"]},
    ext_modules=exts
)
"""
PACKAGES = {"pkg/__init__.py": "", "pkg/sub/__init__.py": "", "pkg/data/x.yaml": "", "tests/__init__.py": ""}
BACKEND = "[build-system]\nbuild-backend = "


def built(files: Mapping[str, str]) -> MemoryTree:
    return MemoryTree(
        files={name: TreeFile(data=text.encode(), mode=REGULAR) for name, text in files.items()}
    )


@pytest.mark.parametrize(
    ("files", "prefix", "roots"),
    [
        ({"setup.py": MINDSPEED, "mindspeed/__init__.py": ""}, "", ("mindspeed", "pkg")),
        ({"setup.py": "setup(packages=find_packages(include=['pkg*']))", "more/__init__.py": ""}, "", ("pkg",)),
        ({"setup.py": "setup(packages=find_packages('.', exclude=['more*']))", "more/__init__.py": ""}, "", ("pkg",)),
        ({"setup.py": "setup(packages=['pkg', 'pkg.sub'], py_modules=['one'])"}, "", ("pkg", "one.py")),
        ({"setup.py": "setup()"}, "", ("pkg",)),
        ({"setup.py": "setup(packages=['a'], package_dir={'': 'src'})"}, "src/", ("a",)),
        ({"setup.cfg": "[options]\npackages = find:\n"}, "", ("pkg",)),
        ({"setup.cfg": "[options]\npackages =\n  a\n  a.b\npackage_dir =\n  =src\n"}, "src/", ("a",)),
        ({"setup.cfg": "[options]\npackages=find:\n[options.packages.find]\nwhere=src\n", "src/a/__init__.py": ""},
         "src/", ("a",)),
        ({"pyproject.toml": "[tool.setuptools.packages.find]\ninclude = ['pkg*']", "x/__init__.py": ""}, "", ("pkg",)),
        ({"pyproject.toml": "[tool.setuptools]\npackages = ['pkg']", "x/__init__.py": ""}, "", ("pkg",)),
        ({"pyproject.toml": f"{BACKEND}'hatchling.build'\n[project]\nname = 'pkg'"}, "", ("pkg",)),
        ({"pyproject.toml": f"{BACKEND}'uv_build'\n[project]\nname = 'a-b'", "src/a_b/__init__.py": ""},
         "src/", ("a_b",)),
        ({"setup.py": "setup(packages=['pkg'], cmdclass={'deps_table_update': Update})"}, "", ("pkg",)),
    ],
)  # fmt: skip
def test_what_only_copies_files_is_pure(
    files: Mapping[str, str], prefix: str, roots: tuple[str, ...]
) -> None:
    found = source_build(built({**PACKAGES, **files}))
    assert (found.more, found.prefix, found.roots) == ("", prefix, roots)


@pytest.mark.parametrize(
    ("files", "more"),
    [
        ({"setup.py": MINDSPEED.replace("exts = []", "exts = [Extension('x', ['x.cpp'])]")}, "Extension"),
        ({"setup.py": MINDSPEED.replace("exts = []", "exts = []\nexts.append(x)")}, "exts is computed"),
        ({"setup.py": MINDSPEED.replace("exts = []", "exts = []\nexts += x")}, "exts is computed"),
        ({"setup.py": MINDSPEED.replace("exts = []", "exts = []\nif x:\n    exts = y()")}, "exts is computed"),
        ({"setup.py": MINDSPEED.replace("cmdclass={}", "cmdclass={'build_ext': B}")}, "replaces build_ext"),
        ({"setup.py": MINDSPEED.replace("cmdclass={}", "cmdclass=versioneer.get_cmdclass()")}, "not a dictionary"),
        ({"setup.py": MINDSPEED.replace("cmdclass={}", "cmdclass={**more}")}, "not written here"),
        ({"setup.py": MINDSPEED.replace("import os", "import os, subprocess")}, "starts programs"),
        ({"setup.py": MINDSPEED.replace("cmdclass={}", "setup_requires=['cython']")}, "has setup_requires"),
        ({"setup.py": "setup(**given)"}, "dictionary of arguments"),
        ({"setup.py": "setup(packages=['a'])\nsetup(packages=['b'])"}, "several calls"),
        ({"setup.py": "setup("}, "not valid Python"),
        ({"setup.py": "setup(packages=['pkg'], package_dir={'pkg': 'lib'})"}, "package_dir"),
        ({"setup.py": "setup(packages=['pkg'], entry_points='[a]\\nb = c')"}, "entry points"),
        ({"setup.cfg": "no section"}, "not a configuration file"),
        ({"pyproject.toml": "[build-system]\nbackend-path = ['.']\nbuild-backend = 'own'"}, "of the repository"),
        ({"pyproject.toml": f"{BACKEND}'maturin'"}, "backend maturin"),
        ({"pyproject.toml": f"{BACKEND}'hatchling.build'\n[project]\nname = 'pkg'\n[tool.hatch.build.hooks.custom]"},
         "tells hatchling"),
        ({"pyproject.toml": f"{BACKEND}'hatchling.build'\n[project]\nname = 'other'"}, "no package other"),
        ({"pyproject.toml": "[[tool.setuptools.ext-modules]]\nname = 'x'"}, "ext-modules"),
        ({"pyproject.toml": "[tool.setuptools_scm]\nversion_file = 'pkg/_version.py'"}, "write a file"),
        ({"pyproject.toml": "[[tool.setuptools-rust.ext-modules]]"}, "setuptools-rust"),
        ({"pyproject.toml": "["}, "not valid TOML"),
    ],
)  # fmt: skip
def test_what_does_more_or_cannot_be_read_is_not(files: Mapping[str, str], more: str) -> None:
    assert more in source_build(built({**PACKAGES, **files})).more


def test_a_tree_without_packages_is_told() -> None:
    assert source_build(built({"README.md": ""})).more == "no package was found"


def test_entry_points_of_each_kind_are_kept() -> None:
    texts = {
        "setup.py": "setup(packages=['pkg'], entry_points={'vllm.general_plugins': ['a = pkg:a']})",
        "setup.cfg": "[options.entry_points]\nb.c =\n  d = pkg:d\n",
        "pyproject.toml": "[project]\nname = 'x'\n[project.scripts]\nrun = 'pkg:run'\n[project.entry-points.'e.f']\ng = 'pkg:g'",
    }
    assert source_build(built({**PACKAGES, **texts})).entry_points == {
        "console_scripts": ("run = pkg:run",),
        "e.f": ("g = pkg:g",),
        "b.c": ("d = pkg:d",),
        "vllm.general_plugins": ("a = pkg:a",),
    }
