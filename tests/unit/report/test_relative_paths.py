"""Paths of the machine that wrote a report are replaced by the names of known folders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.report.model.relative_paths import KnownFolders

PLACES = KnownFolders(
    {"cache": "/home/me/.cache/npu-matrix", "state": "/src/.npu-matrix", "checkout": "/src"}
)


def test_the_deepest_known_folder_replaces_the_beginning_of_a_path() -> None:
    given = {
        "python": "/home/me/.cache/npu-matrix/cells/a/bin/python",
        "lines": ["read /src/.npu-matrix/work/x and /src/patches", "/srcs/other is elsewhere"],
        "count": 3,
    }
    assert PLACES.replace_paths(given) == {
        "python": "{cache}/cells/a/bin/python",
        "lines": ["read {state}/work/x and {checkout}/patches", "/srcs/other is elsewhere"],
        "count": 3,
    }


def test_without_known_folders_nothing_changes() -> None:
    assert KnownFolders({}).replace_paths(["/src/a"]) == ["/src/a"]
    assert KnownFolders({"root": "/"}).replace_paths("/src/a") == "/src/a"


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_nothing_else_changes(value: object) -> None:
    assert KnownFolders({"cache": "/nowhere/at/all"}).replace_paths(value) == value
