"""Checkouts in which tests start the real command."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from blocking_index import BlockingIndex
from command_checkout import Checkout
from installed_wheel import InstalledWheel


@pytest.fixture
def index(checkout: Checkout) -> Iterator[BlockingIndex]:
    """A package index with three versions of verl, in which downloads of the last one block."""
    versions = ("0.7.10", "0.7.11", "0.7.12")
    for version in versions:
        checkout.release(version)
    checkout.matrix(*versions)
    with BlockingIndex(checkout.wheels.folder, f"verl-{versions[-1]}-py3-none-any.whl") as index:
        yield index


@pytest.fixture(scope="session")
def parsed_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which npu-matrix has stored what it read of its own code.

    Tests copy it: reading all modules takes more than a second, and every test has a cache of its own. Beside it
    is the cache of uv, which the tests share: in it uv stores what it knows of the interpreter.
    """
    folder = tmp_path_factory.mktemp("parsed-code")
    made = Checkout(folder)
    made.matrix("0.9.1")
    made.run("plan")
    (folder / "only-code").mkdir()
    shutil.move(folder / "cache" / "code", folder / "only-code" / "code")
    return folder / "only-code"


@pytest.fixture
def checkout(tmp_path: Path, parsed_code: Path) -> Checkout:
    folder = Checkout(tmp_path, parsed_code)
    folder.release("0.6.1")
    folder.release("0.9.1")
    folder.matrix("0.6.1", "0.9.1")
    folder.patch()
    return folder


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """npu-matrix as users install it."""
    return InstalledWheel.build(tmp_path_factory.mktemp("wheel"))
