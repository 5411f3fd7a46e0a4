"""The surface pack that commands use: the user's own, which `knowledge update` writes, or the shipped one.

The user's own is used if it has everything that the shipped one has, because updates began with that. One
from before an upgrade of npu-matrix can lack packages and releases, and then what is in none of its releases
would look as if it were in none at all.
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path

from harness.compat.knowledge.surface_pack import SurfacePack
from harness.errors import InputError
from harness.package import data_file

NAME = "surfaces.pack"
MOST_KEPT_BYTES = 40 << 20
UPDATE = "npu-matrix knowledge update"


class PackAtHand:
    """A pack, opened when it is first needed: that of the user, if it has everything of the shipped one."""

    def __init__(self, shipped: Path, own: Path | None = None) -> None:
        self._shipped, self._own = shipped, own
        self._problems: list[str] = []

    @cached_property
    def pack(self) -> SurfacePack | None:
        """The open pack, None if there is none or none can be used; see `note`."""
        own, shipped = self._opened(self._own), self._shipped_pack
        if shipped is None or (own is not None and own.began_with == shipped.digest):
            return own
        return shipped

    @property
    def shipped_digest(self) -> str:
        """The digest of the shipped pack, "" if there is none."""
        return self._shipped_pack.digest if self._shipped_pack else ""

    @cached_property
    def _shipped_pack(self) -> SurfacePack | None:
        return self._opened(self._shipped)

    def _opened(self, file: Path | None) -> SurfacePack | None:
        if file is None or not file.is_file():
            return None
        try:
            return SurfacePack(file)
        except InputError as error:
            self._problems.append(" ".join(str(error).split()))
            return None

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
    return PackAtHand(shipped_pack_file())


def pack_at_hand(cache_folder: Path) -> PackAtHand:
    """The user's pack, or the shipped one if that has what the user's lacks."""
    return PackAtHand(shipped_pack_file(), user_pack_file(cache_folder))
