from __future__ import annotations

import pytest

from harness.errors import InputError
from harness.sources.packages.source_requirements import tree_requirements
from harness.sources.tree import REGULAR, File, MemoryTree


def tree(**files: str) -> MemoryTree:
    names = {name.replace("_", "."): text for name, text in files.items()}
    return MemoryTree(
        label="here", files={name: File(data=text.encode(), mode=REGULAR) for name, text in names.items()}
    )


DYNAMIC = '[project]\nname = "x"\ndynamic = ["dependencies"]\n'
SETUP = (
    'install_requires = ["ray>=2", "numpy<2"]\nsetup(install_requires=install_requires)\nraise RuntimeError\n'
)


def test_a_project_lists_its_dependencies() -> None:
    listed = '[project]\nname = "x"\ndependencies = ["ray>=2"]\n'
    assert tree_requirements(tree(pyproject_toml=listed, setup_py=SETUP)) == ("ray>=2",)


@pytest.mark.parametrize("more", [{}, {"pyproject_toml": DYNAMIC}])
def test_setup_py_is_read_and_not_run(more: dict[str, str]) -> None:
    assert tree_requirements(tree(setup_py=SETUP, **more)) == ("ray>=2", "numpy<2")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "does not say what it requires"),
        ({"setup_py": "install_requires = read('requirements.txt')\n"}, "does not say what it requires"),
        ({"setup_py": "def :\n"}, "not Python"),
        ({"pyproject_toml": "[project\n"}, "not TOML"),
    ],
)
def test_what_is_not_said_in_plain_words_is_named(files: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        tree_requirements(tree(**files))
