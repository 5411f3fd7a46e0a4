"""The settings that uv uses in a folder, whatever folder is around it."""

from __future__ import annotations

from pathlib import Path

SETTINGS_NAME = "uv.toml"


def write_uv_settings(folder: Path, settings: str) -> None:
    """Write uv's settings for the programs that run in `folder`.

    The folder is made a workspace, because uv otherwise reads the settings of the project around it, for
    example of the checkout that contains the state folder, and ignores `uv.toml` here.
    """
    (folder / SETTINGS_NAME).write_text(settings, encoding="utf-8")
    (folder / "pyproject.toml").write_text("[tool.uv.workspace]\n", encoding="utf-8")
