from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_tree import MemoryTree

from harness.errors import InputError
from harness.sources.packages.source_requirements import source_requirements
from harness.sources.tree import REGULAR, TreeFile

EMPTY = {"VLLM_TARGET_DEVICE": "empty"}
TABLE = """
import re
_deps = ["filelock", "huggingface-hub>=0.34.0,<1.0", "numpy>=1.17", "tokenizers>=0.22.0,<=0.23.0", "torch>=2.2"]
deps = {b: a for a, b in (re.findall(r"^(([^!=<>~ ]+)(?:[!=<>~ ].*)?$)", x)[0] for x in _deps)}
install_requires = [
    deps["filelock"],  # locks
    deps["huggingface-hub"],
    deps["tokenizers"],
]
setup(install_requires=list(install_requires))
"""
BY_DEVICE = """
def _no_device():
    return VLLM_TARGET_DEVICE == "empty"

def get_requirements():
    def _read_requirements(filename):
        ...
    if _no_device():
        requirements = _read_requirements("common.txt")
    elif _is_cuda():
        requirements = _read_requirements("cuda.txt")
    return requirements

setup(install_requires=get_requirements())
"""
FILES = {
    "setup.py": BY_DEVICE,
    "requirements/common.txt": "regex # for the prompt\nnumpy\n--extra-index-url https://x.example\n-r more.txt\n",
    "requirements/more.txt": "xgrammar==0.1.25; platform_machine == 'x86_64'\n",
    "requirements/cuda.txt": "-r common.txt\nnumba\n",
}


def tree(**files: str) -> MemoryTree:
    names = {name.replace("_", "."): text for name, text in files.items()}
    return MemoryTree(
        label="here", files={name: TreeFile(data=text.encode(), mode=REGULAR) for name, text in names.items()}
    )


DYNAMIC = '[project]\nname = "x"\ndynamic = ["dependencies"]\n'
SETUP = (
    'install_requires = ["ray>=2", "numpy<2"]\nsetup(install_requires=install_requires)\nraise RuntimeError\n'
)


def test_a_project_lists_its_dependencies() -> None:
    listed = '[project]\nname = "x"\ndependencies = ["ray>=2"]\n'
    assert source_requirements(tree(pyproject_toml=listed, setup_py=SETUP)) == ("ray>=2",)


@pytest.mark.parametrize("more", [{}, {"pyproject_toml": DYNAMIC}])
def test_setup_py_is_read_and_not_run(more: dict[str, str]) -> None:
    assert source_requirements(tree(setup_py=SETUP, **more)) == ("ray>=2", "numpy<2")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "cannot be determined"),
        ({"setup_py": "install_requires = read('requirements.txt')\n"}, "cannot be determined"),
        (
            {"setup_py": "setup(install_requires=Path('../x.txt').read_text().splitlines())\n"},
            "cannot be determined",
        ),
        (
            {
                "setup_py": "install_requires = []\ninstall_requires.append(torch())\nsetup(install_requires=install_requires)"
            },
            "cannot be determined",
        ),
        ({"setup_py": "def :\n"}, "not valid Python"),
        ({"pyproject_toml": "[project\n"}, "not valid TOML"),
    ],
)
def test_what_is_not_said_in_plain_words_is_named(files: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        source_requirements(tree(**files))


@pytest.mark.parametrize(
    "files",
    [
        {"setup.py": "setup(install_requires=['ray>=2'] + MORE)\nMORE = ['numpy<2']\n"},
        {"setup.py": 'setup(install_requires=Path("needs.txt").read_text().splitlines())'},
        {
            "setup.py": 'with open("needs.txt") as f:\n    pass\nsetup(install_requires=open("needs.txt").readlines())'
        },
        {"setup.py": "setup()", "setup.cfg": "[options]\ninstall_requires =\n  ray>=2\n  numpy<2\n"},
        {"setup.cfg": "[options]\ninstall_requires = file: needs.txt\n"},
        {"pyproject.toml": DYNAMIC + "[tool.setuptools.dynamic]\ndependencies = {file = ['needs.txt']}\n"},
    ],
)
def test_each_way_to_state_requirements_is_read(files: Mapping[str, str]) -> None:
    assert source_requirements(files_tree({"needs.txt": "ray>=2\nnumpy<2\n", **files})) == (
        "ray>=2",
        "numpy<2",
    )


def test_a_project_that_states_none_has_none() -> None:
    assert source_requirements(files_tree({"pyproject.toml": '[project]\nname = "x"\n'})) == ()


def files_tree(files: Mapping[str, str]) -> MemoryTree:
    return MemoryTree(
        label="here", files={name: TreeFile(data=text.encode(), mode=REGULAR) for name, text in files.items()}
    )


def test_a_table_is_picked_from() -> None:
    found = source_requirements(files_tree({"setup.py": TABLE}))
    assert found == ("filelock", "huggingface-hub>=0.34.0,<1.0", "tokenizers>=0.22.0,<=0.23.0")


@pytest.mark.parametrize(
    "wrong",
    [
        TABLE.replace('deps["tokenizers"]', 'deps["tokenisers"]'),
        TABLE.replace('deps["tokenizers"]', 'chosen("tokenizers")'),
        TABLE.replace("_deps = [", "_deps = read() or ["),
    ],
)
def test_what_the_table_does_not_say_in_plain_words_is_not_guessed(wrong: str) -> None:
    with pytest.raises(InputError, match="cannot be determined"):
        source_requirements(files_tree({"setup.py": wrong}))


def test_vllm_without_a_device_reads_its_own_file() -> None:
    assert source_requirements(files_tree(FILES), EMPTY) == (
        "regex",
        "numpy",
        "xgrammar==0.1.25; platform_machine == 'x86_64'",
    )


@pytest.mark.parametrize("env", [{}, {"VLLM_TARGET_DEVICE": "cuda"}])
def test_for_another_device_it_is_not_guessed(env: Mapping[str, str]) -> None:
    with pytest.raises(InputError, match="cannot be determined"):
        source_requirements(files_tree(FILES), env)


@pytest.mark.parametrize("name", ["missing.txt", "../outside.txt", "/etc/passwd"])
def test_a_file_that_is_not_in_the_tree_is_not_read(name: str) -> None:
    files = {**FILES, "setup.py": BY_DEVICE.replace("common.txt", name)}
    with pytest.raises(InputError):
        source_requirements(files_tree(files), EMPTY)


@given(st.text(max_size=60))
def test_no_setup_py_breaks_it(text: str) -> None:
    for setup in (text, TABLE + text, BY_DEVICE + text):
        try:
            found = source_requirements(files_tree({**FILES, "setup.py": setup}), EMPTY)
        except InputError:
            continue
        assert all(isinstance(line, str) for line in found)
