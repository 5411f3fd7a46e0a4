"""What tests do without a program that they need: CI has all of them, so there the test fails."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Fail the test in CI, and skip it elsewhere; `what` is missing, and how to install it."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def required_program(name: str, package: str) -> str:
    """The path of a program of this Debian package, also of one that only root has on the PATH."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        missing(f"{name} is not installed (Debian: apt-get install {package})")
    return found
