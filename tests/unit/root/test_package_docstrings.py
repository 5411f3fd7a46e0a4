"""The docstring of every package says what the package is for, and where to start reading."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PACKAGES = sorted(file.parent for file in (REPOSITORY / "harness").rglob("__init__.py"))
IN_BACKTICKS = re.compile(r"`([\w./]+)`")


def docstring(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_bytes())) or ""


def named_file(package: Path, name: str) -> Path | None:
    """The file or package that `name` refers to, for example `loss/loss_check.py`, `loss_check.run`, `loss`."""
    if name.startswith("harness."):
        package, name = REPOSITORY, name.replace(".", "/")
    path = package / name
    if path.is_file() or (path / "__init__.py").is_file():
        return path
    parts = name.split(".")
    heads = [package.joinpath(*parts[:count]) for count in range(len(parts), 0, -1)]
    return next((head for head in heads if head.with_suffix(".py").is_file() or head.is_dir()), None)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_a_package_says_what_it_is_for_and_where_to_start(package: Path) -> None:
    text = docstring(package)
    sentences = [sentence for sentence in re.split(r"(?<=[.?])\s", text) if len(sentence.split()) >= 4]
    assert sentences, "a full sentence"
    names = IN_BACKTICKS.findall(text)
    assert any(named_file(package, name) for name in names), "the name of a module in backticks"
    files = [name for name in names if name.endswith((".py", ".h"))]
    assert [name for name in files if not named_file(package, name)] == []
