"""The picture in ARCHITECTURE.md shows the import contracts, and the code follows them."""

from __future__ import annotations

import ast
import importlib.util
import re

import pytest
from test_root_imports import PACKAGE, REPOSITORY, imports, modules

spec = importlib.util.spec_from_file_location("architecture", REPOSITORY / "docs" / "architecture.py")
assert spec
assert spec.loader
architecture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(architecture)

TEXT = architecture.DOCUMENT.read_text(encoding="utf-8")
LEVEL = {name: number for number, names in enumerate(architecture.package_layers()) for name in names}


def test_the_picture_is_that_of_the_contracts():
    assert architecture.picture() in TEXT
    assert architecture.updated(TEXT) == TEXT, "run `python docs/architecture.py`"


def test_every_package_is_in_the_picture():
    packages = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(LEVEL)


def test_every_import_leads_to_a_lower_layer_of_the_picture():
    known = modules()
    upwards = []
    for name, file in known.items():
        own = name.split(".")[1:2]
        for other in imports(ast.parse(file.read_bytes()), known):
            target = other.split(".")[1:2]
            across = own != target and {*own, *target} <= set(LEVEL)
            if own and target and across and LEVEL[target[0]] <= LEVEL[own[0]]:
                upwards.append((name, other))
    assert upwards == []


def test_the_import_edges_are_not_read_from_the_picture():
    """The test above would find an import that violates the layers, so its graph is not empty."""
    known = modules()
    tree = ast.parse("from harness.cli.app import app")
    assert list(imports(tree, known)) == ["harness.cli.app"]
    assert LEVEL["cli"] < LEVEL["plan"]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "RELEASING.md"])
def test_files_and_links_of_these_documents_exist(name):
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
    paths = re.findall(r"(?<![\w/.-])(?:harness|tests|docs|benchmarks|\.github)/[\w/.-]*[\w-]", text)
    example = {"harness/compat/mindspeed_commit.py", "tests/unit/compat/test_mindspeed_commit.py"}
    missing = [path for path in paths if not (REPOSITORY / path).exists()]
    assert [path for path in missing if path not in example and not path.endswith("PACKAGE")] == []
