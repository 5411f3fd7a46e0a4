"""Which of two stacks is newer: by the versions of the packages that people name a stack by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from harness.report.model.failure_patterns import natural

#: The axes that decide which of two stacks is newer, most important first.
AGE_AXES = ("verl", "vllm_ascend", "torch_npu", "vllm", "torch")
_VERSION = re.compile(r"v?[0-9]{1,4}(?:\.|\Z)")
ReleaseAge = tuple[tuple[tuple[int, int, str], ...], ...]


def release_age(axes: Mapping[str, str]) -> ReleaseAge:
    """The sort key of a stack with these versions; newer stacks have greater ones."""
    return _age_of(tuple(axes.get(axis, "") for axis in AGE_AXES))


@lru_cache(maxsize=16_384)
def _age_of(versions: tuple[str, ...]) -> ReleaseAge:
    return tuple(map(_release, versions))


@lru_cache(maxsize=4_096)
def _release(version: str) -> tuple[tuple[int, int, str], ...]:
    """The sort key of a version without its commit, which tells no age; a commit alone is oldest."""
    release = version.partition("@")[0]
    return tuple(natural(release)) if _VERSION.match(release) else ()
