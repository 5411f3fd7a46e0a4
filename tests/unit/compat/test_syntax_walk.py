"""Sources that this Python version cannot parse are listed, and the others are analysed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from source_zip import write_zip

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.surface.syntax_walk import children, walk
from harness.compat.uses.package_uses import find_uses
from harness.sources.python_syntax import parse_source

GOOD = b"import torch\ntorch.add(1)\n"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(b"import torch\nprint 'python 2'\n", id="another Python"),
        pytest.param(b"import torch\nx = '\xff\xfe'\n", id="no UTF-8"),
        pytest.param(b"import torch\0\n", id="a NUL"),
        pytest.param(b"import torch\nx = " + b"(" * 5000 + b")" * 5000, id="too deep"),
        pytest.param(b"# -*- coding: no-such-code -*-\nimport torch\n", id="an unknown encoding"),
        pytest.param(b"import torch\n" + b"\\", id="cut short"),
    ],
)
def test_unparsed_files_are_listed_and_the_others_analysed(tmp_path: Path, source: bytes) -> None:
    archive = write_zip(tmp_path / "a.zip", {"user/bad.py": source, "user/good.py": GOOD})
    found = find_uses(ApiSurface(archive), {"torch"})
    assert found.unparsed == ("user/bad.py",)
    assert {use.file for use in found.uses} == {"user/good.py"}


def test_a_declared_encoding_is_used() -> None:
    assert parse_source("# -*- coding: gbk -*-\nname = '中'\n".encode("gbk"))


def test_walk_finds_the_same_nodes_as_ast_walk() -> None:
    tree = parse_source(Path(ast.__file__).read_bytes())
    assert tree is not None
    plain = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    theirs = {id(node) for node in ast.walk(tree) if not isinstance(node, plain)}
    assert {id(node) for node in walk(tree)} == theirs
    assert sys.getrecursionlimit() < len(theirs)
    lines = [child.lineno for child in children(tree) if isinstance(child, ast.stmt)]
    assert lines == sorted(lines)
