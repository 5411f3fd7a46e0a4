"""The surface pack that commands use: the user's own, which `knowledge update` writes, or the shipped one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path

from harness.compat.knowledge.surface_pack import SurfacePack
from harness.errors import InputError
from harness.package import data_file

NAME = "surfaces.pack"
MOST_KEPT_BYTES = 64 << 20
UPDATE = "npu-matrix knowledge update"


class PackAtHand:
    """Of several packs the one with the newest release, opened when it is first needed."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self._files = tuple(files)
        self._problems: list[str] = []

    @cached_property
    def pack(self) -> SurfacePack | None:
        """The open pack, None if there is none or none can be used; see `note`."""
        usable = []
        for file in self._files:
            if not file.is_file():
                continue
            try:
                usable.append(SurfacePack(file))
            except InputError as error:
                self._problems.append(" ".join(str(error).split()))
        return max(usable, key=lambda one: one.newest, default=None)

    def trim(self) -> None:
        """Forget what was read of the pack, if it is much. Call this between logs."""
        if self.__dict__.get("pack") is not None and self.pack is not None:
            self.pack.trim(MOST_KEPT_BYTES)

    @property
    def note(self) -> str:
        """Why a pack that was asked for is not used, or ""."""
        if "pack" not in self.__dict__:
            return ""
        if self._problems and self.pack is None:
            return f"releases were not compared: {'; '.join(self._problems)}"
        return (
            ""
            if self.pack is not None
            else f"releases were not compared: there is no surface pack ({UPDATE})"
        )


def shipped_pack_file() -> Path:
    """The pack that is part of this program; it does not exist in every build."""
    return data_file("compat/knowledge/surfaces.pack")


def user_pack_file(cache_folder: Path) -> Path:
    """The pack that `knowledge update` writes."""
    return cache_folder / "surfaces" / NAME


@cache
def shipped_pack() -> PackAtHand:
    """The pack that is part of this program."""
    return PackAtHand((shipped_pack_file(),))


def pack_at_hand(cache_folder: Path) -> PackAtHand:
    """The user's pack or the shipped one, whichever has the newer releases."""
    return PackAtHand((user_pack_file(cache_folder), shipped_pack_file()))
