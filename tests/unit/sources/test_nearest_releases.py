"""A release that the index does not have is an error that names the nearest that it has."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import EXIT_BAD_INPUT, InputError
from harness.sources.packages.release_fetcher import ReleaseFetcher


@pytest.fixture
def releases(wheels: Any, context: Any) -> ReleaseFetcher:
    for version in ("0.8.0", "0.9.0rc1", "0.9.0", "0.9.1", "0.10.0rc2"):
        wheels.add("big", version)
    ctx = context({})
    return ReleaseFetcher(cache=ctx.cache, command=ctx.command)


@pytest.mark.parametrize(
    ("version", "near"),
    [
        ("0.9.11", "0.9.0, 0.9.1, 0.10.0rc2"),
        ("0.8.5", "0.8.0, 0.9.0"),
        ("0.1", "0.8.0"),
        ("0.9.1rc1", "0.8.0, 0.9.0, 0.9.1"),
        ("7", "0.9.0, 0.9.1"),
        ("banana", "0.9.1"),
        ("1" * 5000, "0.9.1"),
        ("0.9.1 ; --index-url x", "0.9.1"),
    ],
)
def test_the_nearest_releases_are_named(releases: ReleaseFetcher, version: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        releases.require("big", version)
    assert caught.value.exit_code == EXIT_BAD_INPUT
    assert caught.value.problems[0].fix == f"nearest published: {near}"


def test_a_release_of_the_index_is_accepted(releases: ReleaseFetcher) -> None:
    releases.require("big", "0.9.1")


@pytest.mark.parametrize("package", ["huge", "-e .", "big==0.9.1\n--index-url=x"])
def test_a_package_without_releases_has_no_nearest(releases: ReleaseFetcher, package: str) -> None:
    with pytest.raises(InputError) as caught:
        releases.require(package, "1.0")
    assert "nearest" not in caught.value.problems[0].fix
