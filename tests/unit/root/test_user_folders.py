from __future__ import annotations

from pathlib import Path

import pytest

from harness.user_folders import XDG_DEFAULTS, exists, home_folder, xdg_folder


def test_home_is_what_the_system_has_if_the_variable_is_missing_or_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert home_folder({"HOME": "/home/someone"}) == Path("/home/someone")
    monkeypatch.setenv("HOME", "/home/system")
    assert home_folder({}) == home_folder({"HOME": ""}) == Path("/home/system")


@pytest.mark.parametrize("variable", XDG_DEFAULTS)
def test_an_xdg_variable_that_is_no_absolute_path_is_ignored(variable: str) -> None:
    default = Path("/home/someone") / XDG_DEFAULTS[variable]
    for value, folder in (
        ("/elsewhere", Path("/elsewhere")),
        ("relative", default),
        ("", default),
        ("~/x", default),
    ):
        assert xdg_folder(variable, {"HOME": "/home/someone", variable: value}) == folder
    assert xdg_folder(variable, {"HOME": "/home/someone"}) == default


def test_a_path_that_cannot_be_looked_up_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "link")
    (tmp_path / "file").touch()
    for path in ("x" * 300, "link", "file/below", "missing"):
        assert not exists(tmp_path / path)
    assert exists(tmp_path / "file")
